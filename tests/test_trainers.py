"""The scripts of `docs/trainers.md`, each beside itself with PyTorch's own step: the same training."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch import Tensor, nn

import planner.torch
from planner.export.training import ExportedGraph
from planner.torch import making
from tests.test_docs import PYTHON

PAGE = Path(__file__).parents[1] / "docs" / "trainers.md"
SCRIPTS = {
    block.partition("\n")[0].removeprefix("# "): block
    for block in PYTHON.findall(PAGE.read_text(encoding="utf-8"))
}
NEEDS = {
    "trainer.py": "accelerate",
    "lightning_module.py": "lightning",
    "accelerated.py": "accelerate",
}


class Eager(nn.Module):
    """PyTorch's own step, in place of the planned one."""

    def __init__(self, module: nn.Module, _: Any, loss_fn: Any = None, **options: Any) -> None:
        super().__init__()
        self.module = module
        self.loss_fn = loss_fn

    def forward(self, inputs: Any, targets: Any = ()) -> Tensor:
        if self.loss_fn is None:
            return self.module(**inputs).loss
        return self.loss_fn(self.module(inputs), targets)


def saved(graph: ExportedGraph, folder: Path) -> Path:
    """The graph as it is exported."""
    return graph.save(folder / "step.onnx", force=True)[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The scripts, and plans of their own."""
    made = tmp_path_factory.mktemp("scripts")
    for name, text in SCRIPTS.items():
        (made / name).write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(made / "cache"))
        patch.chdir(made)
        patch.syspath_prepend(str(made))
        yield made


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "network.py"])
def test_a_script_trains_as_with_pytorch(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    if name == "trainer.py":
        pytest.importorskip("transformers")
    if name != "loop.py":  # the route is what is tried: one plan is enough
        monkeypatch.setattr(making, "_planned", lambda graph, *_, **__: saved(graph, folder))
    begun = runpy.run_path(str(folder / "network.py"))["network"]()
    planned = runpy.run_path(str(folder / name))["module"]
    monkeypatch.setattr(planner.torch, "step", Eager, raising=False)
    eager = runpy.run_path(str(folder / name))["module"]
    assert type(planned) is type(eager)
    for (key, p), q in zip(planned.state_dict().items(), eager.state_dict().values(), strict=True):
        # AdamW moves by the sign of a gradient that is 0 but for rounding
        assert torch.dist(p, q) <= 1e-3 * torch.linalg.norm(q), key
    if name != "trainer.py":
        moved = [
            not torch.equal(p, q)
            for p, q in zip(planned.parameters(), begun.parameters(), strict=True)
        ]
        assert all(moved)


def test_the_page_has_a_script_for_each_route() -> None:
    assert {"network.py", "loop.py", "resume.py", *NEEDS} == {*SCRIPTS}
    assert not [line for line in PAGE.read_text().splitlines() if re.search(r"×\d", line)]
