"""Fake quantization: results, gradients and the observer's state, as PyTorch's kernels compute them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
import torch.ao.quantization as quantization
import torch.nn.functional as F
from torch import Tensor, nn

from planner.export.apart.quantize import observed
from planner.export.errors import ExportError
from planner.export.training import export_training_graph

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 0])
aten = torch.ops.aten


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_observer_does_what_pytorchs_kernel_does(channels: int, symmetric: bool) -> None:
    """On both sides of 0, on one, and where the range is so small that the scale is widened."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(3, 5, generator=generator)
    unseen = torch.full((channels,), float("inf")), torch.full((channels,), -float("inf"))
    known = -torch.rand(channels, generator=generator), torch.rand(channels, generator=generator)
    for x in (base, base.abs(), -base.abs(), base * 1e-7, base.abs() * 1e-7, base * 0, base * 900):
        for low, high in ((-128, 127), (0, 127), (0, 255)):
            for ranges, observes, quantizes in ((unseen, 1, 1), (known, 1, 0), (known, 0, 1)):
                scale, zero = (
                    torch.full((channels,), 0.05),
                    torch.zeros(channels, dtype=torch.int32),
                )
                switches = torch.tensor([observes]), torch.tensor([quantizes])
                more = (0.01, low, high, 0, channels > 1, symmetric)
                state = [tensor.clone() for tensor in (*ranges, scale, zero)]
                theirs = (
                    *aten._fused_moving_avg_obs_fq_helper(x, *switches, *state, *more),
                    *state,
                )
                ours = observed(x, *switches, *ranges, scale, zero, *more)
                for mine, other in zip(ours, theirs, strict=True):
                    assert mine.dtype == other.dtype
                    torch.testing.assert_close(mine.reshape(other.shape), other)


class Quantized(nn.Module):
    """A network around a fake quantization, with parameters that it may learn."""

    def __init__(self, change: Callable[[Any, Tensor], Tensor], count: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.change = nn.Linear(8, 8), nn.Linear(8, 3), change
        self.scale, self.zero = (
            nn.Parameter(torch.full((count,), 0.02)),
            nn.Parameter(torch.ones(count)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.change(self, self.first(x)).tanh())


BY_HAND: dict[str, tuple[Callable[[Any, Tensor], Tensor], int]] = {
    "numbers": (lambda _, x: torch.fake_quantize_per_tensor_affine(x, 0.01, 3, -64, 63), 1),
    "tensors, by channel": (
        lambda net, x: torch.fake_quantize_per_tensor_affine(
            torch.fake_quantize_per_channel_affine(
                x, net.scale.detach(), torch.arange(8, dtype=torch.int32), 1, -32, 31
            ),
            torch.tensor(0.01),
            torch.tensor(2, dtype=torch.int32),
            -64,
            63,
        ),
        8,
    ),
    "learned": (
        lambda net, x: torch._fake_quantize_learnable_per_tensor_affine(
            x, net.scale, net.zero, -32, 31, 0.5
        ),
        1,
    ),
    "learned by channel": (
        lambda net, x: torch._fake_quantize_learnable_per_channel_affine(
            x, net.scale, net.zero, 1, -32, 31, 0.5
        ),
        8,
    ),
}


@pytest.mark.parametrize(("change", "count"), BY_HAND.values(), ids=BY_HAND)
def test_gradients_pass_straight_through(change: Any, count: int) -> None:
    graph = export_training_graph(Quantized(change, count), X, F.cross_entropy, targets=LABELS)
    assert not graph.unchecked


class Stubs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = quantization.QuantStub(), quantization.DeQuantStub()
        self.first, self.relu, self.last = nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.last(self.relu(self.first(self.enter(x)))))


@pytest.mark.filterwarnings("ignore")
def test_quantization_aware_training_keeps_its_observers() -> None:
    module = Stubs().train()
    module.qconfig = quantization.get_default_qat_qconfig("x86")
    prepared = quantization.prepare_qat(module)
    with pytest.raises(ExportError, match="run the module once"):
        export_training_graph(copy.deepcopy(prepared), X, F.cross_entropy, targets=LABELS)
    prepared(X)
    graph = export_training_graph(prepared, X, F.cross_entropy, targets=LABELS)
    assert not graph.unchecked
    new = {output.name for output in graph.model.graph.output}
    observer = "enter.activation_post_process.activation_post_process"
    assert {f"{observer}.min_val_new", f"{observer}.max_val_new"} <= new


@pytest.mark.filterwarnings("ignore")
def test_switches_that_python_reads_are_specialized() -> None:
    """Its first run starts an average, which the later ones move: that one is not the step."""
    module = nn.Sequential(quantization.FakeQuantize(), nn.Linear(8, 3))
    for specialize in (False, True):
        with pytest.raises(ExportError, match="run the module once before the export"):
            export_training_graph(module, X, F.cross_entropy, targets=LABELS, specialize=specialize)
    module(X)
    with pytest.raises(ExportError, match="specialize=True"):
        export_training_graph(module, X, F.cross_entropy, targets=LABELS)
    graph = export_training_graph(module, X, F.cross_entropy, targets=LABELS, specialize=True)
    new = {output.name for output in graph.model.graph.output}
    assert {"0.scale_new", "0.activation_post_process.min_val_new"} <= new and not graph.unchecked
