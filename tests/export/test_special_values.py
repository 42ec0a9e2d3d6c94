"""Operators at numbers that are none, infinite, equal, or at the ends of a type's range: results and
gradients beside PyTorch's, one graph for all of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import numpy as np
import onnxruntime as ort
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.export.errors import DataDependentControlFlow
from planner.export.training import export_training_graph
from tests.export.test_rules import ramp

NAN, INF = math.nan, math.inf
ROWS = {
    "plain": [[0.5, -1.5, 2.5, -0.25, 3.5, 1.25], [1.5, 0.75, -2.5, -3.5, 0.125, -0.5]],
    "NaN": [[0.5, NAN, 2.5, -0.25, NAN, 1.25], [1.5, 0.75, -2.5, -3.5, 0.125, -0.5]],
    "NaN alone": [[NAN] * 6, [1.5, 0.75, -2.5, -3.5, 0.125, -0.5]],
    "infinite": [[0.5, -INF, 2.5, -0.25, 3.5, 1.25], [1.5, 0.75, -2.5, INF, 0.125, -0.5]],
    "zeros": [[0.0, 0.0, 0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, -1.0, 0.0, 1.0]],
    "small": [[1e-30, -2e-30, 3e-30, 4e-30, -5e-30, 6e-30], [1e-9, -2e-9, 3e-9, 1e-20, 0.0, 1.0]],
    "large": [[1e30, -2e30, 3e30, 4e30, -5e30, 6e30], [1e9, -2e9, 3e9, 1e20, 0.0, 1.0]],
    "far below": [[-10.0, -20.0, -30.0, -60.0, -80.0, 5.0], [-5.0, -8.0, -15.0, -40.0, -86.0, 0.0]],
}  # fmt: skip

PLACES = torch.tensor([[0, 2, 1, 0, 1, 2]] * 2)
ORDER = torch.tensor([1, 0])
NOTHING = torch.full((2,), -100)
BOUND = torch.tensor(0.5)
BESIDE = torch.full((2, 2), INF).fill_diagonal_(0)
NANS = ("plain", "NaN", "NaN alone")
RANKS = (*NANS, "infinite")
SIZES = ("plain", "NaN", "small", "large")


def scattered(kind: str, *, own: bool) -> Callable[[Tensor], Tensor]:
    """Three columns, to two of which NaN may be scattered."""

    def function(x: Tensor) -> Tensor:
        return (x[:, :3] * 0.5).scatter_reduce(1, PLACES, x, kind, include_self=own)

    return function


FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[str, ...]]] = {
    "largest": (lambda x: x.amax(1), RANKS),
    "smallest of all": (lambda x: x.min(), NANS),
    "smallest and where": (lambda x: x.min(1)[0] + x.min(1)[1], NANS),
    "largest and where": (lambda x: x.max(0)[0] + x.max(0)[1], NANS),
    "where the largest is": (lambda x: x.argmax(1) + x.argmin(1) + x.argmax(), RANKS),
    "running largest": (lambda x: x.cummax(1)[0] + x.cummax(1)[1], (*RANKS, "zeros")),
    "running smallest": (lambda x: x.cummin(1)[0] + x.cummin(1)[1], (*RANKS, "zeros")),
    "sorted": (lambda x: x.sort(dim=1, stable=True)[0], (*RANKS, "zeros")),
    "sorted down": (lambda x: x.sort(dim=1, descending=True, stable=True)[0], (*RANKS, "zeros")),
    "order": (lambda x: x.argsort(dim=1, stable=True), RANKS),
    "three largest": (lambda x: x.topk(3, 1)[0], ("plain", "NaN", "infinite")),
    "second": (lambda x: x.kthvalue(2, 1)[0], RANKS),
    "medians": (lambda x: x.median(1)[0] + x.median(1)[1], RANKS),
    "medians of numbers": (lambda x: x.nanmedian(1)[0] + x.nanmedian(), RANKS),
    "quantiles": (lambda x: x.quantile(0.3, 1) + x.nanquantile(0.6, 1), ("plain", "NaN")),
    "largest by places": (scattered("amax", own=True), RANKS),
    "smallest by places alone": (scattered("amin", own=False), RANKS),
    "pools of uneven windows": (lambda x: F.adaptive_max_pool1d(x, 4), ("plain", "infinite")),
    "norms by the largest": (lambda x: torch.linalg.vector_norm(x, INF, 1), ("plain", "infinite")),
    "norm that keeps its axes": (lambda x: torch.linalg.vector_norm(x, keepdim=True), ("plain",)),
    "angles": (lambda x: torch.angle(x) + torch.atan2(x, x.flip(1)), (*RANKS, "zeros", "small", "large")),
    "kept within": (lambda x: x.clamp_min(0.5) + x.clamp_max(-0.5) * 2, RANKS),
    "kept within a tensor": (lambda x: x.clamp(min=BOUND) + x.clamp(max=BOUND) * 2, RANKS),
    "places among edges": (lambda x: x * 0 + torch.searchsorted(torch.arange(3.0), x), NANS),
    "diagonal": (lambda x: (x[:, :2] + BESIDE).diagonal() + x[:, 2:4].trace(), ("plain", "infinite")),
    "whole quotients": (
        lambda x: torch.div(x, x.flip(1).detach(), rounding_mode="floor"), ("plain", "zeros", "infinite")
    ),
    "directions": (
        lambda x: F.normalize(x, dim=1) + F.cosine_similarity(x, x.flip(1))[:, None],
        ("plain", "infinite"),
    ),
    "hypotenuse": (lambda x: torch.hypot(x, x.flip(1)), (*SIZES, "zeros")),
    "spread": (lambda x: x.std(1) + torch.std_mean(x, 0)[0].sum(), ("plain", "NaN", "large")),
    "logarithms near 1": (lambda x: torch.log1p(x.abs()).log(), ("plain", "NaN", "small")),
    "powers near 1": (torch.expm1, ("plain", "NaN", "small")),
    "logarithm of what powers leave": (lambda x: torch.log(-torch.expm1(-x.abs())), ("plain", "small")),
    "sigmoids in a logarithm": (lambda x: torch.log(torch.sigmoid(x)), ("plain", "NaN", "far below")),
    "normal tails": (lambda x: torch.special.log_ndtr(x) + torch.erfc(-x).log(), ("plain", "NaN")),
    "normal tails, scaled": (lambda x: torch.special.erfcx(-x / 20), ("plain", "far below")),
    "gamma": (torch.lgamma, ("plain", "NaN", "infinite", "large")),
    "digamma at poles": (lambda x: torch.digamma(x.detach()) + x, ("plain", "zeros", "NaN")),
    "third derivative of gamma": (lambda x: torch.polygamma(2, x), ("plain", "NaN")),
    "inverse of erf at its ends": (lambda x: torch.erfinv(x.detach().sign()) + x, ("plain",)),
    "saturated chances": (
        lambda x: F.binary_cross_entropy(x.sigmoid(), (x < 0).float(), reduction="none"),
        ("plain", "far below"),
    ),
    "chances of 0 and 1": (
        lambda x: F.binary_cross_entropy(x.abs(), x.detach().abs().flip(1), reduction="none"), ("zeros",)
    ),
    "margins": (lambda x: F.multi_margin_loss(x, ORDER, reduction="none"), ("plain", "zeros")),
    "margins of several": (lambda x: F.multilabel_margin_loss(x, PLACES), ("plain", "zeros")),
    "no class at all": (lambda x: F.cross_entropy(x, NOTHING, reduction="sum"), ("plain",)),
}  # fmt: skip


class Of(nn.Module):
    """A function of a weight."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.tensor(ROWS["plain"]))

    def forward(self, one: Tensor) -> Tensor:
        return self.function(self.weight * one)


def weighted(result: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Each element has a gradient of its own; of whole numbers there is none."""
    return ramp(result), {"result": result}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name: str) -> None:
    function, kinds = FUNCTIONS[name]
    module, one = Of(function), torch.ones(())

    def loss(result: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        found, results = weighted(result.float())
        return found + 0 * module.weight.detach().sum() + (
            module.weight * 0
        ).nan_to_num().sum(), results

    graph = export_training_graph(module, one, loss, check=False)
    session = ort.InferenceSession(graph.model.SerializeToString())
    given = session.get_inputs()
    for kind in kinds:
        weight = torch.tensor(ROWS[kind])
        feeds = {i.name: weight.numpy() if i.name == "weight" else one.numpy() for i in given}
        ours = dict(
            zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True)
        )
        least = 1e-37 if kind in ("small", "far below") else 1e-12
        module.weight.data, module.weight.grad = weight, None
        total, results = loss(module(one))
        total.backward()
        assert module.weight.grad is not None
        compared = {"result": results["result"], "weight_grad": module.weight.grad}
        for key, expected in compared.items():
            wanted = expected.detach().numpy()
            np.testing.assert_allclose(
                np.asarray(ours[key]), wanted, 2e-5, least, err_msg=f"{key}, {kind}"
            )


@pytest.mark.parametrize("weight", [None, torch.tensor([1.0, 2, 3, 4, 5, 6])])
@pytest.mark.parametrize("axes", [(2, 6), (1, 6, 2)])
def test_a_mean_over_no_class_has_no_gradient(weight: Tensor | None, axes: tuple[int, ...]) -> None:
    """As in PyTorch, whose loss is NaN there."""
    target = torch.full((axes[0], *axes[2:]), -100)

    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(axes))

        def forward(self, one: Tensor) -> Tensor:
            scores = self.weight * one
            return F.cross_entropy(scores, target, weight) + F.nll_loss(
                scores.tanh(), target, weight
            )

    graph = export_training_graph(Scores(), torch.ones(()), check=False)
    session = ort.InferenceSession(graph.model.SerializeToString())
    feeds = {"weight": np.ones(axes, np.float32), graph.inputs[0]: np.ones((), np.float32)}
    wanted = {given.name for given in session.get_inputs()}
    names = [output.name for output in session.get_outputs()]
    found = session.run(None, {name: feeds[name] for name in wanted})
    ours = {name: np.asarray(array) for name, array in zip(names, found, strict=True)}
    assert np.isnan(ours["loss"])
    assert not ours["weight_grad"].any()


def test_part_of_a_source_is_scattered() -> None:
    """PyTorch takes as much of it as there are places."""
    places = torch.tensor([[0, 2], [1, 0]])
    source = torch.arange(12.0).reshape(3, 4)  # without a gradient, which PyTorch does not have

    class Added(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, 3))

        def forward(self, x: Tensor) -> Tensor:
            return ramp(torch.zeros(2, 3).scatter_add(1, places, x) * self.weight)

    assert not export_training_graph(Added(), source).unchecked


def test_the_mask_of_a_selection_may_have_fewer_axes() -> None:
    mask = torch.tensor([True, False, True, True])

    class Selected(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 4))

        def forward(self, x: Tensor) -> Tensor:
            return ramp((self.weight * x).masked_select(mask))

    graph = export_training_graph(Selected(), torch.ones(3, 4))
    assert not graph.unchecked


@pytest.mark.parametrize("shape", [(6,), (2, 6)])
def test_norms_over_all_axes(shape: tuple[int, ...]) -> None:
    """The gradient of their scale is no sum."""

    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(shape)

        def forward(self, x: Tensor) -> Tensor:
            return ramp(self.norm(x) ** 2)

    assert not export_training_graph(Normed(), torch.randn(shape)).unchecked


def test_one_row_has_a_class() -> None:
    class Row(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            logits = self.linear(x)
            weighted = F.nll_loss(logits.log_softmax(0), y, torch.tensor([1.0, 2, 3]))
            return F.cross_entropy(logits, y) + weighted

    assert not export_training_graph(Row(), (torch.randn(4), torch.tensor(2))).unchecked


def test_gradients_stay_on_behind_a_refusal() -> None:
    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 5)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            with torch.no_grad():
                counts = torch.bincount(y)[:3]
            return (self.linear(x).sum(0)[:3] * counts).sum()

    with pytest.raises(DataDependentControlFlow, match="bincount"):
        export_training_graph(Counted(), (torch.randn(3, 4), torch.tensor([0, 1, 2])))
    assert torch.is_grad_enabled()
