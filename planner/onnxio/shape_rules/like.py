"""The most common rule of gradient operators: an output has the type and shape of an input."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
from onnx_shape_inference import ShapeInferenceContext

Rule = Callable[[ShapeInferenceContext, ir.Node], None]


def like(*sources: int | None) -> Rule:
    """Return a rule that gives output k the type and shape of input `sources[k]`; None leaves it
    open."""

    def rule(ctx: ShapeInferenceContext, node: ir.Node) -> None:
        for target, source in zip(node.outputs, sources, strict=False):
            value = input_at(node, source) if source is not None else None
            if value is not None and target.name:
                set_like(ctx, target, value)

    return rule


def copied(ctx: ShapeInferenceContext, node: ir.Node) -> None:
    """Infer a copy: the output is the input, known elements (a computed shape) included."""
    source = input_at(node, 0)
    target = output_at(node, 0)
    if source is None or target is None:
        return
    set_like(ctx, target, source)
    elements = ctx.get_symbolic_value(source)
    if elements is not None:
        ctx.set_symbolic_value(target, elements)


def set_like(ctx: ShapeInferenceContext, target: ir.Value, source: ir.Value) -> None:
    """Give `target` the type and shape of `source`, as far as they are known."""
    if source.shape is not None:
        ctx.set_shape(target, source.shape)
    if source.dtype is not None:
        ctx.set_dtype(target, source.dtype)


def input_at(node: ir.Node, index: int) -> ir.Value | None:
    """Return the input at `index`; None where it is absent."""
    return node.inputs[index] if index < len(node.inputs) else None


def output_at(node: ir.Node, index: int) -> ir.Value | None:
    """Return the output at `index`; None where it is absent or has no name."""
    if index >= len(node.outputs) or not node.outputs[index].name:
        return None
    return node.outputs[index]
