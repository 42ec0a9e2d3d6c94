"""Ordinary training scripts, run on the original model and on the rewritten one: the same losses."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from models.build import build
from models.recipes import RECIPES
from models.scripts import train_session, train_torch
from models.scripts.data import batches_for
from planner import optimize
from planner.export.write.files import save

STEPS = 12


def losses(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What a script printed, its time left out."""
    *lines, time = capsys.readouterr().out.splitlines()
    assert time.startswith("median ")
    return lines


def planned(path: Path, budget: str) -> Path:
    """The rewritten model, which must hold copies of nodes or the test would show nothing."""
    target = path.with_suffix(".planned.onnx")
    result = optimize(path, budget=budget, output=target, swap="none", time_limit_s=1)
    assert result.plan.planned.peak_bytes <= result.plan.budget_bytes
    assert result.plan.decisions
    return target


def test_session_with_the_optimizer_in_the_graph(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = RECIPES["mlp"]
    step = recipe.step(recipe.sized(batch=512, width=64, layers=6))
    path = tmp_path / "mlp.onnx"
    save(build(step, "mlp", optimizer="adamw")[0].model, path)
    arguments = ["--steps", str(STEPS), "--lr", "0.001"]
    train_session.main(["--model", str(path), *arguments])
    expected = losses(capsys)
    train_session.main(["--model", str(planned(path, "75%")), *arguments])
    assert losses(capsys) == expected
    curve = [float.fromhex(loss) for loss in expected]
    assert len(curve) == STEPS
    assert curve[-1] < curve[0]


@pytest.mark.parametrize("net", ["mlp", "gpt"])
def test_pytorch_model_to_onnx_step_to_loop(
    net: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"{net}.onnx"
    train_torch.main([net, "--write", str(path)])
    arguments = [net, "--steps", str(STEPS), "--lr", "0.01"]
    train_torch.main(arguments)
    expected = losses(capsys)
    train_torch.main([*arguments, "--model", str(path)])
    assert losses(capsys) == expected
    train_torch.main([*arguments, "--model", str(planned(path, "60%"))])
    assert losses(capsys) == expected
    curve = [float.fromhex(loss) for loss in expected]
    assert curve[-1] < curve[0]


def test_data_has_the_shapes_asked_for() -> None:
    for shape, targets, is_text in (
        ((4, 64), (4,), False),
        ((4, 3, 16, 16), (4,), False),
        ((4, 10), (4,), True),
        ((4, 10), (4, 10), True),
    ):
        first, again = (next(batches_for(shape, targets, is_text=is_text)) for _ in range(2))
        assert first[0].shape == shape
        assert first[1].shape == targets
        assert all((a == b).all() for a, b in zip(first, again, strict=True))
