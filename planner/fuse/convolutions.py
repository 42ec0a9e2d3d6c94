"""Convolutions that `planner.fused::DirectConv` runs: depthwise ones, and those whose kernel is nearly
as large as the image, as the exporter writes the gradients of kernels.

ONNX Runtime's Conv lays out what each result reads, one copy for each, and multiplies matrices: with
few filters a group, the copying takes most of the time (reports/fusion.md).
"""

from __future__ import annotations

import math

import onnx_ir as ir

from planner.graph.effects import Effect
from planner.graph.model import Operation, OpId, Role, TrainingGraph
from planner.graph.rules import DIRECT_CONV, FUSED_DOMAIN

_MOST_FILTERS = 32
"""The most filters of a group: with more, ONNX Runtime's products of matrices are faster."""

_LEAST_LARGER = 2
"""How many times as many elements as the result's image a kernel has at least."""


def direct_convolutions(model: ir.Model, graph: TrainingGraph) -> list[OpId]:
    """Return the convolutions that the kernel is for.

    Args:
        graph: the graph of `model`, its operations in the order of the nodes.
    """
    return [
        op.id
        for op, node in zip(graph.operations, model.graph, strict=True)
        if op.op_type == "Conv" and op.domain == "" and _is_for(graph, op, node)
    ]


def _is_for(graph: TrainingGraph, op: Operation, node: ir.Node) -> bool:
    if len(op.inputs) != 2 or op.effect is not Effect.PURE or op.role is not Role.ORIGINAL:
        return False
    image, kernel, result = (graph.tensors[t] for t in (*op.inputs, *op.outputs))
    if any(t.dtype != "float" or t.unsized or len(t.shape) != 4 for t in (image, kernel, result)):
        return False
    if node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
        return False
    filters = kernel.shape[0] // node.attributes.get_int("group", 1)
    if filters == kernel.shape[1] == 1 and math.prod(result.shape):
        return True
    results = math.prod(result.shape[2:])
    return filters <= _MOST_FILTERS and 0 < _LEAST_LARGER * results <= math.prod(kernel.shape[2:])


def put(node: ir.Node) -> None:
    """Make a Conv a node of DirectConv, under the same name."""
    attributes = node.attributes
    window = {
        "strides": attributes.get_ints("strides", (1, 1)),
        "dilations": attributes.get_ints("dilations", (1, 1)),
        "pads": attributes.get_ints("pads", (0, 0, 0, 0)),
        "group": (attributes.get_int("group", 1),),
    }
    text = " ".join(f"{name} {' '.join(map(str, values))}" for name, values in window.items())
    node.domain, node.op_type, node.version = FUSED_DOMAIN, DIRECT_CONV, 1
    attributes.clear()
    attributes.add(ir.AttrString("window", text))
