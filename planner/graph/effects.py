"""What an operator does beyond its outputs, and whether it may therefore run a second time.

One table classifies every operator: those of the ONNX standard, and those that ONNX Runtime has besides.
`tests/graph/test_effects.py` walks the lists of schemas that onnx and ONNX Runtime have and compares the
table with what onnx says of determinism, so that no operator of a later version is forgotten. What is not
in the table is not known, and what is not known is never run twice.

Three kinds are only a kind in some nodes; `effect_of` looks at the node:

    random               with a `seed` the kernel starts a generator of its own, which each run advances
    training-mode        Dropout and BatchNormalization do nothing of the kind at inference
    adds in any order    ScatterND only where it reduces

Sources: docs/Operators.md of onnx; docs/ContribOperators.md and the CPU kernels of onnxruntime 1.31
(core/providers/cpu/generator/random.h: without a seed, a kernel starts its generator from the session's
seed plus the node's place in the file); orttraining/core/graph/training_op_defs.cc of 1.19.2.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping

ONNX_DOMAINS = frozenset({"", "ai.onnx"})


class Effect(enum.StrEnum):
    """What a run of an operation does, or needs, that its inputs and outputs do not show."""

    PURE = "pure"
    RANDOM_SEEDED = "random, with a seed of its own"
    RANDOM_UNSEEDED = "random, without a seed"
    RANDOM_IN_TRAINING = "random in training mode"
    RUNNING_STATISTICS = "running statistics"
    STATE_UPDATE = "state update"
    CONTROL_FLOW = "control flow"
    OUTSIDE = "outside the graph"
    CONTAINER = "sequence, optional or strings"
    COMPILED = "compiled graph"
    ANY_ORDER = "adds in any order"
    LEFT_ON_HOST = "leaves its result on the host"
    UNKNOWN_OPERATOR = "unknown operator"
    UNKNOWN_DOMAIN = "unknown domain"

    @property
    def is_random(self) -> bool:
        """Whether the operation draws random numbers."""
        return self in _RANDOM

    @property
    def is_known(self) -> bool:
        """Whether the table says anything of the operator."""
        return self not in (Effect.UNKNOWN_OPERATOR, Effect.UNKNOWN_DOMAIN)


_RANDOM = (Effect.RANDOM_SEEDED, Effect.RANDOM_UNSEEDED, Effect.RANDOM_IN_TRAINING)

SHARED_GENERATOR = frozenset({Effect.RANDOM_UNSEEDED, Effect.RANDOM_IN_TRAINING})
"""Draws whose numbers may depend on what was drawn before by another operation."""

_TRAINING_PURE = """
    AveragePoolGrad BatchNormalizationGrad BiasFastGeluGrad_dX BiasGeluGrad_dX BitmaskDropoutGrad
    BroadcastGradientArgs ConcatTraining ConvGrad ConvTransposeGrad DivGrad DropoutGrad FastGeluGrad
    GatherElementsGrad GeluGrad LayerNormalizationGrad LeakyReluGrad LogSoftmaxGrad LogSoftmaxGrad_13
    MaxPoolGrad NegativeLogLikelihoodLossInternal NegativeLogLikelihoodLossInternal2 PassThrough
    QuickGeluGrad ReduceSumTraining ReluGrad ResizeGrad Scale SigmoidGrad
    SimplifiedLayerNormalizationGrad SliceGrad SoftmaxCrossEntropyLossGrad
    SoftmaxCrossEntropyLossInternal SoftmaxCrossEntropyLossInternalGrad SoftmaxGrad SoftmaxGrad_13
    SplitTraining TanhGrad"""

_TRAINING_ANY_ORDER = "GatherGrad GatherNDGrad"
_TRAINING_STATISTICS = "BatchNormInternal"
_TRAINING_UPDATES = """
    AdamOptimizer AdamWOptimizer InPlaceAccumulator InPlaceAccumulatorV2 LambOptimizer ReduceAllL2
    SGDOptimizer SGDOptimizerV2 ZeroGradient"""

TRAINING_OPERATORS = frozenset(
    f"{_TRAINING_PURE} {_TRAINING_ANY_ORDER} {_TRAINING_STATISTICS} {_TRAINING_UPDATES} YieldOp".split()
)
"""Operators without which a build of ONNX Runtime has no kernels for training."""

_TABLE: Mapping[Effect, Mapping[str, str]] = {
    Effect.PURE: {
        "": """
            Abs Acos Acosh Add AffineGrid And ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool
            BitCast BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor BlackmanWindow Cast CastLike
            CausalConvWithState Ceil Celu CenterCropPad Clip Col2Im Compress Concat Constant
            ConstantOfShape Conv ConvInteger ConvTranspose Cos Cosh CumProd CumSum DFT DeformConv
            DepthToSpace DequantizeLinear Det Div DynamicQuantizeLinear Einsum Elu Equal Erf Exp Expand
            EyeLike Flatten Floor GRU Gather GatherElements GatherND Gelu Gemm GlobalAveragePool
            GlobalLpPool GlobalMaxPool Greater GreaterOrEqual GridSample GroupNormalization
            HammingWindow HannWindow HardSigmoid HardSwish Hardmax Identity ImageDecoder
            InstanceNormalization IsInf IsNaN LRN LSTM LayerNormalization LeakyRelu Less LessOrEqual
            LinearAttention Log LogSoftmax LpNormalization LpPool MatMul MatMulInteger Max MaxPool
            MaxRoiPool MaxUnpool Mean MeanVarianceNormalization MelWeightMatrix Min Mish Mod Mul Neg
            NegativeLogLikelihoodLoss NonMaxSuppression NonZero Not OneHot Or PRelu Pad Pow QLinearConv
            QLinearMatMul QuantizeLinear RMSNormalization RNN Range Reciprocal ReduceL1 ReduceL2
            ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
            ReduceSumSquare RegexFullMatch Relu Reshape Resize ReverseSequence RoiAlign RotaryEmbedding
            Round STFT Scatter ScatterElements Selu Shape Shrink Sigmoid Sign Sin Sinh Size Slice
            Softmax SoftmaxCrossEntropyLoss Softplus Softsign SpaceToDepth Split Sqrt Squeeze
            StringConcat StringNormalizer StringSplit Sub Sum SwiGLU Swish Tan Tanh TensorScatter
            TfIdfVectorizer ThresholdedRelu Tile TopK Transpose Trilu Unique Unsqueeze Upsample Where
            Xor
            MemcpyFromHost MemcpyToHost SimplifiedLayerNormalization AveragePoolGrad MaxPoolGrad""",
        "ai.onnx.ml": """
            ArrayFeatureExtractor Binarizer CastMap CategoryMapper DictVectorizer FeatureVectorizer
            Imputer LabelEncoder LinearClassifier LinearRegressor Normalizer OneHotEncoder
            SVMClassifier SVMRegressor Scaler TreeEnsemble TreeEnsembleClassifier
            TreeEnsembleRegressor ZipMap""",
        "com.microsoft": f"""
            {_TRAINING_PURE}
            Attention BiasAdd BiasGelu BiasSoftmax BiasSplitGelu BranchwiseRMSNorm CDist ComplexMul
            ComplexMulConj ConvTransposeWithDynamicPads CropAndResize DequantizeBFP DequantizeLinear
            DequantizeWithOrder DynamicQuantizeLSTM DynamicQuantizeMatMul EmbedLayerNormalization
            ExpandDims FastGelu FusedConv FusedGemm FusedMatMul FusedMatMulActivation
            GatedRelativePositionBias GatherBlockQuantized GatherND Gelu GemmFastGelu GemmFloat8
            GemmaRotaryEmbedding GridSample GroupNorm GroupQueryAttention Inverse Irfft IsAllFinite
            LayerNormalization LongformerAttention MatMulBnb4 MatMulFpQ4 MatMulInteger16
            MatMulIntegerToFloat MatMulNBits MaxpoolWithMask MulInteger MultiHeadAttention
            MurmurHash3 NGramRepeatBlock NhwcConv NhwcFusedConv NhwcMaxPool PackedAttention
            PackedMultiHeadAttention Pad QAttention QEmbedLayerNormalization QGemm QLinearAdd
            QLinearAveragePool QLinearConcat QLinearConv QLinearGlobalAveragePool QLinearLeakyRelu
            QLinearMul QLinearReduceMean QLinearSigmoid QLinearSoftmax QLinearWhere QOrderedAttention
            QOrderedGelu QOrderedLayerNormalization QOrderedLongformerAttention QOrderedMatMul
            QuantizeBFP QuantizeLinear QuantizeWithOrder QuickGelu RMSNormalization Range
            ReduceSumInteger RelativePositionBias RemovePadding RestorePadding Rfft RotaryEmbedding
            SampleOp ScaledSiLU SimplifiedLayerNormalization SkipGroupNorm SkipLayerNormalization
            SkipSimplifiedLayerNormalization SparseToDenseMatMul Tokenizer TorchEmbedding
            TransposeMatMul Trilu UnfoldTensor Unique WordConvEmbedding""",
        "planner.fused": "Pointwise",
        "com.microsoft.nchwc": """
            AveragePool Conv GlobalAveragePool GlobalMaxPool MaxPool ReorderInput ReorderOutput
            Upsample""",
    },
    Effect.RANDOM_UNSEEDED: {
        "": """
            Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike""",
    },
    Effect.RANDOM_IN_TRAINING: {
        "": "Dropout",
        "com.microsoft": "BiasDropout BitmaskBiasDropout BitmaskDropout",
    },
    Effect.RUNNING_STATISTICS: {
        "": "BatchNormalization",
        "com.microsoft": _TRAINING_STATISTICS,
    },
    # the kernels may write over the state that they are given, whatever the graph says
    Effect.STATE_UPDATE: {
        "ai.onnx.preview.training": "Adagrad Adam Momentum",
        "com.microsoft": f"""
            {_TRAINING_UPDATES} Assign GradientAccumulator
            DecoderAttention DecoderMaskedMultiHeadAttention DecoderMaskedSelfAttention PagedAttention
            SparseAttention SparsePagedAttention""",
    },
    Effect.CONTROL_FLOW: {
        "": "If Loop Scan SequenceMap",
        "ai.onnx.preview": "FlexAttention",
        "ai.onnx.preview.training": "Gradient",
        "com.microsoft": "BeamSearch GreedySearch Sampling WhisperBeamSearch",
    },
    Effect.OUTSIDE: {
        "planner.swap": "LoadIn StoreOut StoreTo SwapBegin SwapIn SwapInDone SwapOut SwapOutDone",
        "com.microsoft": "NcclAllReduce PythonOp RecordEvent WaitEvent YieldOp",
    },
    Effect.CONTAINER: {
        "": """
            ConcatFromSequence Optional OptionalGetElement OptionalHasElement SequenceAt
            SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength
            SplitToSequence""",
    },
    Effect.COMPILED: {
        "com.microsoft": "EPContext Snpe",
    },
    Effect.ANY_ORDER: {
        # its threads add to one place without waiting for each other (measured on the CPU:
        # sums of 20,000 rows into 8 lose whole rows; core/providers/cpu/tensor/scatter_nd.cc)
        "": "ScatterND",
        # orttraining/training_ops/cpu/tensor/gather_grad.cc, gather_nd_grad.cc
        "com.microsoft": _TRAINING_ANY_ORDER,
    },
    # without a description or a CPU kernel that says what they do to what they are given
    Effect.UNKNOWN_OPERATOR: {
        "com.microsoft": """
            AttnLSTM BifurcationDetector CausalConvWithState DynamicSparseAttention DynamicTimeWarping
            EngramGate GatedAdd GatedDeltaNet GatedRMSNorm HyperConnectionPostMix HyperConnectionPreMix
            LinearAttention LinearAttentionGate MRotaryEmbedding MatMulBlockQuantizedFp4Weight
            MatMulBlockQuantizedFp8Weight MatMulNBitsMlp MatMulNBitsQkv MoE NGramHashMapping
            PackedSparseAttentionIndexer QMoE SparseAttentionIndexer VarlenCausalConvWithState
            VarlenNGramHashMapping""",
    },
}


def _entries() -> Iterator[tuple[tuple[str, str], Effect]]:
    for effect, domains in _TABLE.items():
        for domain, names in domains.items():
            for name in names.split():
                yield (domain, name), effect


_BY_OPERATOR = dict(_entries())
_DOMAINS = frozenset(domain for domain, _ in _BY_OPERATOR)


def kind_of(op_type: str, domain: str) -> Effect | None:
    """The operator's entry in the table, whatever its attributes and mode; None where it has none."""
    return _BY_OPERATOR.get(("" if domain in ONNX_DOMAINS else domain, op_type))


def effect_of(
    op_type: str,
    domain: str,
    attributes: Mapping[str, object],
    *,
    training: bool = False,
    has_subgraph: bool = False,
) -> Effect:
    """What a run of this node does.

    Args:
        attributes: plain values by name; whether there is a `seed` or a `reduction` matters.
        training: for BatchNormalization and Dropout, whether the node is in training mode.
        has_subgraph: some attribute of the node is a graph.
    """
    if has_subgraph:
        return Effect.CONTROL_FLOW
    kind = kind_of(op_type, domain)
    if kind is None:
        known = domain in _DOMAINS | ONNX_DOMAINS
        return Effect.UNKNOWN_OPERATOR if known else Effect.UNKNOWN_DOMAIN
    if domain in ONNX_DOMAINS and op_type in ("BatchNormalization", "Dropout") and not training:
        return Effect.PURE
    if kind in (Effect.RANDOM_UNSEEDED, Effect.RANDOM_IN_TRAINING) and "seed" in attributes:
        return Effect.RANDOM_SEEDED
    if op_type == "ScatterND" and attributes.get("reduction", "none") == "none":
        return Effect.PURE
    return kind
