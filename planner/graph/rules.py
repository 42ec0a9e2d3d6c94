"""What ONNX Runtime does with each operator's buffers, and which operators may run twice.

Four questions per operator, answered for onnxruntime 1.31 and onnxruntime-training 1.19.2 on the CPU.
The first three are measured: `reports/ort_facts.py` runs every operator below (and those that share
nothing) and reads ONNX Runtime's memory events; `tests/graph/test_rules.py` measures a sample again,
`tests/training/test_kernels.py` the operators of the training build, under hard caps.

    view_input     which input the first output aliases (no work, no memory)
    alias_pairs    which outputs of an operator that does work are an input's buffer, written over
    inplace_pairs  which output may be written over which input when that input has no later reader
    effect         why an operator may not be run a second time ("" where it may)

No gradient operator of com.microsoft computes in place: their kernels declare neither `MayInplace` nor
`Alias` (orttraining/training_ops/cpu), but for the accumulators and BatchNormInternal.

An operator that is not listed gets a buffer of its own for each output. Where that is wrong
(another execution provider, say), it errs towards more memory.
"""

from __future__ import annotations

from collections.abc import Mapping

_ONNX = frozenset({"", "ai.onnx"})
_KNOWN_DOMAINS = _ONNX | {"com.microsoft", "ai.onnx.ml", "com.microsoft.nchwc"}

TO_HOST, FROM_HOST = "MemcpyToHost", "MemcpyFromHost"
COPIES = frozenset({TO_HOST, FROM_HOST})

VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})

INPLACE_UNARY = frozenset(
    {
        "Cast",  # between types of one size: shape and bytes must agree, which the caller checks
        "Celu",
        "Clip",
        "Elu",
        "HardSigmoid",
        "LeakyRelu",
        "LogSoftmax",
        "Relu",
        "ScatterElements",
        "Selu",
        "Sigmoid",
        "Softmax",
        "Softplus",
        "Softsign",
        "Tanh",
        "ThresholdedRelu",
        "Trilu",
    }
)

_RANDOM = frozenset(
    {
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Multinomial",
        "Bernoulli",
        "BitmaskDropout",
        "BiasDropout",
        "BitmaskBiasDropout",
        "Sampling",
    }
)

_CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap", "BeamSearch", "GreedySearch"})

_EVENTS = frozenset({"YieldOp", "RecordEvent", "WaitEvent", "NcclAllReduce", "PythonOp"})

_CONTAINERS = frozenset(
    {
        "SequenceAt",
        "SequenceConstruct",
        "SequenceEmpty",
        "SequenceErase",
        "SequenceInsert",
        "SequenceLength",
        "SplitToSequence",
        "ConcatFromSequence",
        "Optional",
        "OptionalGetElement",
        "OptionalHasElement",
    }
)

_UPDATES = frozenset(
    {
        "Adagrad",
        "Adam",
        "Momentum",
        "AdamOptimizer",
        "AdamWOptimizer",
        "SGDOptimizer",
        "SGDOptimizerV2",
        "LambOptimizer",
        "InPlaceAccumulator",
        "InPlaceAccumulatorV2",
        "GradientAccumulator",
        "ReduceAllL2",
        "ZeroGradient",
        "Assign",
    }
)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PURE_FUSIONS = _names(
    "Attention BiasAdd BiasGelu BiasSoftmax BiasSplitGelu DequantizeLinear DynamicQuantizeMatMul "
    "EmbedLayerNormalization ExpandDims FastGelu FusedConv FusedGemm FusedMatMul "
    "FusedMatMulActivation GatherND Gelu GemmFastGelu GridSample GroupNorm GroupQueryAttention "
    "Inverse Irfft LayerNormalization MatMulIntegerToFloat MatMulNBits MultiHeadAttention NhwcConv "
    "NhwcFusedConv NhwcMaxPool Pad QuantizeLinear QuickGelu RMSNormalization Range Rfft "
    "RotaryEmbedding SimplifiedLayerNormalization SkipGroupNorm SkipLayerNormalization "
    "SkipSimplifiedLayerNormalization TransposeMatMul"
)
"""Operators of com.microsoft that may run twice (docs/ContribOperators.md). Of one that is neither
here nor in `_PURE_TRAINING`, nothing is known."""

_PURE_TRAINING = _names(
    "AveragePoolGrad BatchNormalizationGrad BiasFastGeluGrad_dX BiasGeluGrad_dX BitmaskDropoutGrad "
    "BroadcastGradientArgs ConcatTraining ConvGrad ConvTransposeGrad DivGrad DropoutGrad FastGeluGrad "
    "GatherElementsGrad GatherGrad GatherNDGrad GeluGrad LayerNormalizationGrad LeakyReluGrad "
    "LogSoftmaxGrad LogSoftmaxGrad_13 MaxPoolGrad NegativeLogLikelihoodLossInternal "
    "NegativeLogLikelihoodLossInternal2 PassThrough QuickGeluGrad ReduceSumTraining ReluGrad "
    "ResizeGrad Scale SigmoidGrad SimplifiedLayerNormalizationGrad SliceGrad "
    "SoftmaxCrossEntropyLossGrad SoftmaxCrossEntropyLossInternal "
    "SoftmaxCrossEntropyLossInternalGrad SoftmaxGrad SoftmaxGrad_13 SplitTraining TanhGrad"
)
"""Operators that only builds with training have, and that may run twice
(orttraining/core/graph/training_op_defs.cc)."""

TRAINING_OPERATORS = _PURE_TRAINING | _names(
    "AdamOptimizer AdamWOptimizer BatchNormInternal InPlaceAccumulator InPlaceAccumulatorV2 "
    "LambOptimizer ReduceAllL2 SGDOptimizer SGDOptimizerV2 YieldOp ZeroGradient"
)
"""Operators without which a build of ONNX Runtime has no kernels for training."""

_ALIASES: dict[str, tuple[tuple[int, int], ...]] = {
    # orttraining/training_ops/cpu/nn/batch_norm_internal.cc: running mean and variance
    "BatchNormInternal": ((3, 1), (4, 2)),
    # orttraining/training_ops/cpu/optimizer/gradient_control.cc
    "InPlaceAccumulator": ((0, 0),),
    "InPlaceAccumulatorV2": ((0, 1),),
    "ZeroGradient": ((0, 0),),
}

_ACCUMULATORS = frozenset({"InPlaceAccumulator", "InPlaceAccumulatorV2", "ZeroGradient"})


ADDS_IN_ANY_ORDER = frozenset({"GatherGrad", "GatherNDGrad"})
"""CPU kernels whose threads add to one place in the order in which they get there, so that two runs
differ by rounding (orttraining/training_ops/cpu/tensor/gather_grad.cc, gather_nd_grad.cc)."""


def view_input(op_type: str, domain: str) -> int | None:
    """Index of the input that the first output aliases, or None."""
    return 0 if domain in _ONNX and op_type in VIEWS else None


def inplace_pairs(op_type: str, domain: str) -> tuple[tuple[int, int], ...]:
    """(input index, output index) pairs that the CPU kernel may compute in place.

    ONNX Runtime also wants input and output of one shape and element size, and never writes over
    a graph input, an initializer or into a graph output.
    """
    return ((0, 0),) if domain in _ONNX and op_type in INPLACE_UNARY else ()


def alias_pairs(op_type: str, domain: str) -> tuple[tuple[int, int], ...]:
    """(input index, output index) pairs that are one buffer: the kernel writes over its input.

    Unlike in place, this holds for graph inputs and initializers, and whoever else reads them. Only a
    graph output gets a buffer of its own.
    """
    return _ALIASES.get(op_type, ()) if domain == "com.microsoft" else ()


def written_inputs(op_type: str, domain: str, training: bool) -> tuple[int, ...]:
    """Inputs whose buffers the kernel leaves changed: its effect beyond its outputs.

    An accumulator writes its sum over the buffer that it reads; see also `state_inputs`.
    """
    if op_type in _ACCUMULATORS and domain == "com.microsoft":
        return (0,)
    return state_inputs(op_type, domain, training)


def effect(op_type: str, domain: str, attributes: Mapping[str, object], training: bool) -> str:
    """Why this operator may not run a second time, or "" where a second run changes nothing.

    Args:
        training: for BatchNormalization and Dropout, whether the node is in training mode.
    """
    if op_type in _RANDOM:
        return f"{op_type} draws random numbers"
    if op_type == "Dropout" and training:
        # a fixed seed starts one generator, which each run advances
        return "training-mode Dropout, with a fixed seed too, draws random numbers"
    if op_type == "BatchNormInternal" or (op_type == "BatchNormalization" and training):
        # the kernel writes the running statistics over its mean and variance inputs, feeds and
        # initializers included, unless they are graph outputs, as a copy's never are (measured)
        return f"training-mode {op_type} updates its running statistics in place"
    if op_type in _UPDATES or op_type.endswith(("Optimizer", "OptimizerV2")):
        return f"{op_type} updates state: a second run would apply the update again"
    if op_type in _CONTROL_FLOW or attributes.get("body") or attributes.get("then_branch"):
        return f"{op_type} runs a subgraph, whose effects we don't know"
    if op_type in _EVENTS:
        return f"{op_type} acts outside the graph"
    if op_type in _CONTAINERS:
        return f"{op_type} works on sequences or optionals, whose memory we don't know"
    if op_type == "EPContext":
        return "EPContext runs a compiled graph, whose effects we don't know"
    if op_type in ADDS_IN_ANY_ORDER:
        return f"{op_type} adds in an order that differs from run to run"
    if domain == "com.microsoft" and op_type not in _PURE_FUSIONS | _PURE_TRAINING:
        return f"{op_type} is an operator of com.microsoft whose effects we don't know"
    if domain not in _KNOWN_DOMAINS:
        return f"{op_type} is of the domain {domain!r}, whose effects we don't know"
    return ""


def state_inputs(op_type: str, domain: str, training: bool) -> tuple[int, ...]:
    """Inputs that the kernel writes over though its other outputs do not depend on them.

    Training-mode BatchNormalization writes the running statistics over its mean and variance
    inputs, and so does BatchNormInternal, which is always in training mode. Given other buffers for
    those, a second run is as good as the first.
    """
    standard = op_type == "BatchNormalization" and domain in _ONNX and training
    internal = op_type == "BatchNormInternal" and domain == "com.microsoft"
    return (3, 4) if standard or internal else ()
