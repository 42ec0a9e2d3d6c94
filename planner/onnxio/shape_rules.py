"""Shape rules for operators that the shape-inference library does not know."""

from __future__ import annotations

import functools

import onnx_ir as ir
from onnx_shape_inference import ShapeInferenceContext, registry


@functools.cache
def register() -> None:
    """Register all rules, once."""
    for op_type in ("MemcpyToHost", "MemcpyFromHost"):
        registry.register("", op_type, since_version=1)(_same_as_input)


def _same_as_input(ctx: ShapeInferenceContext, node: ir.Node) -> None:
    """A copy has the type and shape of what it copies."""
    source = node.inputs[0]
    if source is None:
        return
    if source.shape is not None:
        ctx.set_shape(node.outputs[0], source.shape)
    if source.dtype is not None:
        ctx.set_dtype(node.outputs[0], source.dtype)
