"""Beam search for offsets within a capacity.

Buffers are placed one by one at rising offsets, each resting on what is below it (the canonical
packings of Moffitt, "MiniMalloc", ASPLOS 2023: where there is a packing, there is one of these).
Each open buffer has a floor, the least offset that is still possible for it, and so has each section;
a state is dropped once some section's floor and its open bytes together exceed the capacity:

    capacity ┬──────────────
             │    slack         what a section can still afford to waste
             ├──────────────
             │    rest          its open buffers
      floor  ├──────────────
             │ wasted, placed
          0  ┴──────────────

Where a depth-first search would dive into one branch, the beam keeps the `width` states that wasted
least, weighing each section's waste by how little slack it has. States with the same open buffers at
the same floors are one state. A part of the run that no open buffer joins to the rest is finished
before another is begun, so that its variants fold into one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from planner.pack.instance import Instance, Ints

_NEVER = 1 << 40  # above any offset in units, and with room for a rank below it in an int64
MAX_BUFFERS = 4000
_MAX_CELLS = 1 << 27

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How broadly to search.

    Attributes:
        width: states kept at each step.
        branch: placements tried from each state, the lowest offsets first.
        softness: share of the capacity added to a section's slack before its waste is weighed.
    """

    width: int
    branch: int
    softness: float


@dataclass(slots=True, kw_only=True)
class _States:
    """States side by side, one a column.

    Attributes:
        floor: least offset of each open buffer; `_NEVER` where placed. [buffers, states]
        placed: offset of each placed buffer, -1 where open. [buffers, states]
        mark: the last placement beside or before each buffer in its part of the run, as
            (offset << shift) + rank; later placements in that part come after it. [buffers, states]
        skyline: least free offset of each section. [sections, states]
        rest: units of open buffers in each section. [sections, states]
        bridges: open buffers that cover a section and the one before it. [sections, states]
    """

    floor: Ints
    placed: Ints
    mark: Ints
    skyline: Ints
    rest: Ints
    bridges: Ints

    def take(self, index: Ints) -> Self:
        """The states at `index`, repeated where it repeats."""
        return type(self)(
            floor=self.floor[:, index],
            placed=self.placed[:, index],
            mark=self.mark[:, index],
            skyline=self.skyline[:, index],
            rest=self.rest[:, index],
            bridges=self.bridges[:, index],
        )


class BeamSearch:
    """Tables of one instance, shared by all searches of it."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        first, last = instance.first, instance.last
        sections = np.arange(instance.sections)[:, None]
        self._overlaps = (first[:, None] < last) & (last[:, None] > first)
        self._covers = (first <= sections) & (sections < last)
        self._bridges = ((first < sections) & (sections < last)).astype(np.int64)
        self._aligned = bool((instance.alignment > 1).any())
        self._shift = len(instance).bit_length()
        hashing = np.random.default_rng(0)
        self._hash = hashing.integers(1 << 62, size=(2, len(instance), 1))

    @staticmethod
    def suits(instance: Instance) -> bool:
        """Whether its tables stay small and its offsets fit in them."""
        return (
            len(instance) <= MAX_BUFFERS
            and int(instance.size.sum()) + int(instance.alignment.sum()) < _NEVER
        )

    def affordable(self, effort: Effort) -> bool:
        """Whether the states of one step fit in memory."""
        return len(self.instance) * effort.width * effort.branch <= _MAX_CELLS

    def search(
        self, capacity_bytes: int, rank: Ints, effort: Effort, *, deadline: float
    ) -> tuple[Ints | None, int]:
        """Try to pack within `capacity_bytes`.

        Args:
            rank: place of each buffer where offsets tie, the first to be tried being 0.
            deadline: of `time.monotonic`.

        Returns:
            Offsets in units, int64 [buffers], or None where every state of some step was a dead end
            or time was out; and the number of states looked at.
        """
        states, looked_at = self._empty(), 0
        highest = self.instance.highest(capacity_bytes)[:, None]
        capacity = int((highest[:, 0] + self.instance.size).max())
        slack = (capacity - self.instance.load)[:, None]
        weight = 1 / (slack + effort.softness * capacity)
        if slack.min() < 0:
            return None, 0
        for depth in range(len(self.instance) + 1):
            looked_at += states.floor.shape[1]
            if time.monotonic() > deadline:
                return None, looked_at
            open_to = self._tighten(states, rank)
            waste = self._waste(states)
            low = (states.floor <= highest) | (states.placed >= 0)
            alive = np.flatnonzero((waste <= slack).all(axis=0) & low.all(axis=0))
            if not len(alive):
                return None, looked_at
            if depth == len(self.instance):
                return states.placed[:, alive[0]], looked_at
            alive = alive[self._distinct(states.floor[:, alive])]
            cost = (waste[:, alive] * weight).sum(axis=0)
            best = alive[np.argsort(cost, kind="stable")[: effort.width]]
            grown = self._grow(
                states.take(best), open_to[:, best], rank, effort, slack=slack, weight=weight
            )
            if grown is None:
                return None, looked_at
            states = grown
        raise AssertionError("the last step returns")

    def _empty(self) -> _States:
        count = len(self.instance)
        return _States(
            floor=np.zeros((count, 1), dtype=np.int64),
            placed=np.full((count, 1), -1, dtype=np.int64),
            mark=np.full((count, 1), -1, dtype=np.int64),
            skyline=np.zeros((self.instance.sections, 1), dtype=np.int64),
            rest=self.instance.load[:, None].copy(),
            bridges=self._bridges.sum(axis=1)[:, None],
        )

    def _tighten(self, states: _States, rank: Ints) -> Bools:
        """Raise the floors; which buffers may come next, [buffers, states].

        A buffer whose turn has passed cannot rest where its floor is: something comes below it, so
        its floor is at least the lowest top that any open buffer beside it can have. A buffer above
        such a top cannot be next.
        """
        top = np.maximum(states.floor, states.mark >> self._shift) + self.instance.size[:, None]
        top[states.placed >= 0] = _NEVER
        ranges = self.instance.ranges
        lowest_top = ranges.over(ranges.under(top, _NEVER))
        passed = (states.floor << self._shift) + rank[:, None] < states.mark
        raised = self._align(np.maximum(states.floor, lowest_top))
        floor = np.where(passed, raised, states.floor)
        floor[states.placed >= 0] = _NEVER
        states.floor = floor
        lowest = ranges.under(floor, _NEVER)
        states.skyline = np.where(
            states.rest > 0, np.maximum(states.skyline, lowest), states.skyline
        )
        return ~passed & (floor < lowest_top) & (states.placed < 0)

    def _align(self, offsets: Ints) -> Ints:
        if not self._aligned:
            return offsets
        alignment = self.instance.alignment[:, None]
        return -(-offsets // alignment) * alignment

    def _waste(self, states: _States) -> Ints:
        """Units in each unfinished section that nothing can use any more. [sections, states]"""
        wasted = states.skyline + states.rest - self.instance.load[:, None]
        return np.where(states.rest > 0, wasted, 0)

    def _distinct(self, floor: Ints) -> Ints:
        """Index of one state of each kind: the floors say all that matters for the rest."""
        factor, offset = self._hash
        with np.errstate(over="ignore"):
            digest = (floor * (factor | 1) + offset).sum(axis=0)
        return np.unique(digest, return_index=True)[1]

    def _grow(
        self,
        states: _States,
        open_to: Bools,
        rank: Ints,
        effort: Effort,
        *,
        slack: Ints,
        weight: npt.NDArray[np.float64],
    ) -> _States | None:
        """The best children: three for each place in the beam, since tightening thins them out."""
        instance = self.instance
        sections = np.arange(instance.sections)[:, None]
        begin = (states.rest > 0).argmax(axis=0)
        breaks = (states.bridges == 0) & (sections > begin)
        end = np.where(breaks, sections, instance.sections).min(axis=0)
        candidate = open_to & (instance.first[:, None] < end)
        key = np.where(candidate, (states.floor << self._shift) + rank[:, None], 1 << 62).T
        branch = min(effort.branch, len(instance))
        buffer = np.argpartition(key, branch - 1, axis=1)[:, :branch].ravel()
        parent = np.repeat(np.arange(key.shape[0]), branch)
        real = candidate[buffer, parent]
        buffer, parent = buffer[real], parent[real]
        offset = states.floor[buffer, parent]
        top = offset + instance.size[buffer]
        covers = self._covers[:, buffer]
        skyline = np.where(covers, top, states.skyline[:, parent])
        rest = states.rest[:, parent] - covers * instance.size[buffer]
        waste = skyline + rest - instance.load[:, None]
        keep = np.flatnonzero((waste <= slack).all(axis=0))
        if not len(keep):
            return None
        if len(keep) > 3 * effort.width:
            cost = (waste * (rest > 0) * weight)[:, keep].sum(axis=0)
            keep = keep[np.argsort(cost, kind="stable")[: 3 * effort.width]]
        buffer, parent, offset, top = buffer[keep], parent[keep], offset[keep], top[keep]
        children = states.take(parent)
        children.skyline, children.rest = skyline[:, keep], rest[:, keep]
        children.floor = np.where(
            self._overlaps[:, buffer],
            self._align(np.maximum(children.floor, top)),
            children.floor,
        )
        children.mark = np.where(
            instance.first[:, None] < end[parent],
            (offset << self._shift) + rank[buffer],
            children.mark,
        )
        children.placed[buffer, np.arange(len(buffer))] = offset
        children.bridges -= self._bridges[:, buffer]
        return children
