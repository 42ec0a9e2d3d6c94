"""Losses that people train with, result and gradients beside autograd's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.check import distance, run
from planner import optimize
from planner.export.aten import loss as rules_of_losses
from planner.export.errors import ExportError
from planner.export.training import ExportedGraph, export_training_graph

TOLERANCE = 1e-5
BATCH, CLASSES = 6, 5

_draw = torch.Generator().manual_seed(0)
X = torch.randn(BATCH, 7, generator=_draw)
LABELS = torch.tensor([0, 4, 2, -100, 1, 3])
PIXELS = torch.randint(0, CLASSES, (BATCH, 3), generator=_draw).index_fill(
    1, torch.tensor([1]), -100
)
SEVERAL = torch.tensor([[0, 2, -1, 3, 1], [1, 4, 3, 2, 0]] * 3)
SHARES = torch.rand(BATCH, CLASSES, generator=_draw)
SIGNS = SHARES.round() * 2 - 1
WEIGHTS = torch.rand(CLASSES, generator=_draw) + 0.5

Loss = Callable[[Tensor, Tensor, str], Tensor]

LOSSES: dict[str, tuple[Loss, Tensor]] = {
    "cross entropy, ignore_index": (
        lambda y, t, r: F.cross_entropy(y, t, reduction=r, ignore_index=-100), LABELS),
    "cross entropy, class weights": (
        lambda y, t, r: F.cross_entropy(y, t, weight=WEIGHTS, reduction=r), LABELS),
    "cross entropy, label smoothing": (
        lambda y, t, r: F.cross_entropy(y, t, label_smoothing=0.1, reduction=r), LABELS),
    "cross entropy, all of these": (
        lambda y, t, r: F.cross_entropy(y, t, weight=WEIGHTS, label_smoothing=0.1, reduction=r), LABELS),
    "cross entropy, shares": (
        lambda y, t, r: F.cross_entropy(y, F.softmax(t, 1), label_smoothing=0.1, reduction=r), SHARES),
    "negative log likelihood of pixels": (
        lambda y, t, r: F.nll_loss(
            F.log_softmax(torch.stack([y, y * 2, y.sin()], 2), 1), t, weight=WEIGHTS, reduction=r
        ), PIXELS),
    "binary cross entropy": (
        lambda y, t, r: F.binary_cross_entropy(y.sigmoid(), t, weight=WEIGHTS, reduction=r), SHARES),
    "binary cross entropy of logits": (
        lambda y, t, r: F.binary_cross_entropy_with_logits(
            y, t, weight=WEIGHTS, pos_weight=WEIGHTS, reduction=r), SHARES),
    "huber": (lambda y, t, r: F.huber_loss(y, t, delta=0.7, reduction=r), SHARES),
    "smooth l1": (lambda y, t, r: F.smooth_l1_loss(y, t, beta=0.7, reduction=r), SHARES),
    "l1": (lambda y, t, r: F.l1_loss(y, t, reduction=r), SHARES),
    "divergence": (
        lambda y, t, r: F.kl_div(
            F.log_softmax(y, 1), F.softmax(t, 1), reduction="batchmean" if r == "mean" else r), SHARES),
    "soft margin": (lambda y, t, r: F.soft_margin_loss(y, t, reduction=r), SIGNS),
    "hinge": (lambda y, t, r: F.hinge_embedding_loss(y, t, reduction=r), SIGNS),
    "several labels, soft": (
        lambda y, t, r: F.multilabel_soft_margin_loss(y, (t + 1) / 2, reduction=r), SIGNS),
    "several labels": (lambda y, t, r: F.multilabel_margin_loss(y, t, reduction=r), SEVERAL),
    "margin": (lambda y, t, r: F.multi_margin_loss(y, t.abs() % CLASSES, reduction=r), LABELS),
    "ranks": (
        lambda y, t, r: F.margin_ranking_loss(y, y.roll(1, 0) * 0.5, t, margin=0.1, reduction=r), SIGNS),
    "cosine": (
        lambda y, t, r: F.cosine_embedding_loss(y, y.detach().sin(), t[:, 0], 0.1, reduction=r), SIGNS),
    "triplet": (lambda y, t, r: F.triplet_margin_loss(y, t, y.roll(1, 0), reduction=r), SHARES),
    "gaussian": (lambda y, t, r: F.gaussian_nll_loss(y, t, y * y, full=True, reduction=r), SHARES),
    "poisson": (lambda y, t, r: F.poisson_nll_loss(y, t, reduction=r), SHARES),
}  # fmt: skip


def check(module: nn.Module, inputs, loss: Callable[..., Tensor], targets) -> ExportedGraph:
    """The graph's loss and gradients are autograd's."""
    graph = export_training_graph(module, inputs, loss, targets=targets)
    given = inputs if isinstance(inputs, dict) else {graph.inputs[0]: inputs}
    tensors = {**dict(module.named_parameters()), **given, **targets}
    feeds = {i.name: tensors[i.name].detach().numpy() for i in graph.model.graph.input}
    actual = run(graph.model, feeds)
    result = module(**inputs) if isinstance(inputs, dict) else module(inputs)
    expected = loss(result, *targets.values())
    module.zero_grad()
    expected.backward()
    assert distance(actual["loss"], expected.detach().numpy()) < TOLERANCE
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        assert distance(actual[f"{name}_grad"], parameter.grad.numpy()) < TOLERANCE, name
    return graph


def linear() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(7, CLASSES)


@pytest.mark.parametrize("name", LOSSES)
def test_loss(name: str) -> None:
    """Its mean, its sum, and without a reduction each element's loss with a weight of its own."""
    loss, target = LOSSES[name]

    def scalar(y: Tensor, t: Tensor) -> Tensor:
        each = loss(y, t, "none").flatten()
        weighted = (each * torch.linspace(0.5, 1, each.numel())).sum()
        return weighted + 0.7 * loss(y, t, "mean") + 0.3 * loss(y, t, "sum")

    check(linear(), X, scalar, {"t": target})


CROSS_ENTROPIES: dict[str, tuple[Loss, Tensor]] = {
    "ignored": (lambda y, t, r: F.cross_entropy(y, t, reduction=r), LABELS),
    "weights": (lambda y, t, r: F.cross_entropy(y, t, weight=WEIGHTS, reduction=r), LABELS),
    "pixels": (
        lambda y, t, r: F.cross_entropy(
            torch.stack([y, y * 2, y.sin()], 2)[..., None], t[..., None], reduction=r
        ), PIXELS),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "reduction"),
    [("ignored", "mean"), ("weights", "mean"), ("weights", "sum"), ("pixels", "none")],
)
def test_cross_entropy_is_written_without_the_zeros(
    name: str, reduction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gradient has the bits of the one that is made of the two operators."""
    cross_entropy, target = CROSS_ENTROPIES[name]

    def scalar(y: Tensor, t: Tensor) -> Tensor:
        each = cross_entropy(y, t, reduction).flatten()
        return (each * torch.linspace(0.5, 1, each.numel())).sum()

    module = linear()
    short = check(module, X, scalar, {"t": target})
    monkeypatch.setattr(rules_of_losses, "_is_one_class", lambda _: False)
    long = check(module, X, scalar, {"t": target})
    tensors = {**dict(module.named_parameters()), short.inputs[0]: X, "t": target}
    feeds = {i.name: tensors[i.name].detach().numpy() for i in short.model.graph.input}
    found, expected = run(short.model, feeds), run(long.model, feeds)
    for key, array in expected.items():
        np.testing.assert_array_equal(found[key], array)
    assert "OneHot" not in {node.op_type for node in short.model.graph.node}
    assert "OneHot" in {node.op_type for node in long.model.graph.node}


# -- connectionist temporal classification ---------------------------------------------------------


class Spoken(nn.Module):
    """[time, batch, 7] -> log of probabilities of symbols, the first of which is the blank."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.hidden, self.last = nn.Linear(7, 32), nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(self.last(torch.tanh(self.hidden(x))), 2)


SOUNDS = torch.randn(5, 4, 7, generator=_draw)
WORDS = torch.tensor([[1, 1, 2], [3, -1, -1], [4, 2, 4], [0, 0, 0]])
"""A repeated symbol, padding, and no symbol at all."""
LENGTHS = {"heard": torch.tensor([5, 3, 4, 5]), "written": torch.tensor([3, 1, 3, 0])}


def test_ctc() -> None:
    """Of each sample; their mean is below."""

    def loss(y: Tensor, words: Tensor, heard: Tensor, written: Tensor) -> Tensor:
        return F.ctc_loss(y, words, heard, written, reduction="none").sum()

    check(Spoken(), SOUNDS, loss, {"words": WORDS, **LENGTHS})


def test_ctc_by_its_module_with_lengths_that_are_constants() -> None:
    loss = nn.CTCLoss(blank=CLASSES - 1)
    words = WORDS[:2].clamp(min=0)

    def scalar(y: Tensor, words: Tensor) -> Tensor:
        return loss(y, words, (5, 4), (3, 1))

    check(Spoken(), SOUNDS[:, :2].clone(), scalar, {"words": words})


def test_ctc_without_a_possible_alignment() -> None:
    """Three symbols in two steps: infinite, or left out."""

    def loss(zero: bool) -> Callable[..., Tensor]:
        return lambda y, words: F.ctc_loss(y, words, (2, 5, 5, 5), (3, 1, 3, 0), zero_infinity=zero)

    check(Spoken(), SOUNDS, loss(True), {"words": WORDS})
    graph = export_training_graph(Spoken(), SOUNDS, loss(False), targets={"words": WORDS})
    tensors = {**dict(Spoken().named_parameters()), "x": SOUNDS, "words": WORDS}
    feeds = {i.name: tensors[i.name].detach().numpy() for i in graph.model.graph.input}
    assert np.isposinf(run(graph.model, feeds)["loss"])


def test_ctc_of_targets_one_behind_the_other() -> None:
    def loss(y: Tensor, words: Tensor) -> Tensor:
        return F.ctc_loss(y, words, (5, 5, 5, 5), (3, 1, 3, 0))

    with pytest.raises(ExportError, match=r"pad them to \[batch, longest\]"):
        export_training_graph(Spoken(), SOUNDS, loss, targets={"words": torch.ones(7).long()})


def test_ctc_planned(tmp_path: Path) -> None:
    def loss(y: Tensor, words: Tensor, heard: Tensor, written: Tensor) -> Tensor:
        return F.ctc_loss(y, words, heard, written)

    sounds = torch.randn(5, 64, 7)
    targets = {"words": WORDS.clamp(min=1).repeat(16, 1)}
    targets |= {name: lengths.repeat(16) for name, lengths in LENGTHS.items()}
    module = Spoken()
    graph = export_training_graph(module, sounds, loss, targets=targets)
    path, inputs = tmp_path / "m.onnx", tmp_path / "inputs.npz"
    graph.save(path)
    tensors = {**dict(module.named_parameters()), "x": sounds, **targets}
    names = [info.name for info in graph.model.graph.input]
    np.savez(inputs, **{name: tensors[name].detach().numpy() for name in names})
    result = optimize(
        path,
        budget="80%",
        budget_of="live",
        output=tmp_path / "p.onnx",
        inputs=inputs,
        time_limit_s=1,
    )
    assert result.verification is not None and result.verification.passed


# -- several of each -------------------------------------------------------------------------------


class Heads(nn.Module):
    """Several inputs, and results by name."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(7, 4), nn.Linear(3, 4)

    def forward(self, a: Tensor, b: Tensor) -> dict[str, Tensor | tuple[Tensor, Tensor]]:
        left, right = self.left(a), self.right(b)
        return {"sum": left + right, "parts": (left.tanh(), right)}


def test_losses_of_several_results() -> None:
    def loss(result: dict, labels: Tensor, wanted: Tensor) -> Tensor:
        left, right = result["parts"]
        parts = [F.cross_entropy(result["sum"], labels), F.mse_loss(left, wanted)]
        return sum(parts, start=0.1 * right.abs().mean())

    targets = {"labels": LABELS.clamp(0, 3), "wanted": torch.randn(BATCH, 4)}
    check(Heads(), {"a": X, "b": torch.randn(BATCH, 3)}, loss, targets)
