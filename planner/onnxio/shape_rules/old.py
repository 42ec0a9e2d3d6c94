"""Operators of old operator sets, which the library knows only from a later one on."""

from __future__ import annotations

import onnx_ir as ir
from onnx_shape_inference import OpShapeInferenceRegistry, ShapeInferenceContext

from planner.onnxio.shape_rules.like import input_at


def register(registry: OpShapeInferenceRegistry) -> None:
    """Add the rules to `registry`."""
    if registry.get("", "Slice", version=1) is None:
        registry.register("", "Slice", since_version=1)(_slice)


def _slice(ctx: ShapeInferenceContext, node: ir.Node) -> None:
    """Infer a Slice with starts and ends in attributes, as until operator set 10 (onnx,
    docs/Changelog.md)."""
    data = input_at(node, 0)
    if data is None or data.shape is None:
        return
    starts, ends = (node.attributes.get_ints(name, ()) for name in ("starts", "ends"))
    dims = list(data.shape)
    axes = node.attributes.get_ints("axes") or range(len(starts))
    for axis, start, end in zip(axes, starts, ends, strict=False):
        size = dims[axis]
        dims[axis] = ctx.new_symbolic_dim()
        if isinstance(size, int):
            dims[axis] = max(0, _within(end, size) - _within(start, size))
    ctx.set_shape_and_dtype(node.outputs[0], ir.Shape(dims), data.dtype)


def _within(place: int, size: int) -> int:
    return min(size, max(0, place + size if place < 0 else place))
