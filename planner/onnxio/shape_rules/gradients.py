"""Shapes of the gradient operators of onnxruntime-training 1.19.

A gradient has the shape of the value that it belongs to. The tables below follow the operators' schemas
in orttraining/orttraining/core/graph/training_op_defs.cc (`RegisterTrainingOpSchemas`), and for the
default domain in gradient_op_schema_defs.cc.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from onnx_shape_inference import OpShapeInferenceRegistry, ShapeInferenceContext

from planner.onnxio.shape_rules.like import input_at, like, output_at, set_like

Dim = int | ir.SymbolicDim
MICROSOFT = "com.microsoft"

_LIKE: dict[str, tuple[int | None, ...]] = {
    # dY, then X or Y: dX is of dY's shape
    **dict.fromkeys(
        (
            "ReluGrad",
            "SigmoidGrad",
            "TanhGrad",
            "QuickGeluGrad",
            "LeakyReluGrad",
            "GeluGrad",
            "FastGeluGrad",
            "BiasGeluGrad_dX",
            "BiasFastGeluGrad_dX",
            "SoftmaxGrad",
            "SoftmaxGrad_13",
            "LogSoftmaxGrad",
            "LogSoftmaxGrad_13",
            "DropoutGrad",
            "BitmaskDropoutGrad",
            "Scale",
        ),
        (0,),
    ),
    # Y_grad, X, scale, mean, inv_std_dev -> X_grad, scale_grad, bias_grad
    "LayerNormalizationGrad": (1, 2, 2),
    "SimplifiedLayerNormalizationGrad": (1, 2),
    "BatchNormalizationGrad": (1, 2, 2),
    "ResizeGrad": (1,),
    "DivGrad": (1, 2),
    # grad of the logits: dY, log_prob, label, ... -> like log_prob
    "SoftmaxCrossEntropyLossGrad": (1,),
    "SoftmaxCrossEntropyLossInternalGrad": (1,),
}

_SHAPE_INPUT = {"GatherGrad": (0, 2), "GatherNDGrad": (0, 2), "GatherElementsGrad": (1, 0)}
_SHAPE_INPUT["SliceGrad"] = (1, 0)
"""Scattering gradients: (input that holds the result's shape, input with its element type)."""

_POOLS = {"MaxPoolGrad": "MaxPool", "AveragePoolGrad": "AveragePool"}


def register(registry: OpShapeInferenceRegistry) -> None:
    """Add the rules to `registry`."""
    for op_type, sources in _LIKE.items():
        registry.register(MICROSOFT, op_type, since_version=1)(like(*sources))
    for op_type in _SHAPE_INPUT:
        registry.register(MICROSOFT, op_type, since_version=1)(_scattered)
    for op_type in ("ConvGrad", "ConvTransposeGrad"):
        registry.register(MICROSOFT, op_type, since_version=1)(_conv_grad)
    for domain in ("", MICROSOFT):
        for op_type in _POOLS:
            registry.register(domain, op_type, since_version=1)(_pool_grad)
    registry.register(MICROSOFT, "ConcatTraining", since_version=1)(_concat(registry))
    reduce_sum = registry.get("", "ReduceSum", version=13)
    if reduce_sum is not None:
        registry.register(MICROSOFT, "ReduceSumTraining", since_version=1)(reduce_sum)
    registry.register(MICROSOFT, "SplitTraining", since_version=1)(_split)
    registry.register(MICROSOFT, "BroadcastGradientArgs", since_version=1)(_broadcast_axes)


def _scattered(ctx: ShapeInferenceContext, node: ir.Node) -> None:
    """Infer the shape of a gradient that scatters, such as GatherGrad's.

    An input holds that shape as its contents: onnxruntime-training's gradient builder makes it by
    Shape(x). `_SHAPE_INPUT` names this input, and the one of the element type.
    """
    at, typed = _SHAPE_INPUT[node.op_type]
    shape, values = input_at(node, at), input_at(node, typed)
    target = output_at(node, 0)
    if shape is None or values is None or target is None:
        return
    dims = ctx.get_symbolic_value(shape)
    ctx.set_shape_and_dtype(target, None if dims is None else ir.Shape(list(dims)), values.dtype)


def _conv_grad(ctx: ShapeInferenceContext, node: ir.Node) -> None:
    """Infer dY, X, W -> dX, dW, dB, any of which may be absent. dB has an element per channel of dY."""
    like(1, 2)(ctx, node)
    gradient, bias = input_at(node, 0), output_at(node, 2)
    if gradient is None or bias is None:
        return
    known = gradient.shape is not None and gradient.shape.rank() > 1
    shape = ir.Shape([gradient.shape[1]]) if known and gradient.shape is not None else None
    ctx.set_shape_and_dtype(bias, shape, gradient.dtype)


def _pool_grad(ctx: ShapeInferenceContext, node: ir.Node) -> None:
    """Infer dX, which has the shape of the pooling node's input.

    The operator does not read that tensor: its kernel takes the shape from the output's static type
    (orttraining/training_ops/cpu/nn/pool_gradient_op.h). The rule finds the pooling node by the indices.
    """
    target, gradient = output_at(node, 0), input_at(node, 0)
    if target is None or gradient is None:
        return
    if gradient.dtype is not None:
        ctx.set_dtype(target, gradient.dtype)
    for value in node.inputs[1:]:
        pool = value.producer() if value is not None else None
        while pool is not None and pool.op_type in ("MemcpyToHost", "MemcpyFromHost", "Reshape"):
            source = pool.inputs[0]
            pool = source.producer() if source is not None else None
        if pool is not None and pool.op_type == _POOLS[node.op_type] and pool.inputs[0] is not None:
            set_like(ctx, target, pool.inputs[0])
            return


def _concat(registry: OpShapeInferenceRegistry):
    """Return the rule of Concat with a second output, the length of each input along the axis."""
    standard = registry.get("", "Concat", version=13)

    def rule(ctx: ShapeInferenceContext, node: ir.Node) -> None:
        if standard is not None:
            standard(ctx, node)
        lengths = output_at(node, 1)
        if lengths is not None:
            ctx.set_shape_and_dtype(lengths, ir.Shape([len(node.inputs)]), ir.DataType.INT64)

    return rule


def _split(ctx: ShapeInferenceContext, node: ir.Node) -> None:
    """Infer a Split whose lengths are an input."""
    data, lengths = input_at(node, 0), input_at(node, 1)
    if data is None or data.shape is None or lengths is None:
        return
    axis = node.attributes.get_int("axis", 0)
    found = ctx.get_symbolic_value(lengths)
    for index, target in enumerate(node.outputs):
        shape = None
        if found is not None and index < len(found):
            dims = list(data.shape)
            dims[axis] = found[index]
            shape = ir.Shape(dims)
        if target.name:
            ctx.set_shape_and_dtype(target, shape, data.dtype)


def _broadcast_axes(ctx: ShapeInferenceContext, node: ir.Node) -> None:
    """Infer the axes along which each of two shapes is broadcast; they depend on the shapes' values."""
    shapes = [ctx.get_symbolic_value(v) if v is not None else None for v in node.inputs[:2]]
    for target in node.outputs:
        if target.name:
            ctx.set_dtype(target, ir.DataType.INT64)
    a, b = shapes if len(shapes) == 2 else (None, None)
    if a is None or b is None or not all(isinstance(d, int) for d in (*a, *b)):
        return
    for own, other, target in ((a, b, output_at(node, 0)), (b, a, output_at(node, 1))):
        if target is not None:
            axes = _broadcast(own, other)
            ctx.set_shape(target, ir.Shape([len(axes)]))
            ctx.set_symbolic_value(target, axes)


def _broadcast(own: Sequence[Dim], other: Sequence[Dim]) -> list[Dim]:
    """Return the axes of the result along which `own` was repeated, last first.

    Axes that it lacks count too, whatever their length (core/graph/gradient_builder_base.cc,
    `ComputeBroadcastBackwardAxes`).
    """
    rank = max(len(own), len(other))
    axes: list[Dim] = []
    for back in range(1, rank + 1):
        stretched = back <= min(len(own), len(other)) and own[-back] == 1 != other[-back]
        if back > len(own) or stretched:
            axes.append(rank - back)
    return axes
