"""Operators of com.microsoft whose kernels only training builds of ONNX Runtime have.

Their kernels declare neither `MayInplace` nor `Alias` (orttraining/training_ops/cpu), except for
the accumulators and BatchNormInternal. Kernels of state updates may write over their state inputs,
whatever the graph says.
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.graph.operators.row import (
    FIRST,
    MOVES,
    MOVES_ALL,
    NOTHING,
    Cost,
    Effect,
    Operator,
    T,
    alike,
    made,
    read,
)

PURE = Effect.PURE

TRAINING: Mapping[str, Operator] = {
    **alike(
        PURE,
        """
        BitmaskDropoutGrad ConvTransposeGrad NegativeLogLikelihoodLossInternal
        NegativeLogLikelihoodLossInternal2""",
    ),
    **alike(
        Effect.STATE_UPDATE,
        "ReduceAllL2",
    ),
    **alike(
        Effect.OUTSIDE,
        "YieldOp",
    ),
    # two moments, two bias corrections, a root, the step
    "AdamOptimizer": Operator(Effect.STATE_UPDATE, read(T + 12)),
    "AdamWOptimizer": Operator(Effect.STATE_UPDATE, read(T + 12)),
    "AveragePoolGrad": Operator(PURE, Cost("window of gradient")),
    # running mean and variance (orttraining/training_ops/cpu/nn/batch_norm_internal.cc)
    "BatchNormInternal": Operator(
        Effect.RUNNING_STATISTICS, read(8), aliases=((3, 1), (4, 2)), state=(3, 4), over_batch=True
    ),
    "BatchNormalizationGrad": Operator(PURE, read(13), over_batch=True),
    "BiasFastGeluGrad_dX": Operator(PURE, made(2 * T + 6), workspace="one intermediate"),
    "BiasGeluGrad_dX": Operator(PURE, made(2 * T + 6), workspace="one intermediate"),
    "BroadcastGradientArgs": Operator(PURE, NOTHING),
    "ConcatTraining": Operator(PURE, MOVES),
    "ConvGrad": Operator(PURE, Cost("convolution gradient"), workspace="convolution gradient"),
    "DivGrad": Operator(PURE, made(4)),
    "DropoutGrad": Operator(PURE, made(1)),
    "FastGeluGrad": Operator(PURE, made(2 * T + 6)),
    "GatherElementsGrad": Operator(PURE, MOVES_ALL),
    # orttraining/training_ops/cpu/tensor/gather_grad.cc, gather_nd_grad.cc
    "GatherGrad": Operator(Effect.ANY_ORDER, MOVES_ALL),
    "GatherNDGrad": Operator(Effect.ANY_ORDER, MOVES_ALL),
    "GeluGrad": Operator(PURE, made(2 * T + 6)),
    # orttraining/training_ops/cpu/optimizer/gradient_control.cc
    "InPlaceAccumulator": Operator(Effect.STATE_UPDATE, MOVES_ALL, aliases=FIRST, writes=(0,)),
    "InPlaceAccumulatorV2": Operator(
        Effect.STATE_UPDATE, MOVES_ALL, aliases=((0, 1),), writes=(0,)
    ),
    "LambOptimizer": Operator(Effect.STATE_UPDATE, read(T + 12)),
    # two sums over the row, and the combination
    "LayerNormalizationGrad": Operator(PURE, read(13)),
    "LeakyReluGrad": Operator(PURE, made(2)),
    "LogSoftmaxGrad": Operator(PURE, read(4)),
    "LogSoftmaxGrad_13": Operator(PURE, read(4), workspace="softmax gradient"),
    "MaxPoolGrad": Operator(PURE, read(2)),
    "PassThrough": Operator(PURE, MOVES),
    "QuickGeluGrad": Operator(PURE, made(2 * T + 6)),
    "ReduceSumTraining": Operator(PURE, read(1)),
    "ReluGrad": Operator(PURE, made(1)),
    "ResizeGrad": Operator(PURE, made(8)),
    "SGDOptimizer": Operator(Effect.STATE_UPDATE, read(4)),
    "SGDOptimizerV2": Operator(Effect.STATE_UPDATE, read(4)),
    "Scale": Operator(PURE, made(1)),
    "SigmoidGrad": Operator(PURE, made(3)),
    "SimplifiedLayerNormalizationGrad": Operator(PURE, read(13)),
    "SliceGrad": Operator(PURE, MOVES_ALL),
    "SoftmaxCrossEntropyLossGrad": Operator(PURE, read(3)),
    "SoftmaxCrossEntropyLossInternal": Operator(PURE, read(T + 5)),
    "SoftmaxCrossEntropyLossInternalGrad": Operator(PURE, read(3)),
    "SoftmaxGrad": Operator(PURE, read(4)),
    "SoftmaxGrad_13": Operator(PURE, read(4), workspace="softmax gradient"),
    "SplitTraining": Operator(PURE, MOVES),
    "TanhGrad": Operator(PURE, made(3)),
    "ZeroGradient": Operator(Effect.STATE_UPDATE, MOVES_ALL, aliases=FIRST, writes=(0,)),
}
