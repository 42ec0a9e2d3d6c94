"""From a training graph, an order and costs to a planning problem.

Views are folded away: a view costs nothing and shares its input's buffer, so its readers are readers
of that buffer, and of what else the view reads (a computed shape). What ONNX Runtime wants one of for
each reader (`Operation.per_reader`) is folded too: its time and its buffer are its reader's. Persistent
tensors are part of the fixed bytes. What remains are operations that compute, and buffers that come and
go. A buffer on the host is one of no bytes that stays: it keeps its readers behind its producer, and
what was copied from it can be copied from it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from planner.graph.model import OpId, Role, Tensor, TensorId, TrainingGraph
from planner.graph.rules import SWAP_DTYPES, TO_HOST
from planner.plan.problem import (
    NO_PAGING,
    OpIndex,
    Paging,
    PlanOp,
    PlanTensor,
    Problem,
    TensorIndex,
)

NO_LIMIT = 1 << 62
"""Bytes that no model takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCosts:
    """What operations take, by OpId.

    Attributes:
        duration_us: microseconds of one run.
        workspace_bytes: held by the kernel while it runs, besides its outputs; 0 where absent.
    """

    duration_us: Sequence[float]
    workspace_bytes: Sequence[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The memory that a plan has.

    Attributes:
        capacity_bytes: the largest that its peak may be.
        reserve_bytes: of those, left unused.
        granularity: sizes of what comes and goes are rounded up to a multiple of so many bytes, as
            the allocator does.
    """

    capacity_bytes: int = NO_LIMIT
    reserve_bytes: int = 0
    granularity: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What a plan may do besides running each operation once.

    Attributes:
        recompute: run operations again.
        swap_out_bytes_per_s, swap_in_bytes_per_s: of the host link; 0 forbids swapping.
        overlap: copies run beside the operations.
    """

    recompute: bool = True
    swap_out_bytes_per_s: float = 0.0
    swap_in_bytes_per_s: float = 0.0
    overlap: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Formulation:
    """A problem and the way back: `ops[i]` and `tensors[t]` name the graph's ids.

    Attributes:
        paging: operations that copy what lives on the host, beside the others (`with_paging`).
    """

    problem: Problem
    ops: tuple[OpId, ...]
    tensors: tuple[TensorId, ...]
    paging: Paging = NO_PAGING


def formulate(
    graph: TrainingGraph,
    order: Sequence[OpId],
    costs: OpCosts,
    *,
    room: Room = Room(),
    allowed: Allowed = Allowed(),
) -> Formulation:
    """Build the problem for one base order.

    Args:
        order: a topological order of all operations.
    """
    ops = tuple(op for op in order if not graph.operations[op].is_folded)
    position = {op: OpIndex(i) for i, op in enumerate(ops)}
    buffers = [t.id for t in graph.tensors if t.producer in position and t.buffer == t.id]
    build = _Builder(
        graph=graph,
        costs=costs,
        granularity=room.granularity,
        overlap=allowed.overlap,
        position=position,
        index={buffer: TensorIndex(i) for i, buffer in enumerate(buffers)},
        reads={op: _read_through(graph, op) for op in ops},
    )
    uses, to_end = build.uses(), {t.buffer for t in graph.tensors if t.is_output}
    problem = Problem(
        name=graph.name,
        ops=tuple(build.op(op) for op in ops),
        tensors=tuple(build.tensor(t, uses[t], to_end=t in to_end) for t in buffers),
        fixed_bytes=_persistent_bytes(graph) + room.reserve_bytes,
        capacity_bytes=room.capacity_bytes,
        swap_out_bytes_per_s=allowed.swap_out_bytes_per_s,
        swap_in_bytes_per_s=allowed.swap_in_bytes_per_s,
        allow_recompute=allowed.recompute,
        overlap=allowed.overlap,
    )
    return Formulation(problem=problem, ops=ops, tensors=tuple(buffers))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Builder:
    """A graph on the way to a problem.

    Attributes:
        position: of each operation in the base order; index: of each buffer among the problem's tensors.
        reads: by operation, as `_read_through` gives it.
    """

    graph: TrainingGraph
    costs: OpCosts
    granularity: int
    overlap: bool
    position: Mapping[OpId, OpIndex]
    index: Mapping[TensorId, TensorIndex]
    reads: Mapping[OpId, tuple[tuple[TensorId, ...], tuple[OpId, ...]]]

    def uses(self) -> dict[TensorId, tuple[OpIndex, ...]]:
        """Return the readers of each buffer, in order."""
        found: dict[TensorId, set[OpIndex]] = {buffer: set() for buffer in self.index}
        for op, (read, _) in self.reads.items():
            for buffer in read:
                if buffer in found:
                    found[buffer].add(self.position[op])
        return {buffer: tuple(sorted(readers)) for buffer, readers in found.items()}

    def op(self, op_id: OpId) -> PlanOp:
        """Return an operation; what is made anew for it is part of its time and its workspace."""
        graph, index, workspace_bytes = self.graph, self.index, self.costs.workspace_bytes
        op, (read, parts) = graph.operations[op_id], self.reads[op_id]
        made = (graph.tensors[t] for part in parts for t in graph.operations[part].outputs)
        beside = sum(_rounded(tensor.bytes, self.granularity) for tensor in made)
        reads = (index.get(buffer) for buffer in read)
        writes = (index.get(t) for t in op.outputs)
        pairs = ((index.get(graph.tensors[a].buffer), index.get(b)) for a, b in op.inplace)
        duration_us = self.costs.duration_us
        return PlanOp(
            name=op.name,
            duration_us=duration_us[op_id] + sum(duration_us[part] for part in parts),
            inputs=tuple(dict.fromkeys(t for t in reads if t is not None)),
            outputs=tuple(t for t in writes if t is not None),
            workspace_bytes=beside + (workspace_bytes[op_id] if workspace_bytes else 0),
            recomputable=op.recomputable,
            inplace=tuple((a, b) for a, b in pairs if a is not None and b is not None),
        )

    def tensor(self, buffer: TensorId, readers: tuple[OpIndex, ...], *, to_end: bool) -> PlanTensor:
        """Return a buffer; `to_end`: an output lies in it."""
        graph, tensor = self.graph, self.graph.tensors[buffer]
        assert tensor.producer is not None
        return PlanTensor(
            name=tensor.name,
            bytes=0 if tensor.on_host else _rounded(tensor.bytes, self.granularity),
            producer=self.position[tensor.producer],
            uses=readers,
            # ONNX Runtime frees a buffer after its last reader; with no reader, never
            to_end=to_end or tensor.on_host or not readers,
            swappable=tensor.why_stay is None and (not self.overlap or has_slot(tensor)),
            host_copy=any(graph.operations[c].op_type == TO_HOST for c in tensor.consumers),
        )


def _persistent_bytes(graph: TrainingGraph) -> int:
    """Return the bytes that are there for the whole step."""
    own = (t for t in graph.tensors if t.is_persistent and not t.on_host and t.buffer == t.id)
    return sum(t.bytes for t in own) + sum(t.bytes for t in graph.output_copies)


def with_paging(form: Formulation, graph: TrainingGraph) -> Formulation:
    """The formulation with its loads and stores named: page-ins that the library's LoadIn can make, and
    page-outs that its StoreOut can.

    A solver has them between the operations; `planner.simulate.loads` then moves loads ahead.
    """
    loads, stores = set[int](), set[int]()
    for i, op_id in enumerate(form.ops):
        op = graph.operations[op_id]
        made = [graph.tensors[t] for t in op.outputs]
        if form.problem.ops[i].workspace_bytes or not all(has_slot(tensor) for tensor in made):
            continue
        if op.role is Role.PAGE_IN and all(tensor.consumers for tensor in made):
            loads.add(i)
        elif op.role is Role.PAGE_OUT and _is_copied_once(graph, op.inputs[0]):
            stores.add(i)
    return replace(form, paging=Paging(loads=frozenset(loads), stores=frozenset(stores)))


def with_free_paging(form: Formulation, problem: Problem) -> Problem:
    """A problem of the formulation's operations whose loads and stores take no time: what is proved of it
    holds where they hide."""
    beside, ops = form.paging.loads | form.paging.stores, enumerate(problem.ops)
    free = (replace(op, duration_us=0.0) if i in beside else op for i, op in ops)
    return replace(problem, ops=tuple(free))


def _is_copied_once(graph: TrainingGraph, tensor: TensorId) -> bool:
    """Whether it has a buffer of its own, and one reader that copies it to the host."""
    found = graph.tensors[tensor]
    copies = [c for c in found.consumers if graph.operations[c].op_type == TO_HOST]
    return found.buffer == tensor and len(copies) == 1


def has_slot(tensor: Tensor) -> bool:
    """Whether a copy beside the operations can bring it back: its node says how large it is, and of which
    type."""
    return tensor.dtype in SWAP_DTYPES and bool(tensor.shape) and not tensor.unsized


def _rounded(size: int, granularity: int) -> int:
    return -(-size // granularity) * granularity


def _read_through(graph: TrainingGraph, op: OpId) -> tuple[tuple[TensorId, ...], tuple[OpId, ...]]:
    """(buffers that an operation reads, with those that its folded inputs are made from; the
    operations that are made anew for it)."""
    buffers: dict[TensorId, None] = {}
    parts: dict[OpId, None] = {}
    stack = list(reversed(graph.operations[op].inputs))
    while stack:
        tensor = graph.tensors[stack.pop()]
        producer = graph.operations[tensor.producer] if tensor.producer is not None else None
        if producer is not None and producer.is_folded:
            stack.extend(reversed(producer.inputs))
            if producer.per_reader:
                parts[producer.id] = None
                continue
        buffers[tensor.buffer] = None
    return tuple(buffers), tuple(parts)
