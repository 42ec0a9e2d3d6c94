"""Depth-first search for offsets within a capacity, compiled.

Buffers rest on what is below them: where there is a packing, there is one in which each lies at 0 or
on the top of a buffer beside it (the canonical packings of Moffitt, "MiniMalloc", ASPLOS 2023, whose
sections, floors and decomposition these are too). Each open buffer has a floor, the least offset that
is still possible; it is *held* if a placed buffer ends there. One step decides about one held buffer
that nothing open fits below: it lies at its floor, or later on the top of an open buffer, so that its
floor is the lowest of those. That settles whole regions one after another, in any order of offsets,
where decisions by rising offset over the whole run would come back to a dead end late.

What follows from a decision is worked out section by section, until nothing changes:

    capacity ┬───────────        limit = capacity - rest: what lies lowest begins there or below
             │   rest            a buffer with a floor above the limit lies on one that can be lowest
       limit ├───────────        no floor at or below it: a dead end
             │   slack           a buffer not held lies on the lowest top beside it, or higher
    lowest   ├───────────
    floor    │ placed, lost
           0 ┴───────────

That a state failed means that its open buffers have no places from their floors on. It is remembered
by the digest of these, and no state like it is searched again, in later runs either. Parts of the run
that no open buffer joins are searched one after another; when one fails, the search goes back to the
decision that cut it off, over all that other parts came to since.

Why nothing is missed: consider the packings in which each buffer is held by another; if there is any
packing that keeps what is placed where it is, one of least sum of offsets is such. Floors are raised
only to what all of these obey, given that branches searched in vain hold none. A placement is free of
a second branch if no open buffer begins below its top: a packing of least sum has it.
"""

from __future__ import annotations

import enum
import time

import numpy as np
import numpy.typing as npt

from planner.pack import depth_first_arrays as arrays
from planner.pack.depth_first_arrays import Levels, Pick, Tables
from planner.pack.depth_first_steps import search as search_states
from planner.pack.instance import Instance, Intervals, Ints
from planner.processes.compiled import Compilation

_MAX_CELLS = 1 << 25  # of all levels: a quarter of a gigabyte, if every level is reached
_SLICE_CELLS = 5_000_000  # members of sections looked at before the clock is: some 50 ms
_FAILURES = 1 << 18  # digests remembered


class Outcome(enum.Enum):
    """How a search ended."""

    PACKED = arrays.PACKED_ALL
    EXHAUSTED = arrays.EXHAUSTED
    OUT_OF_STATES = arrays.OUT_OF_STATES


class DepthFirst:
    """The search of one instance within one capacity; what failed is remembered between runs."""

    def __init__(self, instance: Instance, capacity_bytes: int) -> None:
        count = len(instance)
        first, last = instance.first, instance.last
        sections = np.arange(instance.sections)[:, None]
        self._load = instance.load
        self._bridges = ((first < sections) & (sections < last)).sum(axis=1)
        highest = instance.highest(capacity_bytes)
        overlaps = (first[:, None] < last) & (last[:, None] > first)
        np.fill_diagonal(overlaps, False)
        kinds = np.stack([first, last, instance.size, instance.alignment, highest])
        self._tables = Tables(
            first=first,
            last=last,
            size=instance.size,
            alignment=instance.alignment,
            highest=highest,
            kind=np.unique(kinds, axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64),
            beside_at=_starts(overlaps.sum(axis=1)),
            beside=np.nonzero(overlaps)[1],
            member_at=_starts([len(members) for members in instance.members]),
            member=np.concatenate(instance.members),
            capacity=np.int64((highest + instance.size).max()),
        )
        levels = count + 2
        self._levels = Levels(
            buffers=np.zeros((levels, 2, count), dtype=np.int64),
            sections=np.zeros((levels, 10, instance.sections), dtype=np.int64),
            begin=np.zeros(levels, dtype=np.int64),
            end=np.zeros(levels, dtype=np.int64),
            is_root=np.zeros(levels, dtype=np.uint8),
            chosen=np.zeros(levels, dtype=np.int64),
            is_free=np.zeros(levels, dtype=np.uint8),
            digest=np.zeros(levels, dtype=np.uint64),
            touched=np.zeros(instance.sections, dtype=np.uint8),
            cursor=np.zeros(3, dtype=np.int64),
            failed=np.zeros(_FAILURES, dtype=np.uint64),
        )
        self._slice = max(16, _SLICE_CELLS // len(self._tables.member))

    @staticmethod
    def suits(instance: Instance) -> bool:
        """Whether its levels stay small and its offsets fit in them."""
        count = len(instance)
        return (count + 2) * (2 * count + 10 * instance.sections) <= _MAX_CELLS and int(
            instance.size.sum()
        ) + int(instance.alignment.sum()) < arrays.NEVER

    def search(
        self, rank: Ints, pick: Pick, *, most_states: int, deadline: float
    ) -> tuple[Outcome, Ints | None]:
        """Search from the root, up to `most_states` or the deadline (of `time.monotonic`).

        Exhausted means that no packing exists, but for two states with one 64-bit digest.

        Args:
            rank: place of each buffer where the pick ties, the first to be tried being 0.

        Returns:
            How it ended and, where packed, the offsets in units, int64 [buffers].
        """
        if int(self._tables.highest.min()) < 0:
            return Outcome.EXHAUSTED, None
        tables, levels = self._tables, self._levels
        self._begin()
        while most_states > 0 and time.monotonic() < deadline:
            states = min(most_states, self._slice)
            ended = Outcome(search_states(tables, levels, rank, int(pick), states))
            if ended is Outcome.PACKED:
                return ended, levels.buffers[levels.cursor[0], arrays.FLOOR].copy()
            if ended is Outcome.EXHAUSTED:
                return ended, None
            most_states -= states
        return Outcome.OUT_OF_STATES, None

    def _begin(self) -> None:
        """The root: everything open, held at 0, all sections to be looked at."""
        levels = self._levels
        levels.buffers[0, arrays.FLOOR], levels.buffers[0, arrays.STATUS] = 0, arrays.HELD
        levels.sections[0] = 0
        levels.sections[0, arrays.REST] = self._load
        levels.sections[0, arrays.BRIDGES] = self._bridges
        levels.sections[0, arrays.ORIGIN] = -1
        levels.begin[0], levels.end[0], levels.is_root[0] = 0, len(self._load), 1
        levels.touched[:] = 1
        levels.cursor[:] = 0, 1, 1


def _starts(counts: npt.ArrayLike) -> Ints:
    """Where each of the lists of these lengths begins in a flat one, and the end."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def compile_search() -> None:
    """Compile the search, for two buffers."""
    one = np.ones(2, dtype=np.int64)
    two = Intervals(start=0 * one, end=one, size=one, alignment=one)
    search = DepthFirst(Instance.of(two), 2)
    search.search(np.arange(2), Pick.LOWEST, most_states=8, deadline=float("inf"))


COMPILATION = Compilation(compile_search, lambda: (search_states,))
