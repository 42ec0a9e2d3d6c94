"""Models of two allocators of ONNX Runtime: the arena, and the layout of the memory pattern.

region   held from the system in one piece; regions never merge
chunk    a stretch of a region, in use or free; two free neighbours become one
"""

from __future__ import annotations

import enum
from bisect import bisect_left, insort
from collections.abc import Hashable

from planner.onnxio.kinds import GRANULARITY_BYTES

ROUNDING = GRANULARITY_BYTES
MAX_REGION_STEP = 1 << 30  # `max_power_of_two_extend_bytes`: doubling stops here


_LOWEST = -(1 << 62)


class Growth(enum.Enum):
    """The arena's rule for the size of a new region: `arena_extend_strategy`."""

    DOUBLING = "kNextPowerOfTwo"
    EXACT = "kSameAsRequested"


class ArenaFullError(Exception):
    """The arena may not hold another region."""


def round_up(size: int) -> int:
    """Round `size` up to the arena's 256 bytes."""
    return -(-size // ROUNDING) * ROUNDING


class Block:
    """A chunk, linked to its neighbours in the region."""

    __slots__ = ("after", "before", "free", "offset", "requested", "size")

    def __init__(self, offset: int, size: int) -> None:
        self.offset = offset
        self.size = size
        self.requested = 0
        self.free = True
        self.before: Block | None = None
        self.after: Block | None = None


class BfcArena:
    """Best fit with coalescing (bfc_arena.cc): the smallest free chunk that fits, lowest first.

    Attributes:
        requested, in_use, held: requested bytes, bytes of chunks in use, bytes of regions.
    """

    def __init__(
        self,
        *,
        growth: Growth,
        initial_chunk_bytes: int,
        max_dead_bytes: int,
        limit_bytes: int | None,
    ) -> None:
        self.growth = growth
        self.max_dead_bytes = max_dead_bytes
        self.limit_bytes = limit_bytes
        first = (
            initial_chunk_bytes if limit_bytes is None else min(initial_chunk_bytes, limit_bytes)
        )
        self.next_region = round_up(first)
        self.requested = 0
        self.in_use = 0
        self.held = 0
        self._keys: list[tuple[int, int]] = []  # (size, offset) of free chunks, ascending
        self._free: dict[int, Block] = {}  # by offset
        self._end = 0

    def allocate(self, size: int) -> Block:
        """Return a block of at least `size` > 0 bytes."""
        rounded = round_up(size)
        if not self._keys or self._keys[-1][0] < rounded:
            self._extend(rounded)
        chunk_size, offset = self._keys.pop(bisect_left(self._keys, (rounded, _LOWEST)))
        block = self._free.pop(offset)
        waste = chunk_size - rounded
        if waste and (chunk_size >= 2 * rounded or waste >= self.max_dead_bytes):
            self._split(block, rounded)
        block.free = False
        block.requested = size
        self.requested += size
        self.in_use += block.size
        return block

    def release(self, block: Block) -> None:
        """Free `block`, and join it with free neighbours."""
        self.requested -= block.requested
        self.in_use -= block.size
        block.free = True
        after, before = block.after, block.before
        if after is not None and after.free:
            self._forget(after)
            block.size += after.size
            block.after = after.after
            if after.after is not None:
                after.after.before = block
        if before is not None and before.free:
            self._forget(before)
            before.size += block.size
            before.after = block.after
            if block.after is not None:
                block.after.before = before
            block = before
        self._remember(block)

    def _extend(self, rounded: int) -> None:
        available = None
        if self.limit_bytes is not None:
            available = (self.limit_bytes - self.held) // ROUNDING * ROUNDING
            if rounded > available:
                raise ArenaFullError(f"{rounded} bytes requested, {available} available")
        size = rounded
        if self.growth is Growth.DOUBLING:
            grown = False
            while rounded > self.next_region:
                self.next_region *= 2
                grown = True
            size = self.next_region if available is None else min(self.next_region, available)
            if not grown:
                self.next_region = min(2 * self.next_region, MAX_REGION_STEP)
        self.held += size
        # each region lies below the last, as Linux maps them: among free chunks of one size the lowest
        # address is taken. The distance keeps regions from looking like neighbours
        self._end -= size + ROUNDING
        self._remember(Block(self._end, size))

    def _split(self, block: Block, size: int) -> None:
        rest = Block(block.offset + size, block.size - size)
        rest.before, rest.after = block, block.after
        if block.after is not None:
            block.after.before = rest
        block.after, block.size = rest, size
        self._remember(rest)

    def _remember(self, block: Block) -> None:
        insort(self._keys, (block.size, block.offset))
        self._free[block.offset] = block

    def _forget(self, block: Block) -> None:
        del self._keys[bisect_left(self._keys, (block.size, block.offset))]
        del self._free[block.offset]


class PatternLayout:
    """Offsets in one block, assigned online (mem_pattern_planner.h); `size` never shrinks.

    A tensor gets the tightest gap below the block's present end, else the stretch after the last
    tensor in it.
    """

    def __init__(self) -> None:
        self.size = 0
        self._gaps: list[tuple[int, int]] = []  # (bytes, offset), ascending; the tail included
        self._gap_at: dict[int, int] = {}  # offset -> end
        self._gap_to: dict[int, int] = {}  # end -> offset
        self._placed: dict[Hashable, tuple[int, int]] = {}

    def allocate(self, key: Hashable, size: int) -> None:
        """Place `size` > 0 bytes under `key`."""
        at = bisect_left(self._gaps, (size, -1))
        if at < len(self._gaps):
            length, offset = self._gaps[at]
            self._remove(offset, offset + length)
            if length > size:
                self._add(offset + size, offset + length)
        else:
            offset = self._gap_to.get(self.size, self.size)
            if offset < self.size:
                self._remove(offset, self.size)
            self.size = offset + size
        self._placed[key] = (offset, offset + size)

    def placed(self, key: Hashable) -> tuple[int, int]:
        """Return the half-open range of offsets under `key`."""
        return self._placed[key]

    def release(self, key: Hashable) -> None:
        """Free the range under `key`."""
        start, end = self._placed.pop(key)
        if end in self._gap_at:
            after = self._gap_at[end]
            self._remove(end, after)
            end = after
        if start in self._gap_to:
            before = self._gap_to[start]
            self._remove(before, start)
            start = before
        self._add(start, end)

    def _add(self, start: int, end: int) -> None:
        insort(self._gaps, (end - start, start))
        self._gap_at[start] = end
        self._gap_to[end] = start

    def _remove(self, start: int, end: int) -> None:
        del self._gaps[bisect_left(self._gaps, (end - start, start))]
        del self._gap_at[start]
        del self._gap_to[end]
