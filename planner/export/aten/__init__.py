"""Lowering rules, one module per family of ATen operators. Importing this package registers them all.

A rule is a function of the lowering context and the operator's arguments. It appends ONNX nodes and
returns the value of the result, or one value for each of several results.
"""

from planner.export.aten import (
    attention,
    create,
    dropout,
    elementwise,
    loss,
    matmul,
    norm,
    random,
    reduce,
    scan,
    shape,
)
from planner.export.aten.indexing import bags, index, scatter, strides
from planner.export.aten.registry import RULES, Lowering
from planner.export.aten.spatial import conv, pad, pool

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
