"""Vectors that are data rather than shapes: their elements are not tracked one by one."""

from __future__ import annotations

import onnx_ir as ir
from onnx_shape_inference import OpShapeInferenceRegistry, ShapeInferenceContext

_LONGEST = 64
"""The most elements of a vector that may be a shape, or several: ONNX Runtime's tensors have at most
8 axes."""

_SHAPES = (ir.DataType.INT64, ir.DataType.INT32, None)


def register(registry: OpShapeInferenceRegistry) -> None:
    """Add the rule to `registry`."""
    of_library = registry.get("", "Concat", version=13)
    assert of_library is not None

    def concat(ctx: ShapeInferenceContext, node: ir.Node) -> None:
        """Infer a Concat; the library would make millions of symbols for the elements of concatenated
        gradients."""
        length = _length(node)
        if length is None or (length <= _LONGEST and _dtype(node) in _SHAPES):
            of_library(ctx, node)
        else:
            ctx.set_shape_and_dtype(node.outputs[0], ir.Shape([length]), _dtype(node))

    registry.register("", "Concat", since_version=5)(concat)


def _length(node: ir.Node) -> int | None:
    """Return the length of a vector concatenated from vectors; None where it is no vector or unknown."""
    length = 0
    for value in node.inputs:
        shape = value.shape if value is not None else None
        size = shape[0] if shape is not None and shape.rank() == 1 else None
        if not isinstance(size, int):
            return None
        length += size
    return length


def _dtype(node: ir.Node) -> ir.DataType | None:
    return next((v.dtype for v in node.inputs if v is not None and v.dtype is not None), None)
