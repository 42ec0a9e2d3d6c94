"""Shapes of the losses, normalizations and accumulators of onnxruntime-training 1.19.

Source: orttraining/orttraining/core/graph/training_op_defs.cc (`RegisterTrainingOpSchemas`).
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_shape_inference import OpShapeInferenceRegistry, ShapeInferenceContext

from planner.onnxio.shape_rules.like import input_at, like, output_at

_DOMAIN = "com.microsoft"


def register(registry: OpShapeInferenceRegistry) -> None:
    """Add the rules to `registry`."""
    for internal, (standard, version) in {
        "SoftmaxCrossEntropyLossInternal": ("SoftmaxCrossEntropyLoss", 13),
        "NegativeLogLikelihoodLossInternal": ("NegativeLogLikelihoodLoss", 13),
        "NegativeLogLikelihoodLossInternal2": ("NegativeLogLikelihoodLoss", 13),
    }.items():
        rule = registry.get("", standard, version=version)
        if rule is not None:
            registry.register(_DOMAIN, internal, since_version=1)(rule)
    # X, scale, B, mean, variance -> Y, running mean and variance, saved mean and inverse deviation
    registry.register(_DOMAIN, "BatchNormInternal", since_version=1)(like(0, 3, 4, 3, 4))
    registry.register(_DOMAIN, "InPlaceAccumulator", since_version=1)(like(0))
    registry.register(_DOMAIN, "ZeroGradient", since_version=1)(like(0))
    registry.register(_DOMAIN, "PassThrough", since_version=1)(like(0))
    registry.register(_DOMAIN, "InPlaceAccumulatorV2", since_version=1)(_accumulator)


def _accumulator(ctx: ShapeInferenceContext, node: ir.Node) -> None:
    """Infer one element that tells whether the buffer was written, and the buffer itself where it is
    asked for."""
    flag, buffer, target = output_at(node, 0), input_at(node, 0), output_at(node, 1)
    if flag is not None:
        ctx.set_shape_and_dtype(flag, ir.Shape([1]), ir.DataType.BOOL)
    if buffer is not None and target is not None:
        ctx.set_shape_and_dtype(target, buffer.shape, buffer.dtype)
