"""From a training graph, an order and costs to a planning problem.

Views are folded away: a view costs nothing and shares its input's buffer, so its readers are readers
of that buffer. Persistent tensors are part of the fixed bytes. What remains are operations that
compute, and buffers that come and go. A buffer on the host is one of no bytes that stays: it keeps
its readers behind its producer, and what was copied from it can be copied from it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.graph.model import OpId, TensorId, TrainingGraph
from planner.plan.problem import OpIndex, PlanOp, PlanTensor, Problem, TensorIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class Formulation:
    """A problem and the way back: `ops[i]` and `tensors[t]` name the graph's ids."""

    problem: Problem
    ops: tuple[OpId, ...]
    tensors: tuple[TensorId, ...]


def formulate(
    graph: TrainingGraph,
    order: Sequence[OpId],
    duration_us: Sequence[float],
    *,
    capacity_bytes: int,
    reserve_bytes: int = 0,
    swap_out_bytes_per_s: float = 0.0,
    swap_in_bytes_per_s: float = 0.0,
    overlap: bool = False,
    allow_recompute: bool = True,
    workspace_bytes: Sequence[int] | None = None,
    granularity: int = 1,
) -> Formulation:
    """Build the problem for one base order.

    Args:
        order: a topological order of all operations.
        duration_us: by OpId.
        overlap: copies run beside the operations.
        workspace_bytes: by OpId; 0 where absent.
        granularity: sizes of what comes and goes are rounded up to a multiple of this, as the
            allocator does.
    """
    ops = tuple(op for op in order if not graph.operations[op].is_view)
    position = {op: OpIndex(i) for i, op in enumerate(ops)}
    buffers = [t.id for t in graph.tensors if t.producer is not None and t.buffer == t.id]
    index = {buffer: TensorIndex(i) for i, buffer in enumerate(buffers)}
    uses: dict[TensorId, set[OpIndex]] = {buffer: set() for buffer in buffers}
    to_end: set[TensorId] = set()
    for tensor in graph.tensors:
        if tensor.buffer not in uses:
            continue
        uses[tensor.buffer].update(position[c] for c in tensor.consumers if c in position)
        if tensor.is_output:
            to_end.add(tensor.buffer)
    plan_ops = []
    for op_id in ops:
        op = graph.operations[op_id]
        reads = (index.get(graph.tensors[t].buffer) for t in op.inputs)
        writes = (index.get(t) for t in op.outputs)
        pairs = ((index.get(graph.tensors[a].buffer), index.get(b)) for a, b in op.inplace)
        plan_ops.append(
            PlanOp(
                name=op.name,
                duration_us=duration_us[op_id],
                inputs=tuple(dict.fromkeys(t for t in reads if t is not None)),
                outputs=tuple(t for t in writes if t is not None),
                workspace_bytes=workspace_bytes[op_id] if workspace_bytes else 0,
                recomputable=op.recomputable,
                inplace=tuple((a, b) for a, b in pairs if a is not None and b is not None),
            )
        )
    plan_tensors = []
    for buffer in buffers:
        tensor = graph.tensors[buffer]
        assert tensor.producer is not None
        readers = tuple(sorted(uses[buffer]))
        plan_tensors.append(
            PlanTensor(
                name=tensor.name,
                bytes=0 if tensor.on_host else -(-tensor.bytes // granularity) * granularity,
                producer=position[tensor.producer],
                uses=readers,
                # ONNX Runtime frees a buffer after its last reader; with no reader, never
                to_end=buffer in to_end or tensor.on_host or not readers,
                swappable=tensor.bytes > 0 and not tensor.on_host,
                host_copy=any(
                    graph.operations[c].op_type == "MemcpyToHost" for c in tensor.consumers
                ),
            )
        )
    persistent = sum(
        t.bytes for t in graph.tensors if t.is_persistent and not t.on_host and t.buffer == t.id
    )
    problem = Problem(
        name=graph.name,
        ops=tuple(plan_ops),
        tensors=tuple(plan_tensors),
        fixed_bytes=persistent + reserve_bytes,
        capacity_bytes=capacity_bytes,
        swap_out_bytes_per_s=swap_out_bytes_per_s,
        swap_in_bytes_per_s=swap_in_bytes_per_s,
        allow_recompute=allow_recompute,
        overlap=overlap,
    )
    return Formulation(problem=problem, ops=ops, tensors=tuple(buffers))
