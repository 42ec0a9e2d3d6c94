"""ONNX Runtime's allocation plan: which outputs get a buffer of their own, and when it is freed.

The plan follows ONNX Runtime 1.31: views, in-place kernels, reuse of a freed buffer of identical
shape and element size (onnxruntime/core/framework/allocation_planner.cc).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.graph.model import OpId, Tensor, TensorId, TrainingGraph
from planner.graph.rules import SWAP_IN


class StorageKind(enum.Enum):
    """The kind of a tensor's storage."""

    OWN = "a buffer of its own, freed after its last reader"
    OUTPUT = "a graph output: never shared, never in the memory pattern"
    SHARED = "another tensor's buffer"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationPlan:
    """The storage kind of each tensor, the tensors freed after each step, and the buffer of each
    tensor."""

    kind: Mapping[TensorId, StorageKind]
    freed_after: Sequence[Sequence[TensorId]]
    buffer: Mapping[TensorId, TensorId]


def place(
    graph: TrainingGraph, order: Sequence[OpId], *, reuse: bool, host_in_arena: bool
) -> AllocationPlan:
    """Return ONNX Runtime's allocation plan: use counts per buffer, free buffers last in, first out."""
    tensors = graph.tensors
    kind: dict[TensorId, StorageKind] = {}
    buffer: dict[TensorId, TensorId] = {t.id: t.id for t in tensors}
    uses = {t.id: 1 if t.producer is None else 0 for t in tensors}
    for op in order:
        for tensor in (*graph.operations[op].inputs, *graph.operations[op].outputs):
            uses[tensor] += 1
    for tensor in graph.outputs:
        uses[tensor] += 1
    # freed buffers of one size class, most recently freed last
    free: dict[tuple[object, ...], list[TensorId]] = {}
    last: dict[TensorId, int] = {}

    def share(source: TensorId, target: TensorId) -> None:
        root = buffer[source]
        buffer[target] = root
        uses[root] += uses[target]
        kind[target] = StorageKind.SHARED

    def size_class(tensor: TensorId) -> tuple[object, ...]:
        return (t := tensors[tensor]).shape, t.bytes, t.on_host, _is_apart(graph, t)

    for step, op in enumerate(order):
        operation = graph.operations[op]
        for index, tensor in enumerate(operation.outputs):
            t = tensors[tensor]
            if t.on_host and not host_in_arena:
                kind[tensor] = StorageKind.SHARED
            elif t.is_output:
                kind[tensor] = StorageKind.OUTPUT
            elif operation.is_view and index == 0:
                share(operation.inputs[0], tensor)
            elif t.buffer != tensor:
                share(t.buffer, tensor)
            elif (source := _inplace_source(operation.inplace, tensor, buffer, uses)) is not None:
                share(source, tensor)
            elif reuse and t.shape and t.consumers and free.get(size_class(tensor)):
                share(free[size_class(tensor)].pop(), tensor)
            else:
                kind[tensor] = StorageKind.OWN
        for tensor in (*operation.inputs, *operation.outputs):
            root = buffer[tensor]
            uses[root] -= 1
            if (
                uses[root] == 0
                and kind.get(root) is StorageKind.OWN
                and not _is_apart(graph, tensors[root])
            ):
                free.setdefault(size_class(root), []).append(root)
        for tensor in operation.inputs:
            last[buffer[tensor]] = step
    freed: list[list[TensorId]] = [[] for _ in order]
    for root, step in last.items():
        if kind.get(root) is StorageKind.OWN:
            freed[step].append(root)
    return AllocationPlan(kind=kind, freed_after=freed, buffer=buffer)


def _is_apart(graph: TrainingGraph, tensor: Tensor) -> bool:
    """Tell whether a tensor's buffer is never another's: its dims are unknown before it is made.

    SwapIn reports no dims (planner/native/swap/operators.cpp).
    """
    maker = None if tensor.producer is None else graph.operations[tensor.producer]
    return tensor.unsized or (maker is not None and maker.op_type == SWAP_IN)


def _inplace_source(
    pairs: Sequence[tuple[TensorId, TensorId]],
    target: TensorId,
    buffer: Mapping[TensorId, TensorId],
    uses: Mapping[TensorId, int],
) -> TensorId | None:
    for source, output in pairs:
        if output == target and uses[buffer[source]] == 1:
            return source
    return None
