"""Products of matrices."""

from __future__ import annotations

from torch import fx

from planner.export.aten.registry import Lowering, Result, lowers


@lowers("mm")
def mm(low: Lowering, x: fx.Node, y: fx.Node) -> Result:
    return low.builder.gemm(low.value(x), low.value(y), low.name(""))


@lowers("addmm")
def addmm(
    low: Lowering, bias: fx.Node, x: fx.Node, y: fx.Node, beta: float = 1, alpha: float = 1
) -> Result:
    """`beta bias + alpha x y`."""
    return low.builder.gemm(
        low.value(x),
        low.value(y),
        low.name(""),
        bias=low.value(bias),
        alpha=float(alpha),
        beta=float(beta),
    )


@lowers("bmm")
def bmm(low: Lowering, x: fx.Node, y: fx.Node) -> Result:
    return low.op("MatMul", low.value(x), low.value(y))
