"""Operators of the other domains, including planner's own."""

from __future__ import annotations

from collections.abc import Mapping

from planner.graph.operators.row import (
    CONVOLUTION,
    FIRST,
    MOVES,
    MOVES_ALL,
    WINDOW,
    Cost,
    Effect,
    Operator,
    T,
    alike,
    read,
)

PURE = Effect.PURE

OTHERS: Mapping[str, Mapping[str, Operator]] = {
    "ai.onnx.ml": {
        **alike(
            PURE,
            """
            ArrayFeatureExtractor Binarizer CastMap CategoryMapper DictVectorizer FeatureVectorizer
            Imputer LabelEncoder LinearClassifier LinearRegressor Normalizer OneHotEncoder
            SVMClassifier SVMRegressor Scaler TreeEnsemble TreeEnsembleClassifier
            TreeEnsembleRegressor ZipMap""",
        ),
    },
    "planner.fused": {
        # `first_in_place` in planner/native/fused/operator.cpp
        "Pointwise": Operator(PURE, in_place=FIRST),
        "DirectConv": Operator(PURE, CONVOLUTION),
        "KernelGradient": Operator(PURE, Cost("kernel gradient")),
        "TurnedKernel": Operator(PURE, MOVES_ALL),
    },
    "com.microsoft.nchwc": {
        "AveragePool": Operator(PURE, WINDOW),
        # adds to a fourth input (contrib_ops/cpu/nchwc_ops.cc); convolves blocks without workspace
        "Conv": Operator(PURE, CONVOLUTION, in_place=((3, 0),), packs=True),
        "GlobalAveragePool": Operator(PURE, read(1)),
        "GlobalMaxPool": Operator(PURE, read(1)),
        "MaxPool": Operator(PURE, WINDOW),
        "ReorderInput": Operator(PURE, MOVES_ALL),
        "ReorderOutput": Operator(PURE, MOVES_ALL),
        "Upsample": Operator(PURE, MOVES),
    },
    "ai.onnx.preview.training": {
        **alike(
            Effect.CONTROL_FLOW,
            "Gradient",
        ),
        "Adagrad": Operator(Effect.STATE_UPDATE, read(4)),
        "Adam": Operator(Effect.STATE_UPDATE, read(T + 12)),
        "Momentum": Operator(Effect.STATE_UPDATE, read(4)),
    },
    "ai.onnx.preview": {
        **alike(
            Effect.CONTROL_FLOW,
            "FlexAttention",
        ),
    },
    "planner.swap": {
        **alike(
            Effect.OUTSIDE,
            "LoadIn StoreOut StoreTo SwapBegin SwapIn SwapOut SwapOutDone",
        ),
        "SwapInDone": Operator(Effect.OUTSIDE, is_view=True),
    },
}
