"""The compiled replay of the arena, and moves that let more of an order run in it.

The arena is that of `planner.runtime.memory.bfc`, as it is under a cap: regions double from a first one
and never merge, and every chunk is split. A test compares the two.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from planner.fit.demands import READ, RETURN, SCRATCH, TAKE, Demands, Longs
from planner.processes.compiled import INNER
from planner.runtime.memory.bfc import MAX_REGION_STEP, ROUNDING

_NONE = -1
_BEHIND = 0.15
"""Of a span: how far behind the first unit without room units are moved, which may go before it."""

CHUNKS, FREE, IN_USE, PEAK, HELD, NEXT, END, MISSING = range(8)
"""Of `Arena.state`: chunks made, and free ones; bytes in use, the most so far, and held; the next
region's bytes, and where the last one begins; bytes that were missing in one piece when it was full."""

OFFSET, SIZE, IS_FREE, BELOW, ABOVE = range(5)
"""Of `Arena.chunks`: where a chunk lies, and its neighbours in its region."""


class Arena(NamedTuple):
    """Space to replay in.

    Attributes:
        chunks: a row of what is known of every chunk.
        free: size, offset and number of the free chunks, ascending.
        chunk_of, unread: by buffer: the chunk it is in; how often it will still be read.
        scratch: chunks of one kernel's temporary buffers; `fed` of what a run begins with.
    """

    state: Longs
    chunks: Longs
    free: Longs
    chunk_of: Longs
    unread: Longs
    scratch: Longs
    fed: Longs


class Limits(NamedTuple):
    """What an order must keep: the arena's bytes, its first region's, and the most bytes in use."""

    arena_bytes: int
    first_bytes: int
    in_use_bytes: int


def arena_for(demands: Demands) -> Arena:
    """Space for every chunk that a replay can make."""
    taken = int(np.count_nonzero(demands.event <= SCRATCH))
    most = 4 * (taken + len(demands.reserved) + len(demands.fed)) + 64
    return Arena(
        state=np.zeros(8, dtype=np.int64),
        chunks=np.zeros((5, most), dtype=np.int64),
        free=np.zeros((3, most), dtype=np.int64),
        chunk_of=np.zeros(len(demands.size), dtype=np.int64),
        unread=np.zeros(len(demands.size), dtype=np.int64),
        scratch=np.zeros(taken + 1, dtype=np.int64),
        fed=np.zeros(len(demands.fed), dtype=np.int64),
    )


@numba.njit(**INNER)
def _find(arena: Arena, size: int, offset: int) -> int:
    """The first free chunk, in their order, that is not below (size, offset)."""
    low, high = 0, arena.state[FREE]
    while low < high:
        middle = (low + high) >> 1
        here = arena.free[0, middle]
        if here < size or (here == size and arena.free[1, middle] < offset):
            low = middle + 1
        else:
            high = middle
    return low


@numba.njit(**INNER)
def _remember(arena: Arena, chunk: int) -> None:
    """Put a chunk among the free ones."""
    size, offset = arena.chunks[SIZE, chunk], arena.chunks[OFFSET, chunk]
    at = _find(arena, size, offset)
    for i in range(arena.state[FREE], at, -1):
        arena.free[0, i] = arena.free[0, i - 1]
        arena.free[1, i] = arena.free[1, i - 1]
        arena.free[2, i] = arena.free[2, i - 1]
    arena.free[0, at] = size
    arena.free[1, at] = offset
    arena.free[2, at] = chunk
    arena.state[FREE] += 1
    arena.chunks[IS_FREE, chunk] = 1


@numba.njit(**INNER)
def _forget(arena: Arena, at: int) -> None:
    """Take the free chunk at this place in their order from among them."""
    arena.chunks[IS_FREE, arena.free[2, at]] = 0
    arena.state[FREE] -= 1
    for i in range(at, arena.state[FREE]):
        arena.free[0, i] = arena.free[0, i + 1]
        arena.free[1, i] = arena.free[1, i + 1]
        arena.free[2, i] = arena.free[2, i + 1]


@numba.njit(**INNER)
def _chunk(arena: Arena, offset: int, size: int, below: int, above: int) -> int:
    """A new chunk, free, between two neighbours."""
    chunk = arena.state[CHUNKS]
    arena.state[CHUNKS] += 1
    arena.chunks[OFFSET, chunk] = offset
    arena.chunks[SIZE, chunk] = size
    arena.chunks[BELOW, chunk] = below
    arena.chunks[ABOVE, chunk] = above
    if below != _NONE:
        arena.chunks[ABOVE, below] = chunk
    if above != _NONE:
        arena.chunks[BELOW, above] = chunk
    _remember(arena, chunk)
    return chunk


@numba.njit(**INNER)
def _take(arena: Arena, size: int, limit: int) -> int:
    """A chunk of `size` bytes; none where the arena may not hold another region for it."""
    s = arena.state
    if not s[FREE] or arena.free[0, s[FREE] - 1] < size:
        left = (limit - s[HELD]) // ROUNDING * ROUNDING
        if size > left:
            largest = arena.free[0, s[FREE] - 1] if s[FREE] else 0
            s[MISSING] = size - max(left, largest)
            return _NONE
        grown = False
        while size > s[NEXT]:
            s[NEXT] *= 2
            grown = True
        region = min(s[NEXT], left)
        if not grown:
            s[NEXT] = min(2 * s[NEXT], MAX_REGION_STEP)
        s[HELD] += region
        s[END] -= region + ROUNDING
        _chunk(arena, s[END], region, _NONE, _NONE)
    at = _find(arena, size, -(1 << 62))
    chunk = arena.free[2, at]
    _forget(arena, at)
    rest = arena.chunks[SIZE, chunk] - size
    if rest:
        arena.chunks[SIZE, chunk] = size
        _chunk(arena, arena.chunks[OFFSET, chunk] + size, rest, chunk, arena.chunks[ABOVE, chunk])
    s[IN_USE] += size
    s[PEAK] = max(s[PEAK], s[IN_USE])
    return chunk


@numba.njit(**INNER)
def _give_back(arena: Arena, chunk: int) -> None:
    """Free a chunk, joining it with free neighbours."""
    c = arena.chunks
    arena.state[IN_USE] -= c[SIZE, chunk]
    above, below = c[ABOVE, chunk], c[BELOW, chunk]
    if above != _NONE and c[IS_FREE, above]:
        _forget(arena, _find(arena, c[SIZE, above], c[OFFSET, above]))
        c[SIZE, chunk] += c[SIZE, above]
        c[ABOVE, chunk] = c[ABOVE, above]
        if c[ABOVE, above] != _NONE:
            c[BELOW, c[ABOVE, above]] = chunk
    if below != _NONE and c[IS_FREE, below]:
        _forget(arena, _find(arena, c[SIZE, below], c[OFFSET, below]))
        c[SIZE, below] += c[SIZE, chunk]
        c[ABOVE, below] = c[ABOVE, chunk]
        if c[ABOVE, chunk] != _NONE:
            c[BELOW, c[ABOVE, chunk]] = below
        chunk = below
    _remember(arena, chunk)


@numba.njit(**INNER)
def _step(demands: Demands, unit: int, arena: Arena, limit: int) -> bool:
    """Whether the arena has room for what a unit takes; it may run only then."""
    scratch = 0
    has_room = True
    for e in range(demands.event_at[unit], demands.event_at[unit + 1]):
        what, whom = demands.event[e], demands.subject[e]
        if what == TAKE:
            arena.chunk_of[whom] = _take(arena, int(demands.size[whom]), limit)
            has_room = arena.chunk_of[whom] != _NONE
        elif what == SCRATCH:
            chunk = _take(arena, whom, limit)
            has_room = chunk != _NONE
            if has_room:
                arena.scratch[scratch] = chunk
                scratch += 1
        elif what == READ:
            arena.unread[whom] -= 1
            if not arena.unread[whom]:
                _give_back(arena, int(arena.chunk_of[whom]))
                arena.chunk_of[whom] = _NONE
        if what == RETURN or not has_room:
            while scratch:
                scratch -= 1
                _give_back(arena, arena.scratch[scratch])
        if not has_room:
            break
    return has_room


@numba.njit(**INNER)
def _run(demands: Demands, order: Longs, until: int, arena: Arena, limits: Limits) -> int:
    """How many units of a run there is room for, of the first `until`."""
    for i in range(len(demands.size)):
        arena.chunk_of[i] = _NONE
        arena.unread[i] = demands.readers[i]
    ran = 0
    fed = 0
    while fed < len(demands.fed):
        arena.fed[fed] = _take(arena, demands.fed[fed], limits.arena_bytes)
        if arena.fed[fed] == _NONE:
            until = 0
            break
        fed += 1
    while ran < until:
        has_room = _step(demands, order[ran], arena, limits.arena_bytes)
        if not has_room or arena.state[PEAK] > limits.in_use_bytes:
            break
        ran += 1
    for i in range(len(demands.size)):
        if arena.chunk_of[i] != _NONE:
            _give_back(arena, int(arena.chunk_of[i]))
    while fed:
        fed -= 1
        _give_back(arena, arena.fed[fed])
    return ran


@numba.njit(**INNER)
def _room(demands: Demands, order: Longs, arena: Arena, limits: Limits) -> int:
    """How many units, from the first on, there is room for in each of two runs that follow each other.

    Where not for all, `MISSING` says how many bytes in one piece the next one would need more.
    """
    s = arena.state
    s[:] = 0
    s[NEXT] = min(limits.first_bytes, limits.arena_bytes)
    for i in range(len(demands.reserved)):
        if _take(arena, demands.reserved[i], limits.arena_bytes) == _NONE:
            return 0
    ran = len(order)
    for _ in range(2):
        missing = s[MISSING]
        s[MISSING] = 0
        before = ran
        ran = _run(demands, order, before, arena, limits)
        if ran == before:
            s[MISSING] = missing
    return ran


@numba.njit(cache=True, nogil=True)
def rooms(
    demands: Demands, order: Longs, arena: Arena, limits: Limits, firsts: Longs, found: Longs
) -> None:
    """For each first region, how many units of `order` the arena has room for, into `found`."""
    for i in range(len(firsts)):
        tried = Limits(limits.arena_bytes, firsts[i], limits.in_use_bytes)
        found[i] = _room(demands, order, arena, tried)


@numba.njit(**INNER)
def _move(order: Longs, place: Longs, i: int, j: int) -> None:
    """Move what is at place i to place j, and what is between by one."""
    unit = order[i]
    step = 1 if j > i else -1
    while i != j:
        order[i] = order[i + step]
        place[order[i]] = i
        i += step
    order[j] = unit
    place[unit] = j


@numba.njit(cache=True, nogil=True)
def climb(
    demands: Demands,
    order: Longs,
    place: Longs,
    arena: Arena,
    limits: Limits,
    spans: Longs,
    tries: int,
    rng: np.random.Generator,
) -> int:
    """Move units near the first one that there is no room for; returns how many there is room for.

    A move is kept unless there is room for fewer then, or for as many with more bytes missing.

    Args:
        order: of units; changed.
        place: of each unit in it.
        spans: how far before that one units are moved, and how far they move, at most; each of them
            is as likely.
        tries: how many moves.
    """
    units = len(order)
    best = _room(demands, order, arena, limits)
    missing = arena.state[MISSING]
    for _ in range(tries):
        if best == units:
            break
        span = spans[int(rng.random() * len(spans))]
        i = best + int(span * (_BEHIND - (1 + _BEHIND) * rng.random()))
        i = min(max(i, 0), units - 1)
        unit = order[i]
        low, high = max(0, i - span), min(units - 1, i + span)
        for e in range(demands.before_at[unit], demands.before_at[unit + 1]):
            low = max(low, int(place[demands.before[e]]) + 1)
        for e in range(demands.after_at[unit], demands.after_at[unit + 1]):
            high = min(high, int(place[demands.after[e]]) - 1)
        j = low + int(rng.random() * (high - low + 1))
        if i == j or min(i, j) > best:
            continue
        _move(order, place, i, j)
        ran = _room(demands, order, arena, limits)
        if ran > best or (ran == best and arena.state[MISSING] <= missing):
            best, missing = ran, arena.state[MISSING]
        else:
            _move(order, place, j, i)
    return best
