"""Matrix products."""

from __future__ import annotations

from torch import fx

from planner.export.aten.registry import Lowering, Result, lowers, shape_of


@lowers("mm")
def mm(low: Lowering, x: fx.Node, y: fx.Node) -> Result:
    return low.builder.gemm(low.value(x), low.value(y), low.name(""))


@lowers("addmm")
def addmm(
    low: Lowering, bias: fx.Node, x: fx.Node, y: fx.Node, beta: float = 1, alpha: float = 1
) -> Result:
    """Lower to `beta bias + alpha x y`."""
    return low.builder.gemm(
        low.value(x),
        low.value(y),
        low.name(""),
        bias=low.value(bias),
        alpha=float(alpha),
        beta=float(beta),
    )


@lowers("mv")
def matrix_vector(low: Lowering, matrix: fx.Node, vector: fx.Node) -> Result:
    """Lower a matrix-vector product with the vector as a column.

    onnxruntime 1.31.1 fuses a Transpose into a MatMul with a vector, which gives wrong numbers.
    """
    column = low.reshape(low.value(vector), [*shape_of(vector), 1], "column")
    product = low.builder.gemm(low.value(matrix), column, low.name("product"))
    return low.reshape(product, low.shape)
