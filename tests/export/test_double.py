"""Modules in float64: what ONNX Runtime's CPU provider has kernels for, and what is said of the rest."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.check import distance, run
from planner.export.errors import UnsupportedKernel
from planner.export.training import export_training_graph

TOLERANCE = 1e-11

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "celu": F.celu,
    "gelu, tanh": lambda x: F.gelu(x, approximate="tanh"),
    "hardtanh": F.hardtanh,
    "leaky relu": F.leaky_relu,
    "log sigmoid": F.logsigmoid,
    "mish": F.mish,
    "selu": F.selu,
    "silu": F.silu,
    "softplus": F.softplus,
    "rounded": lambda x: (
        x * (x.detach() % -0.3)
        + torch.remainder(2.0, x.detach())
        + x.detach() // 0.1
        + torch.div(x, 0.1, rounding_mode="trunc")
    ),
    "special": lambda x: torch.log1p(x * x) + torch.expm1(x) + torch.sign(x) * x,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_network(name: str) -> None:
    """Matrix products, norms, an activation, a loss: with the digits of a float64."""
    torch.manual_seed(0)
    first = [nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.LayerNorm(8)]
    module = nn.Sequential(*first, Call(ACTIVATIONS[name]), nn.Linear(8, 3)).double()
    x, labels = torch.randn(5, 6).double(), torch.tensor([0, 2, 1, -100, 1])
    graph = export_training_graph(module, x, F.cross_entropy, targets=labels)
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    tensors |= {"input": x, "target": labels}
    feeds = {i.name: tensors[i.name].detach().clone().numpy() for i in graph.model.graph.input}
    actual = run(graph.model, feeds)
    F.cross_entropy(module(x), labels).backward()
    for key, parameter in module.named_parameters():
        assert parameter.grad is not None
        # a bias before batch normalization has a gradient of rounding errors alone
        if parameter.grad.abs().max() > 1e-12:
            assert distance(actual[f"{key}_grad"], parameter.grad.numpy()) < TOLERANCE, key


class Call(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Convolved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv(x))


def test_kernel_that_is_missing_is_named_with_the_line() -> None:
    line = r"Conv in float64, which aten\.convolution\.default .*test_double\.py:\d+ in forward.*"
    module = nn.Sequential(nn.Identity(), Convolved()).double()
    with pytest.raises(UnsupportedKernel, match=line + r"\(submodule 1\.conv\).*float32"):
        export_training_graph(module, torch.randn(2, 3, 8, 8).double(), torch.sum)
    with pytest.raises(UnsupportedKernel, match=r"Erf in float64, which aten\.gelu"):
        module = nn.Sequential(nn.Linear(4, 4), nn.GELU()).double()
        export_training_graph(module, torch.randn(2, 4).double(), torch.sum)
