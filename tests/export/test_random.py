"""Random tensors as inputs: autograd fed the same ones, and plans that recompute across them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.check import distance, run
from planner import optimize
from planner.errors import UsageError
from planner.export.errors import UnsupportedOperator
from planner.export.inputs import InputSpec, draw_inputs, read_specs
from planner.export.training import ExportedGraph, export_training_graph

X = torch.randn(12, 6, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(12) % 3
RANDOM = {"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
          "RandomUniformLike"}  # fmt: skip


class Noisy(nn.Module):
    """Dropout, a branch dropped for whole samples (drop path), and noise of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.dropout(self.first(x), 0.25)
        kept = hidden.new_empty(hidden.shape[0], 1).bernoulli_(0.75)
        hidden = hidden + torch.tanh(self.middle(hidden)) * kept / 0.75
        hidden = hidden * torch.rand_like(hidden) + 0.1 * torch.randn(hidden.shape)
        return F.dropout(self.last(hidden), 0.5)


def fed(draws: Iterator[np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch draws these instead."""

    def tensor(*_: object, **__: object) -> Tensor:
        return torch.from_numpy(next(draws))

    def dropout(x: Tensor, p: float = 0.5, *_: object, **__: object) -> Tensor:
        return x * tensor() / (1 - p)

    monkeypatch.setattr(F, "dropout", dropout)
    monkeypatch.setattr(torch, "rand_like", tensor)
    monkeypatch.setattr(torch, "randn", tensor)
    monkeypatch.setattr(Tensor, "bernoulli_", lambda *_: tensor().float())


def feeds_of(
    graph: ExportedGraph, module: nn.Module, recipes: dict[str, InputSpec], **given: Tensor
) -> dict[str, np.ndarray]:
    """The module's values, the inputs, and random tensors drawn as the sidecar says."""
    tensors = {**dict(module.named_parameters()), **given}
    arrays = {name: tensor.detach().numpy() for name, tensor in tensors.items()}
    return draw_inputs({n: recipes[n] for n in recipes if n not in arrays}) | arrays


@pytest.mark.parametrize("batch", [12, 7])
def test_autograd_on_the_same_draws(
    batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the example's batch, and of another, in a graph with a symbolic one."""
    module = Noisy()
    graph = export_training_graph(
        module, X, F.cross_entropy, targets=LABELS, dynamic_batch=True, random="inputs"
    )
    assert RANDOM.isdisjoint(node.op_type for node in graph.model.graph.node)
    assert [draw.kind for draw in graph.draws] == [
        "bernoulli", "bernoulli", "uniform", "normal", "bernoulli"]  # fmt: skip
    graph.save(tmp_path / "m.onnx", sidecar=True)
    recipes = {
        name: replace(recipe, shape=(batch, *recipe.shape[1:]))
        if recipe.shape[:1] == (12,)
        else recipe
        for name, recipe in read_specs(tmp_path / "m.inputs.json").items()
    }
    feeds = feeds_of(graph, module, recipes, x=X[:batch], target=LABELS[:batch])
    actual = run(graph.model, feeds)
    fed(iter([feeds[draw.name] for draw in graph.draws]), monkeypatch)
    loss = F.cross_entropy(module(X[:batch]), LABELS[:batch])
    loss.backward()
    assert distance(actual["loss"], loss.detach().numpy()) < 1e-5
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        assert distance(actual[f"{name}_grad"], parameter.grad.numpy()) < 1e-5


def test_recipes_draw_what_they_say() -> None:
    ones = InputSpec(shape=(4000,), dtype="bool", kind="bernoulli", chance=0.2).draw("a")
    assert ones.dtype == np.bool_ and 0.17 < ones.mean() < 0.23
    spread = InputSpec(shape=(4000,), dtype="float32", kind="uniform").draw("b")
    assert spread.min() >= 0 and spread.max() < 1 and 0.47 < spread.mean() < 0.53
    entry = InputSpec(shape=(2,), dtype="float32", kind="uniform").to_json()
    assert InputSpec.from_json(entry).kind == "uniform"


DRAWS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[np.ndarray], bool]]] = {
    "randint": (
        lambda x: torch.randint(2, 7, (4000,)),
        lambda a: set(a.tolist()) == {2, 3, 4, 5, 6}),
    "randperm": (
        lambda x: torch.randperm(4000),
        lambda a: sorted(a.tolist()) == list(range(4000)) and a.tolist() != sorted(a.tolist())),
    "exponential": (
        lambda x: torch.empty(4000).exponential_(2.0),
        lambda a: bool(a.min() >= 0 and 0.45 < a.mean() < 0.55)),
    "uniform": (
        lambda x: torch.empty(4000).uniform_(-1, 3),
        lambda a: bool(a.min() >= -1 and a.max() < 3 and 0.9 < a.mean() < 1.1)),
    "normal": (
        lambda x: torch.empty(4000).normal_(1, 0.5),
        lambda a: bool(0.95 < a.mean() < 1.05 and 0.45 < a.std() < 0.55)),
}  # fmt: skip


@pytest.mark.parametrize("random", ["graph", "inputs"])
@pytest.mark.parametrize("name", DRAWS)
def test_what_is_drawn(name: str, random) -> None:
    """The gradient of a factor that multiplies what is drawn is that."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4000))

        def forward(self, x: Tensor) -> Tensor:
            return self.weight * draw(x) + x

    draw, holds = DRAWS[name]
    graph = export_training_graph(Scaled(), torch.ones(4000), torch.sum, random=random)
    assert len(graph.draws) == (random == "inputs") and graph.unchecked == ""
    assert holds(run(graph.model, draw_inputs(graph.recipes))["weight_grad"])


def test_planned_with_recompute_across_dropout(tmp_path: Path) -> None:
    """With masks as inputs dropout is an operation like others: it may run twice, bit for bit."""
    layers: list[nn.Module] = [nn.Linear(32, 64)]
    for _ in range(4):
        layers += [nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 64)]
    module = nn.Sequential(*layers)
    x, labels = torch.randn(256, 32), torch.arange(256) % 64
    graph = export_training_graph(module, x, F.cross_entropy, targets=labels, random="inputs")
    path, planned = tmp_path / "m.onnx", tmp_path / "p.onnx"
    graph.save(path, sidecar=True)
    result = optimize(path, budget="65%", output=planned, swap="none", time_limit_s=1)
    assert result.verification is not None and result.verification.passed
    assert all(output.identical for output in result.verification.outputs)
    names = [node.name for node in onnx.load(planned).graph.node]
    assert any("native_dropout" in name and "__recompute" in name for name in names)


def test_what_cannot_be_fed() -> None:
    def loss(y: Tensor) -> Tensor:
        return (y * torch.multinomial(y.softmax(1).detach(), 3)).sum()

    with pytest.raises(UnsupportedOperator, match="cannot be fed as an input"):
        export_training_graph(nn.Linear(6, 3), X, loss, random="inputs")
    with pytest.raises(UsageError, match="'graph' or 'inputs'"):
        export_training_graph(nn.Linear(6, 3), X, torch.sum, random="device")  # pyright: ignore
