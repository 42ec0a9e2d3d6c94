"""Predict the pages that planner's pool takes (planner/native/pool/pool.cpp): rounding, nothing else.

A buffer of a page or more takes whole pages, which need not lie side by side. Smaller ones share pages,
in pieces: of the pages that have room, the one that was taken first.
"""

from __future__ import annotations

import itertools
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from planner.graph.model import OpId, TrainingGraph
from planner.native import DEVICE_PAGE_BYTES
from planner.onnxio.kinds import PAGE_BYTES
from planner.results import ArenaForecast
from planner.runtime.device.predict.bfc_device import device_demand
from planner.runtime.memory.arena import (
    Demand,
    beside_bytes,
    demand_under_cap,
    run_step,
    small_packed_sizes,
)

PIECE_BYTES, DEVICE_PIECE_BYTES = 64, 256
"""Sizes to which buffers that share a page are rounded up (`piece_bytes` in pool/host_pages.cpp and
pool/device_pages.cpp)."""


def _units(size: int, unit: int) -> int:
    """Return the number of units of `unit` bytes that hold `size` bytes, at least one."""
    return max(1, -(-size // unit))


@dataclass(slots=True, eq=False)
class Taken:
    """A buffer: its bytes, and the page that it shares with others; None where it has whole pages."""

    bytes: int
    shared: _Shared | None = None
    start: int = 0


@dataclass(slots=True, eq=False)
class _Shared:
    """A page in pieces.

    Attributes:
        number: of the pages, in the order in which they were taken.
        spans: free pieces, as sorted pairs of a start and an end; none once the page is given back.
    """

    number: int
    spans: list[tuple[int, int]]

    @property
    def longest(self) -> int:
        """Pieces of the longest span."""
        return max((end - start for start, end in self.spans), default=0)

    def take(self, count: int) -> int:
        """Take the head of the shortest span that is long enough, and return its start."""
        _, at = min(
            (end - start, n) for n, (start, end) in enumerate(self.spans) if end - start >= count
        )
        start, end = self.spans[at]
        self.spans[at : at + 1] = [(start + count, end)] if start + count < end else []
        return start

    def put(self, start: int, count: int) -> None:
        """Give pieces back, joined with the free ones beside them."""
        end, at = start + count, bisect(self.spans, (start, start))
        first, last = at, at
        if at and self.spans[at - 1][1] == start:
            first, start = at - 1, self.spans[at - 1][0]
        if at < len(self.spans) and self.spans[at][0] == end:
            last, end = at + 1, self.spans[at][1]
        self.spans[first:last] = [(start, end)]


@dataclass(slots=True, kw_only=True)
class PagedPool:
    """The pool, with no limit. It has the interface of `planner.runtime.memory.bfc.Arena`.

    Attributes:
        piece_bytes: unit of small buffers, which share pages of `page_bytes`; a device has others.
        requested: bytes asked for by the buffers in use.
        pages, pages_most: pages in use, now and at the peak.
        _by_longest: heaps of pages by their longest span; an outdated entry stays until it is met.
    """

    piece_bytes: int = PIECE_BYTES
    page_bytes: int = PAGE_BYTES
    requested: int = 0
    pages: int = 0
    pages_most: int = 0
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _by_longest: dict[int, list[tuple[int, _Shared]]] = field(default_factory=dict)

    @property
    def in_use(self) -> int:
        """Bytes of the pages in use."""
        return self.pages * self.page_bytes

    @property
    def held(self) -> int:
        """Bytes of the most pages that were in use."""
        return self.pages_most * self.page_bytes

    def allocate(self, size: int) -> Taken:
        """Take a buffer."""
        self.requested += size
        if size >= self.page_bytes:
            self._grow(_units(size, self.page_bytes))
            return Taken(size)
        count = _units(size, self.piece_bytes)
        page = self._first(count)
        if page is None:
            page = _Shared(next(self._numbers), [(0, self.page_bytes // self.piece_bytes)])
            self._grow(1)
        start = page.take(count)
        self._list(page)
        return Taken(size, page, start)

    def release(self, taken: Taken) -> None:
        """Release a buffer."""
        self.requested -= taken.bytes
        page = taken.shared
        if page is None:
            self.pages -= _units(taken.bytes, self.page_bytes)
            return
        page.put(taken.start, _units(taken.bytes, self.piece_bytes))
        if page.spans == [(0, self.page_bytes // self.piece_bytes)]:
            page.spans.clear()
            self.pages -= 1
        self._list(page)

    def _first(self, count: int) -> _Shared | None:
        """Return the page taken first, of those with a long enough span; None without one."""
        found: list[tuple[int, _Shared]] = []
        for longest, heap in self._by_longest.items():
            while heap and heap[0][1].longest != longest:
                heappop(heap)
            if heap and longest >= count:
                found.append(heap[0])
        return min(found)[1] if found else None

    def _list(self, page: _Shared) -> None:
        if page.spans:
            heappush(self._by_longest.setdefault(page.longest, []), (page.number, page))

    def _grow(self, pages: int) -> None:
        self.pages += pages
        self.pages_most = max(self.pages_most, self.pages)


def pool_bytes(
    graph: TrainingGraph,
    order: Sequence[OpId],
    *,
    threads: int,
    host_in_pool: bool = False,
) -> int:
    """Return the bytes of the smallest pool on the CPU in which a step of `order` runs.

    Inputs and large initializers lie outside of it, as with the arena; results are in it.

    Args:
        threads: threads of the session, for which kernels' workspace is counted.
        host_in_pool: count outputs that are stored on the host as well, as the CPU's pool holds them.
    """
    demand = demand_under_cap(graph, order, threads=threads, host_in_arena=host_in_pool)
    kept = (*demand.reserved, *small_packed_sizes(graph))
    return _held(graph, order, replace(demand, reserved=kept), PagedPool())


def device_pool_bytes(graph: TrainingGraph, order: Sequence[OpId]) -> int:
    """Return the bytes of the smallest pool on a device in which a step of `order` runs.

    Inputs, initializers and outputs are in it; kernels' workspace, which is not predicted, is not.
    """
    pool = PagedPool(piece_bytes=DEVICE_PIECE_BYTES, page_bytes=DEVICE_PAGE_BYTES)
    return _held(graph, order, device_demand(graph, order), pool)


def _held(graph: TrainingGraph, order: Sequence[OpId], demand: Demand, pool: PagedPool) -> int:
    for size in (*demand.reserved, *demand.fed):
        pool.allocate(size)
    run_step(order, graph, demand, pool)
    return pool.held


def in_pages(size: int, page_bytes: int = PAGE_BYTES) -> int:
    """Round a number of bytes down to whole pages."""
    return size // page_bytes * page_bytes


def forecast_pool(graph: TrainingGraph, order: Sequence[OpId], *, threads: int) -> ArenaForecast:
    """Predict the bytes that `planner.open_session` holds for a file with a pool."""
    held_bytes = pool_bytes(graph, order, threads=threads)
    return ArenaForecast(
        options="recommended",
        in_use_bytes=held_bytes,
        held_bytes=held_bytes,
        beside_bytes=beside_bytes(graph),
    )
