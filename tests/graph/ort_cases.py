"""The operators that `reports/ort_facts.md` has measured, one case each.

Shapes are such that an output has the shape of an input wherever the operator allows it: a kernel
that could write in place is given the chance to.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.graph.ort_probe import Array, Case

ROWS, COLUMNS = 128, 192
_RANDOM = np.random.default_rng(0)


def floats(*shape: int) -> Array:
    """Positive values, so that Log, Sqrt and Pow are defined."""
    return np.asarray(_RANDOM.random(shape, dtype=np.float32) + np.float32(0.5), np.float32)


def ints(*values: int) -> Array:
    """An int64 vector."""
    return np.array(values, dtype=np.int64)


def _names(text: str) -> list[str]:
    return text.split()


X, Y = floats(ROWS, COLUMNS), floats(ROWS, COLUMNS)
B = X > 1.0
SQUARE = floats(ROWS, ROWS)
IMAGE = floats(2, 16, 24, 24)
CHANNELS = floats(16)
INDEX = np.tile(np.arange(ROWS)[:, None], (1, COLUMNS)).astype(np.int64)
_UNARY = _names(
    "Abs Acos Asin Atan Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity "
    "LeakyRelu Log LogSoftmax Mish Neg Reciprocal Relu Round Selu Sigmoid Sign Sin Sinh Softmax "
    "Softplus Softsign Sqrt Tan Tanh ThresholdedRelu Hardmax"
)
_BINARY = _names("Add Sub Mul Div Pow Min Max Sum Mean PRelu Mod")
_COMPARE = _names("Equal Greater GreaterOrEqual Less LessOrEqual")
_REDUCE = _names(
    "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceSumSquare ReduceL1 ReduceL2 "
    "ReduceLogSumExp"
)


def _case(op_type: str, *inputs: Array | None, **more: Any) -> Case:
    return Case(op_type=op_type, inputs=inputs, **more)


def cases() -> list[tuple[str, Case]]:
    """(note, case): the note tells two cases of one operator apart."""
    found: list[tuple[str, Case]] = []

    def add(note: str, op_type: str, *inputs: Array | None, **more: Any) -> None:
        found.append((note, _case(op_type, *inputs, **more)))

    for op in _UNARY:
        add("", op, X)
    add("axis 0", "Softmax", X, attributes={"axis": 0})
    add("axis 0", "LogSoftmax", X, attributes={"axis": 0})
    add("", "Not", B)
    for op in _BINARY:
        add("", op, X, Y)
    add("fmod", "Mod", X, Y, attributes={"fmod": 1})
    found = [pair for pair in found if pair[1].op_type != "Mod" or pair[0]]
    add("scalar", "Add", X, floats())
    add("scalar", "Mul", X, floats())
    for op in _COMPARE:
        add("", op, X, Y)
    add("", "And", B, ~B)
    add("", "Or", B, ~B)
    for op in _REDUCE:
        add("last axis", op, X, ints(1), constants=(1,))
    add("first axis", "ReduceSum", X, ints(0), constants=(1,))
    add("axes 0, 2, 3", "ReduceSum", IMAGE, ints(0, 2, 3), constants=(1,))
    add("axes 0, 2, 3", "ReduceMean", IMAGE, ints(0, 2, 3), constants=(1,))
    add("", "ArgMax", X)
    add("float to float", "Cast", X, attributes={"to": 1})
    add("float to int32", "Cast", X, attributes={"to": 6})
    add("float to double", "Cast", X, attributes={"to": 11})
    add("bool to float", "Cast", B, attributes={"to": 1})
    add("", "Clip", X, floats(), np.asarray(9, np.float32))
    add("", "Where", B, X, Y)
    add("scalar branch", "Where", B, X, floats())
    add("", "Reshape", X, ints(ROWS, COLUMNS), constants=(1,))
    add("", "Flatten", X)
    add("", "Squeeze", X[None], ints(0), constants=(1,))
    add("", "Unsqueeze", X, ints(0), constants=(1,))
    add("swap", "Transpose", SQUARE, attributes={"perm": [1, 0]})
    add("one input", "Concat", X, attributes={"axis": 0})
    add("two inputs", "Concat", X, Y, attributes={"axis": 0})
    add("one part", "Split", X, ints(ROWS), attributes={"axis": 0}, constants=(1,))
    add("two parts", "Split", X, ints(64, 64), attributes={"axis": 0}, constants=(1,), outputs=2)
    add("whole", "Slice", X, ints(0), ints(ROWS), ints(0), constants=(1, 2, 3))
    add("half", "Slice", X, ints(0), ints(64), ints(0), constants=(1, 2, 3))
    add("same shape", "Expand", X, ints(ROWS, COLUMNS), constants=(1,))
    add("rows", "Expand", X[:1], ints(ROWS, COLUMNS), constants=(1,))
    add("", "Tile", X, ints(1, 1), constants=(1,))
    add("", "Pad", X, ints(0, 0, 0, 0), constants=(1,))
    add("grows", "Pad", X, ints(1, 1, 1, 1), constants=(1,))
    add("", "Gather", X, np.arange(ROWS))
    add("", "GatherElements", X, INDEX, attributes={"axis": 0})
    add("", "GatherND", X, np.arange(ROWS)[:, None])
    scatter = {"axis": 0, "reduction": "add"}
    add("add", "ScatterElements", X, INDEX, Y, opset=18, attributes=scatter)
    add("", "ScatterElements", X, INDEX, Y, attributes={"axis": 0})
    add("", "ScatterND", X, np.arange(ROWS)[:, None], Y)
    add("add", "ScatterND", X, np.arange(ROWS)[:, None], Y, attributes={"reduction": "add"})
    add("", "OneHot", np.arange(ROWS), np.array(COLUMNS), floats(2), constants=(1,))
    add("", "CumSum", X, np.array(0, dtype=np.int64))
    add("", "Trilu", SQUARE)
    add("", "EyeLike", SQUARE)
    add("", "ConstantOfShape", ints(ROWS, COLUMNS), constants=(0,))
    add("", "Range", np.array(0), np.array(ROWS), np.array(1), constants=(0, 1, 2))
    add("", "Shape", X)
    add("", "Size", X)
    add("", "TopK", X, ints(COLUMNS), constants=(1,), outputs=2)
    add("", "MatMul", SQUARE, SQUARE)
    add("batched", "MatMul", floats(4, 64, 64), floats(4, 64, 64))
    add("", "Gemm", SQUARE, SQUARE, SQUARE)
    add("transposed", "Gemm", SQUARE, SQUARE, SQUARE, attributes={"transA": 1, "transB": 1})
    add("", "Einsum", SQUARE, SQUARE, attributes={"equation": "ij,jk->ik"})
    for note, kernel, more in (
        ("3x3", 3, {"pads": [1, 1, 1, 1]}),
        ("3x3, stride 2", 3, {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
        ("1x1", 1, {}),
        ("1x1, stride 2", 1, {"strides": [2, 2]}),
    ):
        add(note, "Conv", IMAGE, floats(16, 16, kernel, kernel), attributes=more)
    depthwise = {"pads": [1, 1, 1, 1], "group": 16}
    add("depthwise 3x3", "Conv", IMAGE, floats(16, 1, 3, 3), attributes=depthwise)
    add("more filters than pixels", "Conv", floats(2, 16, 8, 8), floats(256, 16, 3, 3))
    pads = {"pads": [1, 1, 1, 1]}
    add("3x3", "ConvTranspose", IMAGE, floats(16, 16, 3, 3), attributes=pads)
    stride = {"pads": [1, 1, 1, 1], "strides": [2, 2], "output_padding": [1, 1]}
    add("3x3, stride 2", "ConvTranspose", IMAGE, floats(16, 16, 3, 3), attributes=stride)
    add("1x1", "ConvTranspose", IMAGE, floats(16, 16, 1, 1))
    pool = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    add("", "MaxPool", IMAGE, attributes=pool)
    add("with indices", "MaxPool", IMAGE, attributes=pool, outputs=2)
    add("", "AveragePool", IMAGE, attributes=pool)
    add("", "GlobalAveragePool", IMAGE)
    batch_norm = (IMAGE, CHANNELS, CHANNELS, CHANNELS, CHANNELS)
    add("inference", "BatchNormalization", *batch_norm)
    train = {"training_mode": 1}
    add("training", "BatchNormalization", *batch_norm, attributes=train, outputs=3)
    add("", "InstanceNormalization", IMAGE, CHANNELS, CHANNELS)
    add("", "LayerNormalization", X, floats(COLUMNS), floats(COLUMNS))
    add("3 outputs", "LayerNormalization", X, floats(COLUMNS), floats(COLUMNS), outputs=3)
    groups = {"num_groups": 4}
    add("", "GroupNormalization", IMAGE, CHANNELS, CHANNELS, attributes=groups)
    add("", "RMSNormalization", X, floats(COLUMNS), opset=23)
    add("", "LpNormalization", X)
    add("inference", "Dropout", X)
    add("inference, mask", "Dropout", X, outputs=2)
    ratio = np.array(0.5, dtype=np.float32)
    add("training", "Dropout", X, ratio, np.array(True), constants=(1, 2), outputs=2)
    add("", "RandomNormalLike", X)
    add("", "Bernoulli", np.clip(X, 0, 1))
    labels = np.zeros(ROWS, dtype=np.int64)
    add("", "SoftmaxCrossEntropyLoss", X, labels, outputs=2)
    add("", "NegativeLogLikelihoodLoss", X, labels)
    resize = np.array([1, 1, 2, 2], dtype=np.float32)
    add("", "Resize", IMAGE, None, resize, constants=(2,))
    add("", "DepthToSpace", IMAGE, attributes={"blocksize": 2})
    add("", "MemcpyToHost", X)
    add("", "MemcpyFromHost", X)
    ms = {"domain": "com.microsoft"}
    add("", "Gelu", X, **ms)
    add("", "FastGelu", X, **ms)
    add("bias", "FastGelu", X, floats(COLUMNS), **ms)
    add("", "QuickGelu", X, **ms)
    add("", "BiasGelu", X, floats(COLUMNS), **ms)
    add("", "FusedMatMul", SQUARE, SQUARE, attributes={"transB": 1}, **ms)
    relu = {"activation": "Relu"}
    add("", "FusedGemm", SQUARE, SQUARE, SQUARE, attributes=relu, **ms)
    add("", "FusedConv", IMAGE, floats(16, 16, 3, 3), attributes=relu, **ms)
    hidden = (floats(2, 64, COLUMNS), floats(2, 64, COLUMNS), floats(COLUMNS), floats(COLUMNS))
    add("", "SkipLayerNormalization", *hidden, **ms)
    simple = (floats(2, 64, COLUMNS), floats(2, 64, COLUMNS), floats(COLUMNS))
    add("", "SkipSimplifiedLayerNormalization", *simple, **ms)
    return found
