"""Bytes that the processor's last cache no longer holds when an operation asks for them.

An operation takes longer where what it reads and writes has left the caches since it was last used: a
plan with a smaller working set makes the same operations quicker. The cache is modelled as one that
drops what was used longest ago, over the addresses that ONNX Runtime gives tensors in the block of its
memory pattern (onnxruntime/core/framework/mem_pattern_planner.h), where a new tensor takes the place of
one that was freed, which the cache may still hold.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from planner.graph.model import OpId, TensorId, TrainingGraph
from planner.runtime.memory.allocation import StorageKind, place
from planner.runtime.memory.bfc import PatternLayout, round_up

_GRANULE_BYTES = 1 << 16
_MOST_TOUCHES = 300_000
"""Above so many in a step, granules are larger."""

Range = tuple[int, int]


def missed_bytes(
    graph: TrainingGraph, order: Sequence[OpId], *, cache_bytes: int
) -> tuple[int, ...]:
    """By OpId, bytes that an operation reads or writes and the cache does not hold, in a step after the
    first.

    Views touch nothing. A kernel's workspace is left out.

    Args:
        order: all operations, as they run.
        cache_bytes: what the cache holds, more than 0.
    """
    ranges = _ranges(graph, order)
    size = max(
        _GRANULE_BYTES, sum(end - start for used in ranges for start, end in used) // _MOST_TOUCHES
    )
    cache = _GranuleCache(most=max(1, cache_bytes // size))
    missed = [0] * len(graph.operations)
    for _ in range(2):  # what one step leaves is what the next one finds
        for op, used in zip(order, ranges, strict=True):
            missed[op] = sum(cache.missed(start, end, size) for start, end in used)
    return tuple(missed)


class _GranuleCache:
    """Granules by number, those used last at the end."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: OrderedDict[int, None] = OrderedDict()

    def missed(self, start: int, end: int, size: int) -> int:
        """Use a range of addresses, half-open; bytes of it that were not held."""
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
    """What each operation touches, in executed order: half-open ranges of addresses."""
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
    """Addresses of what is not in the block: inputs, initializers and outputs, behind each other."""
    found: dict[TensorId, int] = {}
    end = -1 << 62  # the block begins at 0
    for tensor in graph.tensors:
        if tensor.producer is None or kind.get(tensor.id) is StorageKind.OUTPUT:
            found[tensor.id] = end
            end += round_up(tensor.bytes)
    return found
