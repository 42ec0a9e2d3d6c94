"""Shapes in ONNX Runtime's blocked layout (NCHWc): the operators of the domain com.microsoft.nchwc.

A tensor in that layout has the dims of the plain one, `[batch, channels, height, width]`, with the
channels rounded up to whole blocks (core/optimizer/nchwc_transformer.cc, contrib_ops/cpu/nchwc_ops.cc).
The length of a block depends on the processor and is not in the file. The number of channels follows
from the weights of the convolution that reads the output of `ReorderInput`. Pools have this layout only
where their channels are whole blocks already.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_shape_inference import OpShapeInferenceRegistry, ShapeInferenceContext

from planner.onnxio.shape_rules.like import input_at, output_at

DOMAIN = "com.microsoft.nchwc"

_STANDARD = {
    "AveragePool": 11,
    "Conv": 11,
    "GlobalAveragePool": 1,
    "GlobalMaxPool": 1,
    "MaxPool": 11,
}
"""Operators with the shape rule of the standard operator of this version, on dims that are already
padded."""

_PASSING = frozenset({"MemcpyToHost", "MemcpyFromHost", "Reshape"})


def register(registry: OpShapeInferenceRegistry) -> None:
    """Add the rules to `registry`."""
    for op_type, version in _STANDARD.items():
        rule = registry.get("", op_type, version=version)
        if rule is not None:
            registry.register(DOMAIN, op_type, since_version=1)(rule)
    registry.register(DOMAIN, "ReorderInput", since_version=1)(_reorder_input)
    registry.register(DOMAIN, "ReorderOutput", since_version=1)(_reorder_output)
    registry.register(DOMAIN, "Upsample", since_version=1)(_upsample)


def _reorder_input(ctx: ShapeInferenceContext, node: ir.Node) -> None:
    image = _image(ctx, node)
    if image is None:
        return
    source, target, (batch, *rest) = image
    last = node.attributes.get_int("channels_last", 0)
    height, width, channels = rest if last else (*rest[1:], rest[0])
    stored = _channels_read(target)
    dims = [batch, channels if stored is None else stored, height, width]
    ctx.set_shape_and_dtype(target, ir.Shape(dims), source.dtype)


def _channels_read(value: ir.Value) -> int | None:
    """Return the channels of the weights applied to a value; None where no plain convolution reads
    it."""
    seen: set[str] = set()
    found = [value]
    while found:
        value = found.pop()
        for use in value.uses():
            node = use.node
            if node.op_type in _PASSING and use.idx == 0 and node.outputs[0].name not in seen:
                seen.add(str(node.outputs[0].name))
                found.append(node.outputs[0])
            weights = node.inputs[1] if len(node.inputs) > 1 else None
            if node.domain != DOMAIN or node.op_type != "Conv" or use.idx != 0 or weights is None:
                continue
            if weights.shape is not None:
                filters, each = weights.shape[0], weights.shape[1]
                # depthwise, with a filter for each channel: both are padded alike
                channels = filters if each == 1 else each
                group = 1 if each == 1 else node.attributes.get_int("group", 1)
                return group * channels if isinstance(channels, int) else None
    return None


def _reorder_output(ctx: ShapeInferenceContext, node: ir.Node) -> None:
    image = _image(ctx, node)
    if image is None:
        return
    source, target, (batch, _, height, width) = image
    channels = node.attributes.get_int("channels", 0)
    last = node.attributes.get_int("channels_last", 0)
    dims = [batch, height, width, channels] if last else [batch, channels, height, width]
    ctx.set_shape_and_dtype(target, ir.Shape(dims), source.dtype)


def _upsample(ctx: ShapeInferenceContext, node: ir.Node) -> None:
    source, target = input_at(node, 0), output_at(node, 0)
    scales = node.attributes.get_ints("scales")
    if source is None or target is None:
        return
    if source.shape is None or scales is None:
        ctx.set_shape_and_dtype(target, None, source.dtype)
        return
    dims = [dim * scale for dim, scale in zip(source.shape, scales, strict=True)]
    ctx.set_shape_and_dtype(target, ir.Shape(dims), source.dtype)


def _image(ctx: ShapeInferenceContext, node: ir.Node) -> tuple[ir.Value, ir.Value, ir.Shape] | None:
    """Return a node's input, its output, and the input's four dims.

    Where the dims are unknown, return None and set the output's element type alone.
    """
    source, target = input_at(node, 0), output_at(node, 0)
    if source is None or target is None:
        return None
    if source.shape is None or source.shape.rank() != 4:
        ctx.set_shape_and_dtype(target, None, source.dtype)
        return None
    return source, target, source.shape
