"""Arithmetic and bytes moved of one operation, from its shapes.

Counting: a multiply-add is 2 flops, any other elementary operation 1, an exponential, root,
logarithm, hyperbolic or error function 10 (about the polynomial that library kernels evaluate).
Bytes moved are the inputs read and outputs written once each; gathers and slices read what they
write. The formulas are the operators' definitions (onnx/docs/Operators.md, and for com.microsoft
onnxruntime/docs/ContribOperators.md), one line each below.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass

from planner.graph.model import Operation, Tensor, TrainingGraph
from planner.onnxio.products import plain_order

_TRANSCENDENTAL = 10


class Unit(enum.Enum):
    """Which peak bounds the arithmetic."""

    MATRIX = "matrix products and convolutions"
    VECTOR = "everything else"
    COPY_OUT = "copy to the host"
    COPY_IN = "copy from the host"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one operation has to do.

    Attributes:
        flops: arithmetic; bytes: read and written in device memory (or over the link, for copies).
        known: False where the operator has no rule, and only its bytes count.
    """

    flops: int
    bytes: int
    unit: Unit = Unit.VECTOR
    known: bool = True


def work_of(graph: TrainingGraph, op: Operation) -> Work:
    """The work of one operation; views do none."""
    inputs = [graph.tensors[t] for t in op.inputs]
    outputs = [graph.tensors[t] for t in op.outputs]
    if op.is_view:
        return Work(flops=0, bytes=0)
    read, written = sum(t.bytes for t in inputs), sum(t.bytes for t in outputs)
    kind = op.op_type
    if kind in ("MemcpyToHost", "MemcpyFromHost"):
        unit = Unit.COPY_OUT if kind == "MemcpyToHost" else Unit.COPY_IN
        return Work(flops=0, bytes=written, unit=unit)
    if kind in _METADATA:
        return Work(flops=0, bytes=0)
    if kind in _MOVES_OUTPUT:
        return Work(flops=0, bytes=2 * written)
    if kind in _MOVES_ALL:
        return Work(flops=0, bytes=read + written)
    if kind in _MATRIX:
        flops = _MATRIX[kind](op, inputs, outputs)
        return Work(flops=flops, bytes=read + written, unit=Unit.MATRIX)
    if kind in _PER_INPUT:
        return Work(flops=_PER_INPUT[kind] * _largest(inputs), bytes=read + written)
    if kind in _PER_OUTPUT:
        return Work(flops=_PER_OUTPUT[kind] * _largest(outputs), bytes=read + written)
    if kind in _POOLS:
        window = math.prod(_ints(op, "kernel_shape")) or 1
        return Work(flops=window * _largest(outputs[:1]), bytes=read + written)
    if kind == "AveragePoolGrad":
        window = math.prod(_ints(op, "kernel_shape")) or 1
        return Work(flops=window * _largest(inputs[:1]), bytes=read + written)
    if kind in _SUMS:
        return Work(flops=max(1, len(inputs) - 1) * _largest(outputs), bytes=read + written)
    return Work(flops=0, bytes=read + written, known=False)


def has_rule(op_type: str) -> bool:
    """Whether the arithmetic of an operator is known."""
    tables = (_METADATA, _MOVES_OUTPUT, _MOVES_ALL, _MATRIX, _PER_INPUT, _PER_OUTPUT, _POOLS, _SUMS)
    alone = ("MemcpyToHost", "MemcpyFromHost", "AveragePoolGrad")
    return op_type in alone or any(op_type in table for table in tables)


def _largest(tensors: list[Tensor]) -> int:
    return max((math.prod(t.shape) for t in tensors), default=0)


def _ints(op: Operation, name: str) -> list[int]:
    value = (op.attributes or {}).get(name)
    return [int(v) for v in value] if isinstance(value, list) else []


def _flag(op: Operation, name: str) -> bool:
    return bool((op.attributes or {}).get(name, 0))


def _matmul(op: Operation, inputs: list[Tensor], outputs: list[Tensor]) -> int:
    """2 · outputs · shared dim."""
    shape = inputs[0].shape
    swapped, behind = _flag(op, "transA"), _flag(op, "transBatchA")
    order = plain_order(len(shape), swapped=swapped, batch_behind=behind)
    return 2 * math.prod(outputs[0].shape) * (shape[order[-1]] if order else 1)


def _conv(op: Operation, inputs: list[Tensor], outputs: list[Tensor]) -> int:
    """2 · outputs · (input channels per group · kernel)."""
    return 2 * math.prod(outputs[0].shape) * math.prod(inputs[1].shape[1:])


def _conv_transpose(op: Operation, inputs: list[Tensor], outputs: list[Tensor]) -> int:
    """2 · inputs · (output channels per group · kernel)."""
    return 2 * math.prod(inputs[0].shape) * math.prod(inputs[1].shape[1:])


def _conv_grad(op: Operation, inputs: list[Tensor], outputs: list[Tensor]) -> int:
    """As the convolution, once for each of the input's and the weight's gradient; dY, X, W in."""
    each = 2 * math.prod(inputs[0].shape) * math.prod(inputs[2].shape[1:])
    return each * sum(len(t.shape) > 1 for t in outputs)  # the bias's gradient is a sum


def _einsum(op: Operation, inputs: list[Tensor], outputs: list[Tensor]) -> int:
    """2 · product of the sizes of all letters."""
    equation = str((op.attributes or {}).get("equation", "")).replace(" ", "")
    sizes: dict[str, int] = {}
    for term, tensor in zip(equation.split("->")[0].split(","), inputs, strict=False):
        if "." not in term:
            sizes.update(zip(term, tensor.shape, strict=False))
    return 2 * math.prod(sizes.values()) if sizes else 2 * _largest(outputs)


def _attention(op: Operation, inputs: list[Tensor], outputs: list[Tensor]) -> int:
    """Two products of queries by keys: 4 · batch · length² · width (lengths taken as equal)."""
    shape = [1, 1, *inputs[0].shape]
    return 4 * math.prod(shape) * shape[-2]


_MATRIX: dict[str, Callable[[Operation, list[Tensor], list[Tensor]], int]] = {
    "Attention": _attention,
    "Conv": _conv,
    "ConvGrad": _conv_grad,
    "ConvTranspose": _conv_transpose,
    "Einsum": _einsum,
    "FusedConv": _conv,
    "FusedGemm": _matmul,
    "FusedMatMul": _matmul,
    "FusedMatMulActivation": _matmul,
    "Gemm": _matmul,
    "MatMul": _matmul,
    "MultiHeadAttention": _attention,
    "NhwcConv": _conv,
    "TransposeMatMul": _matmul,
}


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _all(text: str, *, flops: int) -> dict[str, int]:
    return dict.fromkeys(text.split(), flops)


_METADATA = frozenset({"Shape", "Size", "Constant", "BroadcastGradientArgs"})

_MOVES_OUTPUT = _names(
    "Slice Split Gather GatherElements GatherND Transpose Concat Expand Tile Pad Compress Cast "
    "DepthToSpace SpaceToDepth ConcatTraining SplitTraining PassThrough Identity Upsample Trilu Dropout "
    "Reshape Squeeze Unsqueeze Flatten ReverseSequence"
)
"""Read as much as they write (a view that must copy, into a graph output, among them)."""

_MOVES_ALL = _names(
    "ScatterElements ScatterND Scatter OneHot ConstantOfShape Range EyeLike NonZero Unique TopK "
    "GatherGrad GatherElementsGrad GatherNDGrad SliceGrad ZeroGradient InPlaceAccumulator "
    "InPlaceAccumulatorV2 ReorderInput ReorderOutput Bernoulli RandomNormal "
    "RandomUniform RandomNormalLike RandomUniformLike Multinomial"
)

_T = _TRANSCENDENTAL
_PER_OUTPUT: dict[str, int] = {
    **_all(
        "Add Sub Mul Div Mod And Or Xor Not Equal Greater GreaterOrEqual Less LessOrEqual Neg Abs "
        "Relu Ceil Floor Round Sign Where IsNaN IsInf BitwiseAnd BitwiseOr BitwiseXor BitShift "
        "ReluGrad Scale HardSwish DropoutGrad",
        flops=1,
    ),
    "DivGrad": 4,
    **_all("LeakyRelu LeakyReluGrad PRelu Clip HardSigmoid ThresholdedRelu", flops=2),
    **_all("Reciprocal", flops=1),
    **_all(
        "Exp Log Sqrt Erf Tanh Sigmoid Sin Cos Tan Sinh Cosh Asin Acos Atan Asinh Acosh Atanh "
        "Softplus Elu Celu Selu Mish Pow",
        flops=_T,
    ),
    **_all("Softsign TanhGrad SigmoidGrad", flops=3),
    # x · Φ(x): an error function or tanh, and four more
    **_all("Gelu FastGelu QuickGelu", flops=_T + 4),
    "BiasGelu": _T + 5,
    **_all(
        "GeluGrad FastGeluGrad QuickGeluGrad BiasGeluGrad_dX BiasFastGeluGrad_dX", flops=2 * _T + 6
    ),
    **_all("Resize ResizeGrad", flops=8),  # linear interpolation in two axes
    "CumSum": 1,
    "RotaryEmbedding": 6,
}

_PER_INPUT: dict[str, int] = {
    **_all(
        "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceSumTraining ArgMax "
        "ArgMin GlobalAveragePool GlobalMaxPool Hardmax",
        flops=1,
    ),
    **_all("ReduceSumSquare ReduceL2 LpNormalization MaxPoolGrad", flops=2),
    **_all("ReduceLogSum ReduceLogSumExp", flops=_T + 2),
    # largest, subtract, exponential, sum, divide
    **_all("Softmax LogSoftmax BiasSoftmax", flops=_T + 4),
    **_all("SoftmaxGrad SoftmaxGrad_13 LogSoftmaxGrad LogSoftmaxGrad_13", flops=4),
    **_all("SoftmaxCrossEntropyLoss SoftmaxCrossEntropyLossInternal", flops=_T + 5),
    **_all("SoftmaxCrossEntropyLossGrad SoftmaxCrossEntropyLossInternalGrad", flops=3),
    "NegativeLogLikelihoodLoss": 1,
    # mean (1), variance (3), normalize (2), scale and shift (2)
    **_all(
        "LayerNormalization BatchNormalization BatchNormInternal InstanceNormalization "
        "GroupNormalization GroupNorm",
        flops=8,
    ),
    **_all("SkipLayerNormalization", flops=9),
    **_all("RMSNormalization SimplifiedLayerNormalization", flops=4),
    "SkipSimplifiedLayerNormalization": 5,
    # two sums over the row or channel, and the combination
    **_all(
        "LayerNormalizationGrad BatchNormalizationGrad SimplifiedLayerNormalizationGrad", flops=13
    ),
    # two moments, two bias corrections, a root, the step
    **_all("Adam AdamOptimizer AdamWOptimizer LambOptimizer", flops=_T + 12),
    **_all("SGDOptimizer SGDOptimizerV2 Momentum Adagrad", flops=4),
}

_POOLS = frozenset({"MaxPool", "AveragePool", "LpPool", "NhwcMaxPool"})
_SUMS = frozenset({"Sum", "Max", "Min", "Mean"})
