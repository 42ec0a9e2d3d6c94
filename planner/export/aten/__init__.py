"""Lowering rules, one module per family of ATen operators. Importing this registers them all.

A rule is a function of the lowering context and the operator's arguments, which appends ONNX
nodes and gives back the value of the result, or one value for each of several results.
"""

from planner.export.aten import (
    attention,
    bags,
    conv,
    create,
    dropout,
    elementwise,
    index,
    loss,
    matmul,
    norm,
    pad,
    pool,
    random,
    reduce,
    scan,
    scatter,
    shape,
    strides,
)
from planner.export.aten.registry import RULES, Lowering

__all__ = [
    "RULES",
    "Lowering",
    "attention",
    "bags",
    "conv",
    "create",
    "dropout",
    "elementwise",
    "index",
    "loss",
    "matmul",
    "norm",
    "pad",
    "pool",
    "random",
    "reduce",
    "scan",
    "scatter",
    "shape",
    "strides",
]
