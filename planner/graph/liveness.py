"""Live ranges and memory timeline of a graph in a given order.

At step k the device holds every persistent tensor and every buffer whose live range covers k. A
buffer's range is `[producing step, last reading step + 1)`. A graph output, and a value without
readers, live to the end of the run: ONNX Runtime frees a buffer after its last reader, and these
have none. If a kernel writes in place over an input without later readers, input and output share
one buffer, which counts once at that step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.graph.model import Category, OpId, Role, TensorId, TrainingGraph

Bytes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRange:
    """Half-open range of steps `[start, end)` in which a buffer occupies `bytes` of the device."""

    tensor: TensorId
    bytes: int
    start: int
    end: int
    category: Category
    role: Role = Role.ORIGINAL


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTimeline:
    """Live bytes at each step of a schedule.

    Attributes:
        order: the operation that runs at each step.
        live_bytes: int64 [steps]; persistent bytes and workspace included.
        by_category: the same, split; the arrays add up to `live_bytes`.
        ranges: live ranges of the buffers that are not persistent.
        persistent_bytes: graph inputs and initializers, resident at every step.
    """

    order: tuple[OpId, ...]
    live_bytes: Bytes
    by_category: Mapping[Category, Bytes]
    ranges: tuple[LiveRange, ...]
    persistent_bytes: int

    @property
    def peak_bytes(self) -> int:
        """The largest live bytes over all steps."""
        return int(self.live_bytes.max()) if len(self.live_bytes) else self.persistent_bytes

    @property
    def peak_step(self) -> int:
        """The first step at which the peak is reached."""
        return int(self.live_bytes.argmax()) if len(self.live_bytes) else 0

    def resident_at(self, step: int) -> list[LiveRange]:
        """Return the ranges that cover `step`, largest first."""
        here = [r for r in self.ranges if r.start <= step < r.end]
        return sorted(here, key=lambda r: (-r.bytes, r.tensor))


def live_ranges(graph: TrainingGraph, order: Sequence[OpId]) -> tuple[LiveRange, ...]:
    """Compute the live range of each non-persistent device buffer, ordered by producing step.

    Args:
        graph: the graph.
        order: a topological order of all its operations.
    """
    step_of = {op: step for step, op in enumerate(order)}
    end_of_run = len(order)
    start: dict[TensorId, int] = {}
    last: dict[TensorId, int] = {}
    for tensor in graph.tensors:
        if tensor.producer is None or tensor.on_host:
            continue
        buffer = tensor.buffer
        produced = step_of[tensor.producer]
        start[buffer] = min(start.get(buffer, produced), produced)
        if tensor.is_output or (not tensor.consumers and tensor.buffer == tensor.id):
            last[buffer] = end_of_run
        else:
            reads = max((step_of[c] for c in tensor.consumers), default=produced)
            last[buffer] = max(last.get(buffer, 0), reads + 1, produced + 1)
    ends = dict(last)  # an overwritten buffer ends one step early; `last` keeps the last reader
    for op in graph.operations:
        taken: set[TensorId] = set()
        for source, target in op.inplace:
            step = step_of[op.id]
            buffer = graph.tensors[source].buffer
            dies_here = last.get(buffer) == step + 1 and start[buffer] < step
            if dies_here and target not in taken:
                ends[buffer] = step
                taken.add(target)
    ranges = []
    for buffer, begin in start.items():
        tensor = graph.tensors[buffer]
        if tensor.is_persistent or not tensor.bytes:
            continue
        producer = graph.operations[tensor.producer] if tensor.producer is not None else None
        ranges.append(
            LiveRange(
                tensor=buffer,
                bytes=tensor.bytes,
                start=begin,
                end=ends[buffer],
                category=tensor.category,
                role=producer.role if producer else Role.ORIGINAL,
            )
        )
    return tuple(sorted(ranges, key=lambda r: (r.start, r.tensor)))


def timeline(
    graph: TrainingGraph,
    order: Sequence[OpId],
    *,
    workspace_bytes: Mapping[OpId, int] | None = None,
) -> LiveTimeline:
    """Compute the live bytes per step, in total and by category.

    Workspace counts only at its own step.
    """
    steps = len(order)
    ranges = live_ranges(graph, order)
    delta = {category: np.zeros(steps + 1, dtype=np.int64) for category in Category}
    for r in ranges:
        delta[r.category][r.start] += r.bytes
        delta[r.category][r.end] -= r.bytes
    by_category = {category: np.cumsum(d)[:steps] for category, d in delta.items()}
    persistent = 0
    for tensor in graph.tensors:
        if tensor.is_persistent and not tensor.on_host and tensor.buffer == tensor.id:
            by_category[tensor.category] += tensor.bytes
            persistent += tensor.bytes
    for tensor in graph.output_copies:
        by_category[tensor.category] += tensor.bytes
        persistent += tensor.bytes
    for step, op in enumerate(order):
        by_category[Category.WORKSPACE][step] += (workspace_bytes or {}).get(op, 0)
    total = np.zeros(steps, dtype=np.int64)
    for part in by_category.values():
        total += part
    return LiveTimeline(
        order=tuple(order),
        live_bytes=total,
        by_category=by_category,
        ranges=ranges,
        persistent_bytes=persistent,
    )
