"""Shape rules for operators that the shape-inference library does not know."""

from __future__ import annotations

import functools

import onnx_ir as ir
from onnx_shape_inference import ShapeInferenceContext, registry

_FUSED = {"FusedGemm": ("Gemm", 13), "FusedConv": ("Conv", 11)}
"""Operators of com.microsoft with an activation fused in, each with the standard one it has the
shape of, and that one's version."""


@functools.cache
def register() -> None:
    """Register all rules, once."""
    registry.collect()
    for fused, (standard, version) in _FUSED.items():
        rule = registry.get("", standard, version=version)
        if rule is not None:
            registry.register("com.microsoft", fused, since_version=1)(rule)
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
