"""What the optimizers handed back is compared with the file wherever the rewritten model is not run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from planner import api
from planner.errors import ModelError, VerificationError
from planner.pipeline.prepare.prepared import Prepared, prepare
from planner.pipeline.record import rebuild
from planner.pipeline.record.comparing import compared
from planner.request import Request
from planner.runtime.feeds.inputs import make_inputs
from planner.runtime.inmemory import ModelInMemory
from planner.runtime.judge.compare import compare
from planner.runtime.optimizers import normalize
from planner.runtime.optimizers.same_numbers import OptimizedFile, same_numbers
from planner.runtime.options import Opening, default_threads
from planner.runtime.profiled import Profiled
from tests.runtime.test_normalize import patches

ZOO = Path(__file__).parents[2] / "models" / "zoo"


def embedded(folder: Path) -> Path:
    """A patch embedding with as many tokens as it is wide: the optimizers permute its table under its
    own name, into one of the same shape. A chain behind it gives a plan something to do."""
    proto = patches(4)
    names = ["y"]
    for op_type in ("Sigmoid", "Tanh", "Sin", "Cos"):
        names.append(op_type)
        proto.graph.node.append(h.make_node(op_type, names[-2:-1], names[-1:], op_type))
    for i, name in enumerate(reversed(names[1:])):
        proto.graph.node.append(h.make_node("Mul", [names[-1], name], [f"g{i}"], f"mul{i}"))
        names.append(f"g{i}")
    proto.graph.output.append(h.make_tensor_value_info(names[-1], T.FLOAT, [1, 4, 4]))
    path = folder / "embedded.onnx"
    onnx.save(proto, path)
    return path


def subject_of(prepared: Prepared) -> OptimizedFile:
    return OptimizedFile(
        path=prepared.loaded.path,
        original=prepared.loaded.model,
        model=prepared.model,
        graph=prepared.graph,
        order=prepared.order,
        peak_bytes=1,
    )


def told(prepared: Prepared) -> str:
    return same_numbers(subject_of(prepared), lambda: make_inputs(prepared.loaded.path)[0])


@pytest.mark.parametrize("name", ["mlp_adamw", "gpt"])
def test_the_samples_are_the_same_bits(name: str) -> None:
    said = told(prepare(Request(model=ZOO / f"{name}.onnx")))
    assert "are the same bits as in a session of the file, and within 0.001 of the" in said


def test_an_opened_session_of_other_options_is_not_run() -> None:
    prepared = prepare(Request(model=ZOO / "mlp_adamw.onnx"))
    other = Profiled(prepared.loaded.path, Opening(level="extended", threads=1))  # never created
    subject = replace(subject_of(prepared), opened=other)
    assert same_numbers(subject, lambda: make_inputs(subject.path)[0]) == told(prepared)


def test_an_opened_session_is_released_with_its_run() -> None:
    prepared = prepare(Request(model=ZOO / "mlp_adamw.onnx"))
    with Profiled(prepared.loaded.path, Opening(threads=default_threads())) as opened:
        subject = replace(subject_of(prepared), opened=opened)
        assert same_numbers(subject, lambda: make_inputs(subject.path)[0]) == told(prepared)
        with pytest.raises(AssertionError):
            _ = opened.session


def test_an_initializer_put_back_wrongly_is_found_without_verification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = embedded(tmp_path), tmp_path / "out.onnx"
    good = prepare(Request(model=path))
    assert "the same bits" in told(good)
    table = good.model.graph.initializers["table"].const_value
    assert table is not good.loaded.model.graph.initializers["table"].const_value

    monkeypatch.setattr(normalize, "_is_same", lambda before, after: True)
    with pytest.raises(VerificationError, match=r"output 'y' differs .* --no-ort-optimize"):
        compared(prepare(Request(model=path)), progress=lambda _: None)
    for arguments in ({"verify": False, "output": out}, {"dry_run": True}):
        with pytest.raises(VerificationError, match="computes something else"):
            api.optimize(path, budget="90%", time_limit_s=1, **arguments)
    assert not out.exists()


def test_apply_compares_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes((ZOO / "mlp_adamw.onnx").read_bytes())
    out, plan, again = (tmp_path / name for name in ("o.onnx", "p.json", "again.onnx"))
    made = api.optimize(
        path, budget="80%", output=out, plan_path=plan, time_limit_s=0.5, verify=False
    )
    assert sum("compared with the file" in said for said in made.plan.assumptions) == 1
    api.apply(path, plan, output=again)
    assert again.read_bytes() == out.read_bytes()
    seen: list[str] = []
    monkeypatch.setattr(rebuild, "compared", lambda prepared, **_: seen.append("asked"))
    api.apply(path, plan, output=again, force=True)
    assert seen == ["asked"]


def test_a_model_too_large_to_run_is_compared_by_what_is_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepared = prepare(Request(model=ZOO / "mlp_adamw.onnx"))
    monkeypatch.setattr("planner.runtime.optimizers.same_numbers.available_bytes", lambda: 1)
    said = told(prepared)
    assert "more memory than this machine has free" in said
    nodes = len(prepared.model.graph)
    assert f" of its {nodes} nodes are the file's own" in said


def test_long_steps_are_not_run_where_no_run_is_wanted() -> None:
    long = replace(
        subject_of(prepare(Request(model=ZOO / "mlp_adamw.onnx"))), step_us=4.2e6, no_runs=True
    )

    def feeds() -> dict[str, np.ndarray]:
        raise AssertionError("no run is wanted")

    said = same_numbers(long, feeds)
    assert "not compared with the file by numbers" in said and "4.20 s" in said


def test_long_steps_are_run_once_for_each_file(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = subject_of(prepare(Request(model=ZOO / "mlp_adamw.onnx")))
    levels: list[str] = []
    run = ModelInMemory.run

    def counted(*arguments: Any, opening: Opening, **more: Any) -> dict[str, np.ndarray]:
        levels.append(opening.level)
        return run(*arguments, opening=opening, **more)

    monkeypatch.setattr(ModelInMemory, "run", counted)
    said = same_numbers(replace(subject, step_us=4.2e6), lambda: make_inputs(subject.path)[0])
    assert said.endswith("are the same bits as in a session of the file")
    assert levels == ["disabled", "all"]


def test_a_model_that_cannot_be_fed_is_compared_by_what_is_in_it() -> None:
    def feeds() -> dict[str, np.ndarray]:
        raise ModelError("input 'x' is bfloat16: it cannot be fed")

    said = same_numbers(subject_of(prepare(Request(model=ZOO / "mlp_adamw.onnx"))), feeds)
    assert "it could not be run here (input 'x' is bfloat16: it cannot be fed)" in said


def test_a_verified_plan_says_nothing_of_it(tmp_path: Path) -> None:
    result = api.optimize(
        ZOO / "mlp_adamw.onnx", budget="80%", output=tmp_path / "o.onnx", time_limit_s=0.5
    )
    assert result.verification is not None and result.verification.passed
    assert not any("compared with the file" in said for said in result.plan.assumptions)


def test_what_is_near() -> None:
    def is_near(before: np.ndarray, after: np.ndarray) -> bool:
        return compare("y", before, after).is_near

    a = np.array([1.0, 100.0, np.nan, np.inf], np.float32)
    assert is_near(a, a + np.float32(0.09))
    assert not is_near(a, a + np.float32(0.11))
    assert not is_near(a, a[:3])
    assert not is_near(np.array([1]), np.array([2]))
