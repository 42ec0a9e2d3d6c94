"""Bytes that the processor's last cache no longer holds when an operation needs them.

An operation takes longer where its inputs and outputs have left the caches since their last use: a
plan with a smaller working set makes the same operations faster. The model is a cache with
least-recently-used replacement, over the addresses of tensors in the block of ONNX Runtime's memory
pattern (onnxruntime/core/framework/mem_pattern_planner.h). There a new tensor takes the place of a
freed one, which the cache may still hold.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from planner.graph.model import OpId, TensorId, TrainingGraph
from planner.runtime.memory.allocation import StorageKind, place
from planner.runtime.memory.bfc import PatternLayout, round_up

_GRANULE_BYTES = 1 << 16
_MOST_TOUCHES = 300_000
"""The most granules touched in a step; above that, granules are larger."""

Range = tuple[int, int]


def missed_bytes(
    graph: TrainingGraph, order: Sequence[OpId], *, cache_bytes: int
) -> tuple[int, ...]:
    """Return by OpId the bytes that an operation touches and the cache does not hold, in a step after
    the first.

    Views touch nothing. A kernel's workspace is left out.

    Args:
        order: all operations, in executed order.
        cache_bytes: size of the cache, more than 0.
    """
    ranges = _ranges(graph, order)
    size = max(
        _GRANULE_BYTES, sum(end - start for used in ranges for start, end in used) // _MOST_TOUCHES
    )
    cache = _GranuleCache(most=max(1, cache_bytes // size))
    missed = [0] * len(graph.operations)
    for _ in range(2):  # a step finds the cache as the previous one left it
        for op, used in zip(order, ranges, strict=True):
            missed[op] = sum(cache.missed(start, end, size) for start, end in used)
    return tuple(missed)


class _GranuleCache:
    """Granules by number, the most recently used at the end."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: OrderedDict[int, None] = OrderedDict()

    def missed(self, start: int, end: int, size: int) -> int:
        """Use a half-open range of addresses; return its bytes that were not held."""
        held, missed = self._held, 0
        for granule in range(start // size, -(-end // size)):
            if granule in held:
                held.move_to_end(granule)
                continue
            missed += min(end, (granule + 1) * size) - max(start, granule * size)
            held[granule] = None
            if len(held) > self._most:
                held.popitem(last=False)
        return missed


def _ranges(graph: TrainingGraph, order: Sequence[OpId]) -> list[list[Range]]:
    """Return the half-open address ranges that each operation touches, in executed order."""
    plan = place(graph, order, reuse=True, host_in_arena=True)
    layout, at = PatternLayout(), _beside(graph, plan.kind)
    ranges: list[list[Range]] = []
    for step, op in enumerate(order):
        operation = graph.operations[op]
        for tensor in operation.outputs:
            size = graph.tensors[tensor].bytes
            if size and plan.kind[tensor] is StorageKind.OWN:
                layout.allocate(tensor, round_up(size))
                at[tensor] = layout.placed(tensor)[0]
        used = () if operation.is_view else dict.fromkeys((*operation.inputs, *operation.outputs))
        starts = ((at.get(plan.buffer[t]), graph.tensors[t].bytes) for t in used)
        ranges.append([(start, start + size) for start, size in starts if start is not None])
        for tensor in plan.freed_after[step]:
            if tensor in at:
                layout.release(tensor)
    return ranges


def _beside(graph: TrainingGraph, kind: Mapping[TensorId, StorageKind]) -> dict[TensorId, int]:
    """Return consecutive addresses of tensors outside the block: inputs, initializers and outputs."""
    found: dict[TensorId, int] = {}
    end = -1 << 62  # the block begins at 0
    for tensor in graph.tensors:
        if tensor.producer is None or kind.get(tensor.id) is StorageKind.OUTPUT:
            found[tensor.id] = end
            end += round_up(tensor.bytes)
    return found
