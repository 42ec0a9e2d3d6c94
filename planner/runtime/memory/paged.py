"""Predict the pages that planner's pool takes (`planner/native/pool.cpp`): rounding, and nothing else.

A buffer of a page or more takes whole pages, which need not lie side by side. Smaller ones share pages,
in pieces: of the pages that have room, the one that was taken first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from planner.graph.model import OpId, TrainingGraph
from planner.onnxio.kinds import PAGE_BYTES
from planner.results import ArenaForecast
from planner.runtime.memory.arena import (
    beside_bytes,
    demand_under_cap,
    run_step,
    small_packed_sizes,
)

PIECE_BYTES = 64
"""Buffers that share a page are rounded up to this (planner/native/host_pages.cpp, `piece_bytes`)."""


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
    """A page in pieces; `is_free` has an entry for each piece."""

    is_free: list[bool]

    def take(self, count: int) -> int | None:
        """Take the smallest run of free pieces that is long enough; return its start, or None without
        one."""
        best: tuple[int, int] | None = None
        length = 0
        for at, free in enumerate((*self.is_free, False)):
            if free:
                length += 1
                continue
            if length >= count and (best is None or length < best[0]):
                best = (length, at - length)
            length = 0
        if best is None:
            return None
        self.mark(best[1], count, free=False)
        return best[1]

    def mark(self, start: int, count: int, *, free: bool) -> None:
        """Mark pieces as taken or free."""
        self.is_free[start : start + count] = [free] * count


@dataclass(slots=True, kw_only=True)
class PagedPool:
    """The pool, with no limit. It has the interface of `planner.runtime.memory.bfc.Arena`.

    Attributes:
        piece_bytes: of what shares a page; a device has another size.
        requested: bytes asked for, of what is in use.
        pages: in use; pages_most: at the most.
    """

    page_bytes: int = PAGE_BYTES
    piece_bytes: int = PIECE_BYTES
    requested: int = 0
    pages: int = 0
    pages_most: int = 0
    _shared: list[_Shared] = field(default_factory=list)

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
        for page in self._shared:
            if (start := page.take(count)) is not None:
                return Taken(size, page, start)
        page = _Shared([True] * (self.page_bytes // self.piece_bytes))
        self._shared.append(page)
        self._grow(1)
        page.mark(0, count, free=False)
        return Taken(size, page)

    def release(self, taken: Taken) -> None:
        """Release a buffer."""
        self.requested -= taken.bytes
        page = taken.shared
        if page is None:
            self.pages -= _units(taken.bytes, self.page_bytes)
            return
        page.mark(taken.start, _units(taken.bytes, self.piece_bytes), free=True)
        if all(page.is_free):
            self._shared.remove(page)
            self.pages -= 1

    def _grow(self, pages: int) -> None:
        self.pages += pages
        self.pages_most = max(self.pages_most, self.pages)


def pool_bytes(
    graph: TrainingGraph,
    order: Sequence[OpId],
    *,
    threads: int,
    page_bytes: int = PAGE_BYTES,
    host_in_pool: bool = False,
) -> int:
    """Return the bytes of the smallest pool on the CPU in which a step of `order` runs.

    Inputs and large initializers lie outside of it, as with the arena; results are in it.

    Args:
        threads: threads of the session, for which kernels' workspace is counted.
        host_in_pool: count outputs that are stored on the host as well, as the CPU's pool holds them.
    """
    demand = demand_under_cap(graph, order, threads=threads, host_in_arena=host_in_pool)
    pool = PagedPool(page_bytes=page_bytes)
    for size in (*demand.reserved, *small_packed_sizes(graph), *demand.fed):
        pool.allocate(size)
    run_step(order, graph, demand, pool)
    return pool.held


def in_pages(size: int) -> int:
    """Round a number of bytes down to whole pages."""
    return size // PAGE_BYTES * PAGE_BYTES


def forecast_pool(graph: TrainingGraph, order: Sequence[OpId], *, threads: int) -> ArenaForecast:
    """Predict the bytes that `planner.open_session` holds for a file with a pool."""
    held_bytes = pool_bytes(graph, order, threads=threads)
    return ArenaForecast(
        options="recommended",
        in_use_bytes=held_bytes,
        held_bytes=held_bytes,
        beside_bytes=beside_bytes(graph),
    )
