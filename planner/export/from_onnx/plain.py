"""Rewrite a forward ONNX model into operators that have gradients, with the same results.

It rewrites the operators that onnxsim does not differentiate: an operator into its parts, a pooling
window that crosses the edge into padding, a reduction without its axes into one that keeps them, and
computed sizes into their values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import AttributeProto, TensorProto, helper, inliner, numpy_helper
from onnx.reference import ReferenceEvaluator

from planner.onnxio.load import value_types

Shapes = Mapping[str, Sequence[int]]

_SMALL = 1 << 16
"""Largest number of elements of a value that is computed ahead: sizes, positions and masks."""

_KINDS = frozenset({TensorProto.BOOL, TensorProto.INT32, TensorProto.INT64})
"""Types of values that are computed ahead: exact, without rounding."""


def opset_of(proto: onnx.ModelProto) -> int:
    """Return the version of the standard operator set that a model imports."""
    return next(entry.version for entry in proto.opset_import if not entry.domain)


def made_plain(proto: onnx.ModelProto, known: frozenset[str]) -> onnx.ModelProto:
    """Replace the model's operators that have no gradient, as far as others are equivalent.

    Args:
        proto: changed in place; the result may be another object.
        known: operators that have a gradient.
    """
    proto = _in_parts(proto, known)
    types = value_types(ir.from_proto(proto), {})
    shapes = {
        n: tuple(k.shape) for n, k in types.items() if all(isinstance(d, int) for d in k.shape)
    }
    _fold(proto, shapes)
    nodes: list[onnx.NodeProto] = []
    for node in proto.graph.node:
        if node.op_type in {"MaxPool", "AveragePool"}:
            _pad(node, shapes)
        nodes += (
            _keeping_axes(node, shapes) if node.op_type in {"ReduceMean", "ReduceSum"} else [node]
        )
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return proto


def _in_parts(proto: onnx.ModelProto, known: frozenset[str]) -> onnx.ModelProto:
    """Inline operators without a gradient, such as `Gelu`, by ONNX's function definitions."""
    others = {node.op_type for node in proto.graph.node} - known
    made = [("", op_type) for op_type in others if _has_parts(op_type, opset_of(proto))]
    if not made:
        return proto
    for node in proto.graph.node:  # parts read attributes that the node leaves at defaults
        if ("", node.op_type) in made:
            schema: Any = onnx.defs.get_schema(node.op_type, opset_of(proto))
            given = {attribute.name for attribute in node.attribute}
            defaults = [a.default_value for a in schema.attributes.values() if a.name not in given]
            node.attribute.extend(value for value in defaults if value.name)
    return inliner.inline_selected_functions(proto, made, inline_schema_functions=True)


def _has_parts(op_type: str, opset: int) -> bool:
    schema: Any = onnx.defs.get_schema(op_type, opset)
    return schema.has_function or schema.has_context_dependent_function


def _fold(proto: onnx.ModelProto, shapes: Shapes) -> None:
    """Compute integers and booleans that depend only on constants and fixed sizes."""
    graph, imports = proto.graph, {"": opset_of(proto)}
    values = {
        t.name: numpy_helper.to_array(t)
        for t in graph.initializer
        if t.data_type in _KINDS and math.prod(t.dims) <= _SMALL
    }
    kept: list[onnx.NodeProto] = []
    outputs = {value.name for value in graph.output}
    for node in graph.node:
        found = None if outputs & set(node.output) else _computed(node, values, shapes, imports)
        if found is None:
            kept.append(node)
        for name, array in zip(node.output, found or (), strict=False):
            values[name] = array
            graph.initializer.append(numpy_helper.from_array(array, name))
    del graph.node[:]
    graph.node.extend(kept)


def _computed(
    node: onnx.NodeProto, values: Mapping[str, np.ndarray], shapes: Shapes, imports: dict[str, int]
) -> list[np.ndarray] | None:
    """Return a node's results if they are constant, small, and integer or boolean; else None."""
    if node.domain or any(
        a.type in {AttributeProto.GRAPH, AttributeProto.GRAPHS} for a in node.attribute
    ):
        return None
    given: list[np.ndarray] = []
    if node.op_type in {"Shape", "Size"} and node.input[0] in shapes:
        given = [np.broadcast_to(np.int8(0), shapes[node.input[0]])]
    elif all(name in values for name in node.input if name) and any(node.input):
        given = [values[name] for name in node.input if name]
    sizes = [
        math.prod(shapes[name]) if name in shapes else math.inf for name in node.output if name
    ]
    if not given or max(sizes) > _SMALL:
        return None
    feeds = dict(zip((name for name in node.input if name), given, strict=True))
    opsets: Any = imports
    try:
        found = ReferenceEvaluator(node, opsets=opsets).run(None, feeds)
    except Exception:  # onnx's own evaluator lacks the operator
        return None
    arrays: list[np.ndarray] = [np.asarray(value) for value in found]  # pyright: ignore[reportGeneralTypeIssues]
    return arrays if all(array.dtype.kind in "bi" for array in arrays) else None


def _pad(node: onnx.NodeProto, shapes: Shapes) -> None:
    """Replace `ceil_mode` of a pool by padding.

    Padding is in no maximum, and in no mean that excludes padding.
    """
    given = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    is_known = {node.input[0], node.output[0]} <= shapes.keys()
    if not given.get("ceil_mode") or given.get("count_include_pad") or not is_known:
        return
    if given.get("auto_pad", b"NOTSET") not in {b"NOTSET", b"VALID"}:
        return
    sizes, results = shapes[node.input[0]][2:], shapes[node.output[0]][2:]
    count = len(sizes)
    ones = [1] * count
    pads = [*given.get("pads", [0] * 2 * count)]
    for axis, (size, result, window, stride, dilation) in enumerate(
        zip(
            sizes,
            results,
            given["kernel_shape"],
            given.get("strides", ones),
            given.get("dilations", ones),
            strict=True,
        )
    ):
        reached = (result - 1) * stride + (window - 1) * dilation + 1
        pads[count + axis] += max(0, reached - size - pads[axis] - pads[count + axis])
    kept = [a for a in node.attribute if a.name not in {"ceil_mode", "pads", "auto_pad"}]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute("pads", pads)])


def _keeping_axes(node: onnx.NodeProto, shapes: Shapes) -> list[onnx.NodeProto]:
    """Replace a sum or mean that drops its axes by one that keeps them and a Squeeze."""
    keeps = [attribute for attribute in node.attribute if attribute.name == "keepdims"]
    has_axes = len(node.input) > 1 and bool(node.input[1])
    if not keeps or keeps[0].i or not has_axes or node.input[0] not in shapes:
        return [node]
    result, whole = node.output[0], f"{node.output[0]}.kept"
    keeps[0].i = 1
    node.output[0] = whole
    return [node, helper.make_node("Squeeze", [whole, node.input[1]], [result], name=whole)]
