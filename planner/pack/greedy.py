"""Two fast packings that need no capacity: by falling size, and in order of time.

Largest first at the lowest fit (as in TensorFlow Lite's arena planner; Pisarchyk and Lee, "Efficient
memory management for deep neural net inference", 2020) packs best of the simple orders, at a price
of one pass over the placed buffers for each new one. Best fit in order of time is what an allocator
does at run time; its free list makes it O(n log n), for plans of any length.
"""

from __future__ import annotations

import time
from bisect import bisect_left, insort

import numpy as np

from planner.pack.instance import Instance, Ints


def first_fit(instance: Instance, order: Ints, *, deadline: float) -> Ints | None:
    """Offsets in units: each buffer, in `order`, as low as those placed before it allow.

    Returns:
        int64 [buffers], or None if the deadline (of `time.monotonic`) passed and a thousand were
        not all of them.
    """
    count = len(instance)
    offsets = np.zeros(count, dtype=np.int64)
    # the placed ones, by rising offset
    bottom, top = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    first, last = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    for placed, buffer in enumerate(order.tolist()):
        if placed % 1024 == 1023 and time.monotonic() > deadline:
            return None
        lo, hi = instance.first[buffer], instance.last[buffer]
        beside = np.flatnonzero((first[:placed] < hi) & (last[:placed] > lo))
        floor = np.zeros(len(beside) + 1, dtype=np.int64)  # of the gap below each, and of the last
        np.maximum.accumulate(top[:placed][beside], out=floor[1:])
        alignment = instance.alignment[buffer]
        if alignment > 1:
            floor = -(-floor // alignment) * alignment
        fits = bottom[:placed][beside] - floor[:-1] >= instance.size[buffer]
        gap = int(fits.argmax()) if fits.any() else len(beside)
        offset = offsets[buffer] = floor[gap]
        at = int(np.searchsorted(bottom[:placed], offset))
        for column, value in (
            (bottom, offset),
            (top, offset + instance.size[buffer]),
            (first, lo),
            (last, hi),
        ):
            column[at + 1 : placed + 1] = column[at:placed]
            column[at] = value
    return offsets


def sweep(instance: Instance, *, backwards: bool = False) -> Ints:
    """Offsets in units by best fit in order of time, the largest first among those that start at once.

    Args:
        backwards: from the end of the run to its start.
    """
    sections = instance.sections
    first, last = instance.first, instance.last
    if backwards:
        first, last = sections - last, sections - first
    births = np.lexsort((-instance.size, first))
    deaths = np.argsort(last, kind="stable").tolist()
    size, alignment = instance.size.tolist(), instance.alignment.tolist()
    start, end = first.tolist(), last.tolist()
    free = _FreeList()
    offsets = [0] * len(instance)
    dead = 0
    for buffer in births.tolist():
        while end[deaths[dead]] <= start[buffer]:
            gone = deaths[dead]
            free.release(offsets[gone], offsets[gone] + size[gone])
            dead += 1
        offsets[buffer] = free.take(size[buffer], alignment[buffer])
    return np.array(offsets, dtype=np.int64)


class _FreeList:
    """Free stretches below `top`, by size and by either end; two neighbours become one."""

    def __init__(self) -> None:
        self.top = 0
        self._by_size: list[tuple[int, int]] = []
        self._end_of: dict[int, int] = {}
        self._start_of: dict[int, int] = {}

    def take(self, size: int, alignment: int) -> int:
        """The lowest aligned offset in the smallest stretch that holds `size`."""
        for index in range(bisect_left(self._by_size, (size, -1)), len(self._by_size)):
            length, start = self._by_size[index]
            offset = -(-start // alignment) * alignment
            if offset + size <= start + length:
                self._forget(start, start + length)
                self._remember(start, offset)
                self._remember(offset + size, start + length)
                return offset
        start = self._start_of.get(self.top, self.top)
        offset = -(-start // alignment) * alignment
        if start < self.top:
            self._forget(start, self.top)
        self._remember(start, offset)
        self.top = offset + size
        return offset

    def release(self, start: int, end: int) -> None:
        """Give `[start, end)` back."""
        if end in self._end_of:
            joined = self._end_of[end]
            self._forget(end, joined)
            end = joined
        if start in self._start_of:
            joined = self._start_of[start]
            self._forget(joined, start)
            start = joined
        self._remember(start, end)

    def _remember(self, start: int, end: int) -> None:
        if start < end:
            insort(self._by_size, (end - start, start))
            self._end_of[start] = end
            self._start_of[end] = start

    def _forget(self, start: int, end: int) -> None:
        del self._by_size[bisect_left(self._by_size, (end - start, start))]
        del self._end_of[start]
        del self._start_of[end]
