"""Operators of com.microsoft in every build of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping

from planner.graph.operators.row import (
    ATTENTION,
    CONVOLUTION,
    MOVES,
    MOVES_ALL,
    PRODUCT,
    WINDOW,
    Effect,
    Operator,
    T,
    alike,
    made,
    read,
)

PURE = Effect.PURE

CONTRIB: Mapping[str, Operator] = {
    # the kernels may write over their state inputs, whatever the graph says
    **alike(
        Effect.STATE_UPDATE,
        """
        Assign DecoderAttention DecoderMaskedMultiHeadAttention DecoderMaskedSelfAttention
        GradientAccumulator PagedAttention SparseAttention SparsePagedAttention""",
    ),
    # no description and no CPU kernel says what they do to their inputs
    **alike(
        Effect.UNKNOWN_OPERATOR,
        """
        AttnLSTM BifurcationDetector CausalConvWithState DynamicSparseAttention DynamicTimeWarping
        EngramGate GatedAdd GatedDeltaNet GatedRMSNorm HyperConnectionPostMix
        HyperConnectionPreMix LinearAttention LinearAttentionGate MRotaryEmbedding
        MatMulBlockQuantizedFp4Weight MatMulBlockQuantizedFp8Weight MatMulNBitsMlp MatMulNBitsQkv
        MoE NGramHashMapping PackedSparseAttentionIndexer QMoE SparseAttentionIndexer
        VarlenCausalConvWithState VarlenNGramHashMapping""",
    ),
    **alike(
        Effect.CONTROL_FLOW,
        "BeamSearch GreedySearch Sampling WhisperBeamSearch",
    ),
    **alike(
        PURE,
        """
        BiasAdd BiasSplitGelu BranchwiseRMSNorm CDist ComplexMul ComplexMulConj
        ConvTransposeWithDynamicPads CropAndResize DequantizeBFP DequantizeLinear
        DequantizeWithOrder EmbedLayerNormalization ExpandDims GatedRelativePositionBias
        GatherBlockQuantized GemmFastGelu GemmFloat8 GemmaRotaryEmbedding GridSample
        GroupQueryAttention Inverse Irfft IsAllFinite LongformerAttention MatMulBnb4 MatMulFpQ4
        MatMulInteger16 MatMulIntegerToFloat MaxpoolWithMask MulInteger MurmurHash3
        NGramRepeatBlock NhwcFusedConv PackedAttention PackedMultiHeadAttention
        QEmbedLayerNormalization QGemm QLinearAdd QLinearAveragePool QLinearConcat
        QLinearGlobalAveragePool QLinearLeakyRelu QLinearMul QLinearReduceMean QLinearSigmoid
        QLinearSoftmax QLinearWhere QOrderedAttention QOrderedGelu QOrderedLayerNormalization
        QOrderedLongformerAttention QOrderedMatMul QuantizeBFP QuantizeLinear QuantizeWithOrder
        ReduceSumInteger RelativePositionBias RemovePadding RestorePadding Rfft SampleOp
        ScaledSiLU SkipGroupNorm SparseToDenseMatMul Tokenizer TorchEmbedding UnfoldTensor
        WordConvEmbedding""",
    ),
    **alike(
        Effect.RANDOM_IN_TRAINING,
        "BiasDropout BitmaskBiasDropout BitmaskDropout",
    ),
    **alike(
        Effect.COMPILED,
        "EPContext Snpe",
    ),
    **alike(
        Effect.OUTSIDE,
        "NcclAllReduce PythonOp RecordEvent WaitEvent",
    ),
    "Attention": Operator(PURE, ATTENTION, packs=True),
    "BiasGelu": Operator(PURE, made(T + 5), rows="elementwise", workspace="one intermediate"),
    "BiasSoftmax": Operator(PURE, read(T + 4)),
    "DynamicQuantizeLSTM": Operator(PURE, packs=True),
    "DynamicQuantizeMatMul": Operator(PURE, packs=True),
    "FastGelu": Operator(PURE, made(T + 4), rows="elementwise", workspace="one intermediate"),
    # adds to a fourth input (contrib_ops/cpu/fused_conv.cc)
    "FusedConv": Operator(
        PURE, CONVOLUTION, workspace="convolution", in_place=((3, 0),), packs=True
    ),
    "FusedGemm": Operator(PURE, PRODUCT, rows="gemm", packs=True),
    "FusedMatMul": Operator(PURE, PRODUCT, rows="product", packs=True),
    "FusedMatMulActivation": Operator(PURE, PRODUCT),
    "GatherND": Operator(PURE, MOVES),
    "Gelu": Operator(PURE, made(T + 4), rows="elementwise"),
    "GroupNorm": Operator(PURE, read(8)),
    "LayerNormalization": Operator(PURE, read(8)),
    "MatMulNBits": Operator(PURE, packs=True),
    "MultiHeadAttention": Operator(PURE, ATTENTION, packs=True),
    "NhwcConv": Operator(PURE, CONVOLUTION),
    "NhwcMaxPool": Operator(PURE, WINDOW),
    "Pad": Operator(PURE, MOVES),
    "QAttention": Operator(PURE, packs=True),
    "QLinearConv": Operator(PURE, packs=True),
    "QuickGelu": Operator(PURE, made(T + 4), rows="elementwise"),
    "RMSNormalization": Operator(PURE, read(4)),
    "Range": Operator(PURE, MOVES_ALL),
    "RotaryEmbedding": Operator(PURE, made(6)),
    "SimplifiedLayerNormalization": Operator(PURE, read(4)),
    "SkipLayerNormalization": Operator(PURE, read(9), rows="skip normalization"),
    "SkipSimplifiedLayerNormalization": Operator(PURE, read(5), rows="skip normalization"),
    "TransposeMatMul": Operator(PURE, PRODUCT),
    "Trilu": Operator(PURE, MOVES),
    "Unique": Operator(PURE, MOVES_ALL),
}
