"""Temporary bytes of ONNX Runtime's CPU kernels, in the arena while the kernel runs.

Not visible in a node's memory event (it is read after the kernel has returned), but the arena holds
it, and a hard cap feels it. Measured (`reports/ort_facts.md`), and node by node by ONNX Runtime itself
(`session.collect_node_memory_stats_to_file`, tests/runtime/test_workspace.py); the formulas and their
sources:

    Where            each operand broadcast with the condition, taken before the output
                     (core/providers/cpu/tensor/where_op.cc)
    Softmax family   two transposed copies where the axis is not the last (cpu/math/softmax.cc)
    Conv, FusedConv  nothing for a plain 1x1; the whole expanded image where there are more filters
                     than output pixels; else 64 KiB per thread, of which there are as many as images
                     times groups, or for a single one as many as its pixels give work to
                     (mlas/lib/convolve.cpp)
    ConvTranspose    the column buffer of one image and group (cpu/nn/conv_transpose.cc)
    BiasGelu etc.    one intermediate of the output's size (contrib_ops/cpu/bert)
    ConvGrad         the column buffer of one image and group, and as many ones as it has pixels where
                     there is a bias (orttraining/training_ops/cpu/nn/conv_grad.cc)
    SoftmaxGrad etc. three transposed copies where the axis is not the last
                     (orttraining/training_ops/cpu/math/softmax_grad.cc)
    BiasGeluGrad_dX  one intermediate (orttraining/training_ops/cpu/activation/activations_grad.cc)
    training BatchNormalization   saved mean and inverse deviation, one per channel
    If, Loop, Scan                what their bodies hold (`planner.runtime.memory.within`)
    com.microsoft.nchwc           nothing: convolutions of blocks are direct (mlas/lib/snchwc.cpp)

Other kernels were measured to take none, or are not known and count none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from planner.graph.model import Operation, OpId, Tensor, TrainingGraph
from planner.graph.operators.row import WorkspaceRule
from planner.graph.operators.table import operator_of

_CONV_BYTES_PER_THREAD = 16384 * 4  # MLAS_CONV_WORKING_BUFFER_SIZE_PER_THREAD floats
_GEMM_THREAD_COMPLEXITY = 64 * 1024  # MLAS_SGEMM_THREAD_COMPLEXITY
_GEMM_COLUMN_ALIGN = 16  # MLAS_SGEMM_STRIDEN_THREAD_ALIGN


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """Temporary buffers of one kernel, in bytes each: taken before its outputs, and after."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @property
    def bytes(self) -> int:
        """The bytes of all buffers, which exist at once."""
        return sum(self.before) + sum(self.after)


def workspace(graph: TrainingGraph, *, threads: int) -> dict[OpId, Workspace]:
    """Return the workspace of each operation that has any.

    Args:
        threads: intra-operator threads of the session: convolutions take a buffer per thread.
    """
    found: dict[OpId, Workspace] = {}
    for op in graph.operations:
        if op.inner_bytes:
            found[op.id] = Workspace(after=(op.inner_bytes,))
        rule = operator_of(op.op_type, op.domain).workspace
        if rule is None or not op.inputs or not op.outputs:
            continue
        needed = RULES[rule](
            op, [graph.tensors[t] for t in op.inputs], graph.tensors[op.outputs[0]]
        )
        taken = needed(threads) if callable(needed) else needed
        if taken.bytes:
            found[op.id] = taken
    return found


Needed = Workspace | Callable[[int], Workspace]


def _where(op: Operation, inputs: list[Tensor], output: Tensor) -> Needed:
    condition = inputs[0].shape
    item = _element_bytes(output)
    return Workspace(
        before=tuple(
            math.prod(np.broadcast_shapes(condition, branch.shape)) * item for branch in inputs[1:3]
        )
    )


def _softmax(op: Operation, inputs: list[Tensor], output: Tensor) -> Needed:
    rank = len(output.shape)
    axis = _int(op, "axis", -1)
    if axis in (-1, rank - 1):
        return Workspace()
    return Workspace(after=(output.bytes, output.bytes))


def _one_intermediate(op: Operation, inputs: list[Tensor], output: Tensor) -> Needed:
    return Workspace(after=(output.bytes,)) if len(inputs) > 1 else Workspace()


def _softmax_grad(op: Operation, inputs: list[Tensor], output: Tensor) -> Needed:
    last = _int(op, "axis", -1) in (-1, len(output.shape) - 1)
    return Workspace() if last else Workspace(after=(output.bytes,) * 3)


def _conv_grad(op: Operation, inputs: list[Tensor], output: Tensor) -> Needed:
    gradient, weight = inputs[0], inputs[2]
    item = _element_bytes(gradient)
    pixels = math.prod(gradient.shape[2:])
    return Workspace(after=(math.prod(weight.shape[1:]) * pixels * item, pixels * item))


def _batch_norm(op: Operation, inputs: list[Tensor], output: Tensor) -> Needed:
    if not _int(op, "training_mode", 0):
        return Workspace()
    return Workspace(after=(inputs[1].bytes, inputs[1].bytes))


def _conv_transpose(op: Operation, inputs: list[Tensor], output: Tensor) -> Needed:
    image, weight = inputs[0].shape, inputs[1].shape
    group = _int(op, "group", 1)
    columns = weight[1] * group // group * math.prod(weight[2:]) * math.prod(image[2:])
    return Workspace(after=(columns * _element_bytes(inputs[0]),))


def _conv(op: Operation, inputs: list[Tensor], output: Tensor) -> Needed:
    weight = inputs[1].shape
    group = _int(op, "group", 1)
    filters, depth = weight[0] // group, math.prod(weight[1:])
    pixels = math.prod(output.shape[2:])
    pads, strides = _ints(op, "pads"), _ints(op, "strides")
    plain = not any(pads) and all(s == 1 for s in strides)
    if plain and math.prod(weight[2:]) == 1:
        return Workspace()
    if filters > pixels:
        return Workspace(after=(pixels * depth * 4,))

    images = inputs[0].shape[0] * group

    def per_thread(threads: int) -> Workspace:
        used = min(images, threads)
        if images == 1:
            used = _gemm_threads(filters * pixels * depth, pixels, threads)
        return Workspace(after=(used * _CONV_BYTES_PER_THREAD,))

    return per_thread


def _gemm_threads(complexity: int, columns: int, threads: int) -> int:
    """Return the threads of a convolution that is split along its output pixels (MlasConvPrepare)."""
    used = min(complexity // _GEMM_THREAD_COMPLEXITY + 1, threads)
    stride = -(-columns // used)
    if used > 1:
        stride = -(-stride // _GEMM_COLUMN_ALIGN) * _GEMM_COLUMN_ALIGN
        if stride >= columns:
            return 1
        if stride * (used - 1) >= columns:
            used -= 1
    return used


def _element_bytes(tensor: Tensor) -> int:
    return tensor.bytes // max(1, math.prod(tensor.shape))


def _int(op: Operation, name: str, default: int) -> int:
    value = (op.attributes or {}).get(name, default)
    return value if isinstance(value, int) else default


def _ints(op: Operation, name: str) -> list[int]:
    value = (op.attributes or {}).get(name)
    return [int(v) for v in value] if isinstance(value, list) else []


RULES: Mapping[WorkspaceRule, Callable[[Operation, list[Tensor], Tensor], Needed]] = {
    "where": _where,
    "softmax": _softmax,
    "softmax gradient": _softmax_grad,
    "convolution": _conv,
    "transposed convolution": _conv_transpose,
    "convolution gradient": _conv_grad,
    "batch normalization": _batch_norm,
    "one intermediate": _one_intermediate,
}
