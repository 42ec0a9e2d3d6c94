"""Buffers as the offset engines see them: arrays, with time cut down to where it matters.

A *section* is a stretch of time in which a set of buffers is live that no other moment's set
contains. Two buffers overlap in time exactly if they share a section, so sections replace time:
a buffer covers sections `[first, last)`, and a packing within a capacity is one in which every
section has its buffers side by side. (Sections: Moffitt, "MiniMalloc", ASPLOS 2023, section 5.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Intervals:
    """Buffers in time and size, in bytes: `start < end` and `size > 0`, all int64 [buffers]."""

    start: Ints
    end: Ints
    size: Ints
    alignment: Ints

    def __len__(self) -> int:
        return len(self.size)

    def take(self, index: Ints) -> Intervals:
        """The buffers at `index`."""
        return Intervals(
            start=self.start[index],
            end=self.end[index],
            size=self.size[index],
            alignment=self.alignment[index],
        )

    def components(self) -> list[Ints]:
        """Indices of buffers, in groups of which no two overlap in time; in order of time."""
        order = np.argsort(self.start, kind="stable")
        reached = np.maximum.accumulate(self.end[order])
        cuts = np.flatnonzero(self.start[order][1:] >= reached[:-1]) + 1
        return np.split(order, cuts) if len(order) else []


def contention_bytes(start: Ints, end: Ints, size: Ints) -> int:
    """The largest sum of live bytes: no packing is lower."""
    if not len(size):
        return 0
    time = np.concatenate([end, start])  # at one time, what ends leaves before what starts
    change = np.concatenate([-size, size])
    return max(0, int(np.cumsum(change[np.argsort(time, kind="stable")]).max()))


@dataclass(frozen=True, kw_only=True, eq=False)
class Instance:
    """Buffers over sections, sizes in units of `unit_bytes` (rounded up where aligned).

    Attributes:
        first, last: the sections of each buffer, half-open; int64 [buffers].
        size, alignment: in units; an offset is a multiple of its alignment.
        size_bytes: as given.
        load: sum of the sizes in each section; int64 [sections].
        lifetime: end - start in the caller's time; int64 [buffers].
    """

    first: Ints
    last: Ints
    size: Ints
    alignment: Ints
    load: Ints
    lifetime: Ints
    size_bytes: Ints
    unit_bytes: int

    @staticmethod
    def of(buffers: Intervals) -> Instance:
        """The sections of `buffers`, and the largest unit in which nothing is lost.

        Every offset is a multiple of the alignments' common divisor (the granule), so that sizes
        can be rounded up to it: what is lost below another buffer could not be used.
        """
        granule = int(np.gcd.reduce(buffers.alignment))
        size = -(-buffers.size // granule)
        alignment = buffers.alignment // granule
        unit = math.gcd(int(np.gcd.reduce(size)), int(np.gcd.reduce(alignment[alignment > 1])))
        size, alignment = size // unit, np.maximum(1, alignment // unit)
        first, last = _sections(buffers.start, buffers.end)
        load = np.zeros(int(last.max()) + 1, dtype=np.int64)
        np.add.at(load, first, size)
        np.subtract.at(load, last, size)
        return Instance(
            first=first,
            last=last,
            size=size,
            alignment=alignment,
            load=np.cumsum(load)[:-1],
            lifetime=buffers.end - buffers.start,
            size_bytes=buffers.size,
            unit_bytes=unit * granule,
        )

    def __len__(self) -> int:
        return len(self.size)

    @property
    def sections(self) -> int:
        """How many sections there are."""
        return len(self.load)

    def highest(self, capacity_bytes: int) -> Ints:
        """The highest offset of each buffer within `capacity_bytes`, in units; int64 [buffers].

        Exact where the rounding up of sizes is not: the topmost buffer needs no rounding up.
        """
        room = (capacity_bytes - self.size_bytes) // self.unit_bytes
        return room // self.alignment * self.alignment

    @cached_property
    def bound_bytes(self) -> int:
        """No packing is lower: the busiest section, one of its sizes not rounded up."""
        lost = self.size * self.unit_bytes - self.size_bytes
        most_lost = -self.ranges.under(-lost[:, None], 0)[:, 0]
        return int((self.load * self.unit_bytes - most_lost).max())

    @cached_property
    def members(self) -> list[Ints]:
        """The buffers of each section."""
        flat = np.repeat(np.arange(len(self)), self.last - self.first)
        within = np.arange(len(flat)) - np.repeat(
            np.cumsum(self.last - self.first) - (self.last - self.first), self.last - self.first
        )
        section = np.repeat(self.first, self.last - self.first) + within
        order = np.argsort(section, kind="stable")
        return np.split(flat[order], np.flatnonzero(np.diff(section[order])) + 1)

    @cached_property
    def ranges(self) -> Ranges:
        """The sections of each buffer, for minima."""
        return Ranges(self.first, self.last, self.sections)

    @cached_property
    def tightest(self) -> Ints:
        """The largest load of any section that each buffer covers; int64 [buffers]."""
        return self.ranges.over(self.load[:, None], np.maximum)[:, 0]


def _sections(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """First and last section (half-open) of each interval: one ends where births meet deaths."""
    count = len(start)
    time = np.concatenate([end, start])
    is_birth = np.arange(2 * count) >= count
    order = np.argsort(time, kind="stable")  # deaths first at equal times
    birth = is_birth[order]
    closes = np.zeros(2 * count, dtype=np.int64)
    closes[1:] = birth[:-1] & ~birth[1:]
    section = np.empty(2 * count, dtype=np.int64)
    section[order] = np.cumsum(closes)
    return section[count:], section[:count]


class Ranges:
    """Fixed ranges of sections `[first, last)`, none empty, for minima over and under them.

    A range is the union of two stretches whose length is one power of two. Minima of all such
    stretches make a sparse table; filling one from the ranges and handing minima down to the halves of
    each stretch is the same thing backwards. Either way O(ranges + sections * log sections) rows.
    """

    def __init__(self, first: Ints, last: Ints, sections: int) -> None:
        self._sections = sections
        level = np.frexp(last - first)[1].astype(np.int64) - 1
        self._levels = int(level.max()) + 1
        self._left = level * sections + first
        self._right = level * sections + last - (1 << level)
        cells = np.concatenate([self._left, self._right])
        order = np.argsort(cells, kind="stable")
        self._range_of = order % len(first)
        self._cells, self._starts = np.unique(cells[order], return_index=True)

    def over(self, rows: Ints, ufunc: np.ufunc = np.minimum) -> Ints:
        """The least row in each range: [sections, states] to [ranges, states]."""
        tables = [rows]
        for level in range(self._levels - 1):
            half, table = 1 << level, tables[-1].copy()
            ufunc(table[:-half], tables[-1][half:], out=table[:-half])
            tables.append(table)
        stacked = np.concatenate(tables)
        return ufunc(stacked[self._left], stacked[self._right])

    def under(self, rows: Ints, none: int) -> Ints:
        """The least row of any range that covers each section, `none` where there is none.

        [ranges, states] to [sections, states].
        """
        stacked = np.full((self._levels * self._sections, rows.shape[1]), none, dtype=rows.dtype)
        stacked[self._cells] = np.minimum.reduceat(rows[self._range_of], self._starts, axis=0)
        tables = stacked.reshape(self._levels, self._sections, -1)
        for level in range(self._levels - 1, 0, -1):
            half = 1 << (level - 1)
            upper, lower = tables[level], tables[level - 1]
            np.minimum(lower, upper, out=lower)
            np.minimum(lower[half:], upper[:-half], out=lower[half:])
        return tables[0]
