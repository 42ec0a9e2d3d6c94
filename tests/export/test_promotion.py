"""Operands of two types, promoted as by PyTorch, whose own steps judge, at other inputs too."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.export.training import export_training_graph

N = torch.tensor([[1, 2, 5, 3], [4, 1, 2, 2]])
WIDE = torch.randn(2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
MASK = torch.tensor([[True, False, True, True], [False, True, False, False]])

Terms = Callable[[Tensor, Tensor, Tensor, Tensor], list[Tensor]]

TERMS: dict[str, Terms] = {
    "joined": lambda x, n, d, b: [
        torch.cat([x, n, b], 1),
        torch.cat([n.int(), n, b]) * x[:1],
        torch.stack([x, n]),
        torch.stack([x.half(), x]),
        torch.cat([x.half(), x.bfloat16()]),
        torch.block_diag(x, n),
        torch.diff(x, prepend=n[:, :1]),
    ],
    "chosen": lambda x, n, d, b: [
        torch.where(b, x, n),
        torch.where(b, x, d),
        torch.where(b, n, 0.5) * x,
        torch.where(b, x, torch.tensor(1)),
        torch.clamp(x, min=-n, max=n),
        x * n.clamp(2, 3.5) + x.clamp_min(-n) + x.clamp(max=n),
    ],
    "arithmetic": lambda x, n, d, b: [
        torch.addcmul(x, n, n) + torch.addcmul(x, x, n.int()),
        x.abs() ** n + n**x + 2**x,
        torch.atan2(x, n) + x * torch.atan2(n, n + 1),
        torch.xlogy(n, x.abs() + 1),
        x * (n // 2 + n // 1.5 + n % 2.5) + torch.remainder(x, n) + torch.fmod(x, n),
        x + torch.div(x.detach(), n, rounding_mode="trunc"),
        F.mse_loss(x, n, reduction="none") + F.mse_loss(x, d, reduction="none"),
    ],
    "whole numbers and truth": lambda x, n, d, b: [
        x * (n.rsqrt() + n.log2() + n.erf() + n.exp2() + n.atan() + n.cosh()),
        x * (n.floor() + n.round() + n.ceil() + n.trunc()),
        x * torch.logical_and(n, b) + x * torch.logical_xor(n, x) + x * torch.logical_not(n),
        x * ((b & n) + (b | n) + (n ^ 1)),
        x * n.int().prod(1, keepdim=True) + x * b.prod() + x * b.cumsum(1),
    ],
}


class Sums(nn.Module):
    """The squares of some terms of a parameter, integers, wide floats and a mask."""

    def __init__(self, terms: Terms) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.randn(2, 4, generator=torch.Generator().manual_seed(1)))
        self.terms = terms

    def forward(self, n: Tensor, d: Tensor, b: Tensor) -> Tensor:
        squares = [term.double().square().mean() for term in self.terms(self.x, n, d, b)]
        return torch.stack(squares).sum().float()


@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)
def test_operands_of_two_types_are_promoted_as_in_pytorch(terms: Terms) -> None:
    graph = export_training_graph(Sums(terms), {"n": N, "d": WIDE, "b": MASK})
    assert not graph.unchecked
