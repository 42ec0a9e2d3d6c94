"""Arithmetic and bytes moved of one operation, from its shapes.

A multiply-add counts as 2 flops, any other elementary operation as 1, an exponential, root,
logarithm, hyperbolic or error function as 10 (about the polynomial that library kernels evaluate).
Bytes moved are the inputs read and outputs written once each; gathers and slices read as many bytes
as they write. The formulas are the operators' definitions (onnx/docs/Operators.md, and for
com.microsoft onnxruntime/docs/ContribOperators.md); `planner.graph.operators` assigns a formula to
each operator.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from planner.graph.model import Operation, Tensor, TrainingGraph
from planner.graph.operators.row import Cost, CostRule
from planner.graph.operators.table import operator_of
from planner.onnxio.products import plain_order


class Unit(enum.Enum):
    """The peak rate that bounds the arithmetic."""

    MATRIX = "matrix products and convolutions"
    VECTOR = "everything else"
    COPY_OUT = "copy to the host"
    COPY_IN = "copy from the host"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of one operation.

    Attributes:
        flops: arithmetic; bytes: read and written in device memory (or over the link, for copies).
        known: False if the operator has no rule, and only its bytes count.
    """

    flops: int
    bytes: int
    unit: Unit = Unit.VECTOR
    known: bool = True


def work_of(graph: TrainingGraph, op: Operation) -> Work:
    """Count the work of one operation; views do none."""
    inputs = [graph.tensors[t] for t in op.inputs]
    outputs = [graph.tensors[t] for t in op.outputs]
    if op.is_view:
        return Work(flops=0, bytes=0)
    read, written = sum(t.bytes for t in inputs), sum(t.bytes for t in outputs)
    cost = operator_of(op.op_type, op.domain).cost
    if cost is None:
        return Work(flops=0, bytes=read + written, known=False)
    if cost.rule in _MATRIX:
        flops = _MATRIX[cost.rule](op, inputs, outputs)
        return Work(flops=flops, bytes=read + written, unit=Unit.MATRIX)
    if cost.rule in _COPIES:
        return Work(flops=0, bytes=written, unit=_COPIES[cost.rule])
    if cost.rule == "nothing":
        return Work(flops=0, bytes=0)
    if cost.rule == "moves result":
        return Work(flops=0, bytes=2 * written)
    return Work(flops=_flops(cost, op, inputs, outputs), bytes=read + written)


def _flops(cost: Cost, op: Operation, inputs: list[Tensor], outputs: list[Tensor]) -> int:
    """Count the arithmetic of an operation that is not a product."""
    window = math.prod(_ints(op, "kernel_shape")) or 1
    match cost.rule:
        case "each made":
            return cost.flops * _largest(outputs)
        case "each read":
            return cost.flops * _largest(inputs)
        case "window":
            return window * _largest(outputs[:1])
        case "window of gradient":
            return window * _largest(inputs[:1])
        case "operands":
            return max(1, len(inputs) - 1) * _largest(outputs)
        case _:  # operations that only move data
            return 0


def _largest(tensors: list[Tensor]) -> int:
    return max((math.prod(t.shape) for t in tensors), default=0)


def _ints(op: Operation, name: str) -> list[int]:
    value = (op.attributes or {}).get(name)
    return [int(v) for v in value] if isinstance(value, list) else []


def _flag(op: Operation, name: str) -> bool:
    return bool((op.attributes or {}).get(name, 0))


def _matmul(op: Operation, inputs: list[Tensor], outputs: list[Tensor]) -> int:
    """Count 2 · outputs · shared dim."""
    shape = inputs[0].shape
    swapped, behind = _flag(op, "transA"), _flag(op, "transBatchA")
    order = plain_order(len(shape), swapped=swapped, batch_behind=behind)
    return 2 * math.prod(outputs[0].shape) * (shape[order[-1]] if order else 1)


def _conv(op: Operation, inputs: list[Tensor], outputs: list[Tensor]) -> int:
    """Count 2 · outputs · (input channels per group · kernel)."""
    return 2 * math.prod(outputs[0].shape) * math.prod(inputs[1].shape[1:])


def _conv_transpose(op: Operation, inputs: list[Tensor], outputs: list[Tensor]) -> int:
    """Count 2 · inputs · (output channels per group · kernel)."""
    return 2 * math.prod(inputs[0].shape) * math.prod(inputs[1].shape[1:])


def _conv_grad(op: Operation, inputs: list[Tensor], outputs: list[Tensor]) -> int:
    """Count a convolution for each of the input's and the weight's gradient; inputs are dY, X, W."""
    each = 2 * math.prod(inputs[0].shape) * math.prod(inputs[2].shape[1:])
    return each * sum(len(t.shape) > 1 for t in outputs)  # the bias's gradient is a sum


def _kernel_grad(op: Operation, inputs: list[Tensor], outputs: list[Tensor]) -> int:
    """Count 2 · outputs · (samples · size of the result); inputs are X, dY."""
    samples, _, *size = inputs[1].shape
    return 2 * math.prod(outputs[0].shape) * samples * math.prod(size)


def _einsum(op: Operation, inputs: list[Tensor], outputs: list[Tensor]) -> int:
    """Count 2 · product of the sizes of all letters."""
    equation = str((op.attributes or {}).get("equation", "")).replace(" ", "")
    sizes: dict[str, int] = {}
    for term, tensor in zip(equation.split("->")[0].split(","), inputs, strict=False):
        if "." not in term:
            sizes.update(zip(term, tensor.shape, strict=False))
    return 2 * math.prod(sizes.values()) if sizes else 2 * _largest(outputs)


def _attention(op: Operation, inputs: list[Tensor], outputs: list[Tensor]) -> int:
    """Count two products of queries by keys: 4 · batch · length² · width (lengths taken as equal)."""
    shape = [1, 1, *inputs[0].shape]
    return 4 * math.prod(shape) * shape[-2]


_MATRIX: Mapping[CostRule, Callable[[Operation, list[Tensor], list[Tensor]], int]] = {
    "attention": _attention,
    "convolution": _conv,
    "convolution gradient": _conv_grad,
    "kernel gradient": _kernel_grad,
    "einsum": _einsum,
    "product": _matmul,
    "transposed convolution": _conv_transpose,
}

_COPIES: Mapping[CostRule, Unit] = {"copy out": Unit.COPY_OUT, "copy in": Unit.COPY_IN}
