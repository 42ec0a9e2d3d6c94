"""Tensors saved for the backward pass: the loss depends on their producer, but not on all readers.

    x ── relu ── a ── conv ── ...  loss
                 │                  │
                 └── conv_grad ─────┘         a is saved

Views of one buffer are saved together: reading one of them keeps the buffer alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.graph.categories import loss_among
from planner.graph.model import OpId, Role, Tensor, TensorId, TrainingGraph

SINGLE = frozenset({"float", "float32"})
"""Element types that may be stored in half precision: not integers, booleans or doubles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A buffer saved for the backward pass.

    Attributes:
        buffer: the tensor that owns it.
        read: tensors of the buffer that the backward pass reads: the owner, or views made by the
            forward pass.
        early: forward operations that read the buffer or a view of it.
        late: backward operations that read it.
    """

    buffer: TensorId
    read: tuple[TensorId, ...]
    early: tuple[OpId, ...]
    late: tuple[OpId, ...]


def forward_operations(graph: TrainingGraph) -> frozenset[OpId]:
    """Return the operation that makes the loss and all operations that it depends on."""
    tensors = [graph.tensors[t] for t in graph.outputs]
    names = loss_among((t.name, _is_float(t), t.bytes) for t in tensors)
    stack = [t.producer for t in tensors if t.name in names and t.producer is not None]
    found: set[OpId] = set()
    while stack:
        op = stack.pop()
        if op in found:
            continue
        found.add(op)
        made = (graph.tensors[t].producer for t in graph.operations[op].inputs)
        stack += [producer for producer in made if producer is not None]
    return frozenset(found)


def saved_for_backward(graph: TrainingGraph) -> tuple[Saved, ...]:
    """Return the buffers that a forward operation produces and a backward operation reads."""
    forward = forward_operations(graph)
    of: dict[TensorId, list[Tensor]] = {}
    for tensor in graph.tensors:
        if tensor.producer in forward:
            of.setdefault(tensor.buffer, []).append(tensor)
    return tuple(
        saved
        for buffer, values in of.items()
        if (saved := _saved(buffer, values, forward)) is not None
    )


def _saved(buffer: TensorId, values: Sequence[Tensor], forward: frozenset[OpId]) -> Saved | None:
    if buffer not in {t.id for t in values}:  # of a graph input, say
        return None
    readers = {c for t in values for c in t.consumers}
    late = tuple(sorted(readers - forward))
    if not late:
        return None
    return Saved(
        buffer=buffer,
        read=tuple(t.id for t in values if any(c not in forward for c in t.consumers)),
        early=tuple(sorted(readers & forward)),
        late=late,
    )


def may_be_halved(graph: TrainingGraph) -> tuple[Saved, ...]:
    """Return the saved buffers that may be stored in half precision.

    They are of single precision, on the device, no graph output, made by one operation and its
    views alone, and not excluded by the user.
    """
    of: dict[TensorId, list[Tensor]] = {}
    for tensor in graph.tensors:
        of.setdefault(tensor.buffer, []).append(tensor)
    return tuple(s for s in saved_for_backward(graph) if _may(graph, s, of[s.buffer]))


def _may(graph: TrainingGraph, saved: Saved, whole: Sequence[Tensor]) -> bool:
    """Tell whether a saved buffer, with all of its tensors `whole`, may be stored in half precision."""
    owner = graph.tensors[saved.buffer]
    return (
        owner.dtype in SINGLE
        and bool(owner.bytes)
        and owner.barred is None
        and not any(t.is_output or t.on_host or t.dtype not in SINGLE for t in whole)
        and not any(_is_closed(graph, op) for op in saved.late)
        and all(t.id == saved.buffer or _is_view(graph, t) for t in whole)
    )


def _is_closed(graph: TrainingGraph, op: OpId) -> bool:
    """Tell whether an operation runs on the CPU, or stores in half precision already."""
    operation = graph.operations[op]
    return operation.on_cpu or operation.role is Role.HALF


def _is_view(graph: TrainingGraph, tensor: Tensor) -> bool:
    return tensor.producer is not None and graph.operations[tensor.producer].is_view


def _is_float(tensor: Tensor) -> bool:
    return tensor.dtype.startswith(("float", "double", "bfloat"))
