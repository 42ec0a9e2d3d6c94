"""Build a planning problem from a training graph, an order and costs.

The problem has only operations that compute, and buffers that come and go:

- Views are folded away. A view costs nothing and shares its input's buffer: its readers count as readers
  of that buffer, and of the view's other inputs (a computed shape).
- An operation that ONNX Runtime needs once per reader (`Operation.per_reader`) is folded into each
  reader, which gets its time and its buffer.
- Persistent tensors are part of the fixed bytes.
- A buffer on the host has size 0 and is never freed. It keeps its readers after its producer, and it can
  be copied to the device any number of times.
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
"""A number of bytes beyond any model's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCosts:
    """The time and workspace of each operation, by OpId.

    Attributes:
        duration_us: microseconds of one run.
        workspace_bytes: bytes that the kernel holds while it runs, beside its outputs; None: 0 for all.
    """

    duration_us: Sequence[float]
    workspace_bytes: Sequence[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """The levers that a plan may use.

    Attributes:
        recompute: whether operations may run again.
        swap_out_bytes_per_s, swap_in_bytes_per_s: the host link's bandwidth; 0 forbids swapping.
        overlap: whether copies run beside the operations.
    """

    recompute: bool = True
    swap_out_bytes_per_s: float = 0.0
    swap_in_bytes_per_s: float = 0.0
    overlap: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Formulation:
    """A problem, and the graph ids of its operations (`ops[i]`) and tensors (`tensors[t]`).

    Attributes:
        paging: operations that copy tensors that live on the host, beside the others (`with_paging`).
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
    granularity: int = 1,
    allowed: Allowed = Allowed(),
) -> Formulation:
    """Build the problem for one base order; its capacity is beyond any peak.

    Args:
        order: a topological order of all operations.
        granularity: the allocator's unit in bytes: sizes of buffers that come and go are rounded up
            to a multiple of it.
    """
    ops = tuple(op for op in order if not graph.operations[op].is_folded)
    position = {op: OpIndex(i) for i, op in enumerate(ops)}
    buffers = [t.id for t in graph.tensors if t.producer in position and t.buffer == t.id]
    build = _Builder(
        graph=graph,
        costs=costs,
        granularity=granularity,
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
        fixed_bytes=_persistent_bytes(graph),
        capacity_bytes=NO_LIMIT,
        swap_out_bytes_per_s=allowed.swap_out_bytes_per_s,
        swap_in_bytes_per_s=allowed.swap_in_bytes_per_s,
        allow_recompute=allowed.recompute,
        overlap=allowed.overlap,
    )
    return Formulation(problem=problem, ops=ops, tensors=tuple(buffers))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Builder:
    """The conversion of a graph's operations and buffers to a problem's.

    Attributes:
        position: each operation's position in the base order.
        index: each buffer's index among the problem's tensors.
        reads: the result of `_read_through`, by operation.
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
        """Return the problem's operation, with the time and outputs of the operations folded into it."""
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
        """Return the problem's tensor for a buffer; `to_end`: a graph output lies in the buffer."""
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
    """Return the bytes that are live throughout the step."""
    own = (t for t in graph.tensors if t.is_persistent and not t.on_host and t.buffer == t.id)
    return sum(t.bytes for t in own) + sum(t.bytes for t in graph.output_copies)


def with_paging(form: Formulation, graph: TrainingGraph) -> Formulation:
    """Return the formulation with its loads and stores filled in.

    Loads are page-ins that the native library's LoadIn can do; stores are page-outs that its StoreOut can
    do. Solvers place them among the operations; `planner.simulate.loads` then moves loads earlier.
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
    """Return `problem` with loads and stores that take no time.

    A bound proved for it holds where other operations hide the loads and stores.
    """
    beside, ops = form.paging.loads | form.paging.stores, enumerate(problem.ops)
    free = (replace(op, duration_us=0.0) if i in beside else op for i, op in ops)
    return replace(problem, ops=tuple(free))


def _is_copied_once(graph: TrainingGraph, tensor: TensorId) -> bool:
    """Tell whether a tensor has its own buffer, and exactly one reader that copies it to the host."""
    found = graph.tensors[tensor]
    copies = [c for c in found.consumers if graph.operations[c].op_type == TO_HOST]
    return found.buffer == tensor and len(copies) == 1


def has_slot(tensor: Tensor) -> bool:
    """Tell whether a copy beside the operations can bring a tensor back.

    The copy's node states shape and type: both must be known, and the type one that can be swapped.
    """
    return tensor.dtype in SWAP_DTYPES and bool(tensor.shape) and not tensor.unsized


def _rounded(size: int, granularity: int) -> int:
    return -(-size // granularity) * granularity


def _read_through(graph: TrainingGraph, op: OpId) -> tuple[tuple[TensorId, ...], tuple[OpId, ...]]:
    """Return the buffers that an operation reads, directly or through folded operations, and the
    per-reader operations that are folded into it."""
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
