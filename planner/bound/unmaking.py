"""A lower bound for plans without copies: the inputs of an operation must be made before it.

While an operation runs, all of its inputs are on the device. Some of these tensors were made last,
by some operation m; while m ran, the device held the other tensors, m's inputs and outputs, and its
workspace. Just before, it held the other tensors and m's inputs, and so on backwards, until nothing
is left. This is the game of black pebbles (Cook and Sethi, "Storage Requirements for Deterministic
Polynomial Time Recognizable Languages", STOC 1974), played from its end. Every plan plays one such
game for every operation, so the least peak of all games of an operation bounds every plan's peak.

A search visits sets in order of their peak so far. At any time, the least peak of an unvisited set
is a bound, and once that set is the empty one, the bound is exact for the operation. Leaving a
tensor out of a set never raises a game's peak, so tensors that are hard to follow are left out:

- A graph output stays once it is made. First runs are in base order, so the outputs made before the
  last operation of a set are there, whatever the game.
- An output of an operation that may not run again stays from its one run to its last reader in base
  order.
- A tensor whose operation has all of its inputs in the set is made last, at no cost.
"""

from __future__ import annotations

import heapq
from operator import attrgetter

from planner.bound.instants import min_peak_bound
from planner.bound.pebbles import Game
from planner.plan.problem import Problem

MAX_SETS = 20_000
"""Default number of sets: less than half a second."""

_SHARES = 8
"""A round takes one in this many of the sets."""

_FIRST_SETS = 8
"""The least number of sets of an operation in the first round."""

_NARROWING = 16
"""Each round continues with one in this many operations of the previous one."""


def unmaking_bound(
    problem: Problem, *, max_sets: int = MAX_SETS, capacity_bytes: int | None = None
) -> tuple[int, int]:
    """Return a lower bound on the peak of plans in this base order, and the operation that sets it.

    It equals `min_peak_bound` if copies are allowed or recomputes are not, and is never less.

    Args:
        max_sets: number of sets to visit in all: the work. With 0 it is `min_peak_bound`.
        capacity_bytes: ends the search as soon as the bound exceeds it; the search does not look
            for bounds below it.
    """
    best, where = min_peak_bound(problem)
    capacity = -1 if capacity_bytes is None else capacity_bytes
    if problem.allow_swap or not problem.allow_recompute or best > capacity >= 0 or max_sets <= 0:
        return best, where
    game = Game(problem)
    for q, held in enumerate(game.first_bytes):
        if held > best:
            best, where = held, q
    searches = [_GameSearch(game, q) for q in range(len(problem.ops)) if game.reads[q]]
    left, width = max_sets, max(1, max_sets // (_SHARES * _FIRST_SETS))
    while searches and left > 0 and not best > capacity >= 0:
        floor = max(best, capacity)
        searches.sort(key=lambda search: -search.bound)
        first = [search for search in searches[:width] if width > 1 or search.is_raised]
        # any game of the last operation goes through all of its ancestors: at its end, little else
        # is left
        turn = {search.q: search for search in (*first, max(searches, key=attrgetter("q")))}
        share = min(left, max(_FIRST_SETS, max_sets // _SHARES // len(turn)))
        for q in sorted(turn):  # in base order, as more and more sets are known to be easy
            if turn[q].is_open:
                left -= turn[q].deepen(floor, min(share, left))
            if turn[q].bound > best:
                best, where = turn[q].bound, q
            floor = max(best, capacity)
            if left <= 0 or best > capacity >= 0:
                break
        searches = [search for search in searches if search.is_open]
        width = max(1, width // _NARROWING)
    return best, where


class _GameSearch:
    """The search through the games of one operation.

    Attributes:
        q: the operation. bound: proved bytes. is_done: nothing is left to prove.
        heap: (the larger of the set's peak and the peak proved elsewhere, set) of unvisited sets. Among
            equal peaks, the set whose tensors are made earliest comes first: it is nearest to the end.
        least: per set, the least peak so far. origin: the set it comes from. closed: visited sets.
    """

    def __init__(self, game: Game, q: int) -> None:
        self.game, self.q, self.bound, self.is_done = game, q, game.first_bytes[q], False
        self.heap: list[tuple[int, int]] = []
        self.least: dict[int, int] = {}
        self.origin: dict[int, int] = {}
        self.closed: set[int] = set()
        self.staying: list[int] = []

    @property
    def is_raised(self) -> bool:
        """Whether the search has proved more than the operation's first run."""
        return self.bound > self.game.first_bytes[self.q]

    @property
    def is_open(self) -> bool:
        """Whether more may be proved.

        Not once a game of this operation, or one that goes through all of it, has come to its end.
        """
        return not self.is_done and not self.game.settled >> self.q & 1

    def deepen(self, floor: int, most: int) -> int:
        """Visit about `most` more sets; return their number.

        Args:
            floor: bytes up to which peaks count as equal: the search ends at a game within it.
        """
        heap, count = self.heap, 0
        if not self.staying:
            self.staying = self.game.staying_bytes(self.q)
            first = self.game.reads[self.q]
            self._add(self.bound, -1, self.game.reduced(first, first), floor)
        elif heap[0][0] < floor:
            self.heap = heap = [(max(peak, floor), chosen) for peak, chosen in heap]
            heapq.heapify(heap)
        while not self.is_done and count < most:
            peak, chosen = heapq.heappop(heap)
            if chosen in self.closed:
                continue
            if not chosen:
                if peak > floor:
                    self.bound = max(self.bound, peak)
                self._finish(chosen)
                return count
            self.closed.add(chosen)
            count += self._expand(peak, chosen, floor)
        while not self.is_done and heap[0][1] in self.closed:
            heapq.heappop(heap)
        if not self.is_done and heap[0][0] > floor:
            self.bound = max(self.bound, heap[0][0])
        return count

    def _expand(self, peak: int, chosen: int, floor: int) -> int:
        """Undo, in turn, each operation that made a part of a set; return the number of new sets."""
        game, staying = self.game, self.staying
        last = game.owner[chosen.bit_length() - 1]
        size, count, left = game.bytes_of(chosen), 0, chosen
        while left and not self.is_done:
            m = game.owner[left.bit_length() - 1]
            left &= ~game.makes[m]
            missing = game.reads[m] & ~chosen
            after = (chosen & ~game.makes[m]) | missing
            at_once = size + game.own_bytes[m] - game.bytes_of(chosen & game.makes[m])
            at_once += game.bytes_of(missing)
            at_once -= sum(game.size[i] for i in game.frees[m] if missing >> i & 1)
            # if m is not the last operation of the set, that one has run, and m runs again
            at_once += staying[m if m == last else last + 1]
            self._add(max(peak, at_once), chosen, game.reduced(after, game.touched[m]), floor)
            count += 1
        return count

    def _add(self, peak: int, origin: int, chosen: int, floor: int) -> None:
        """Add a set with the least peak of a game that reaches it."""
        if peak >= self.least.get(chosen, peak + 1) or chosen in self.closed:
            return
        self.least[chosen], self.origin[chosen] = peak, origin
        if peak > floor:
            heapq.heappush(self.heap, (peak, chosen))
        elif chosen and self.game.easy.get(chosen, self.q + 1) > self.q:
            heapq.heappush(self.heap, (floor, chosen))
        else:
            self._finish(chosen)

    def _finish(self, chosen: int) -> None:
        """Record that a game has ended: one from any set on its way would end, too."""
        easy, since = self.game.easy, self.q if self.game.lasting else 0
        while chosen >= 0:
            easy[chosen] = min(since, easy.get(chosen, since))
            chosen = self.origin[chosen]
        if not self.game.lasting:
            self.game.settle(self.game.reads[self.q])
        self.is_done = True
        self.heap, self.least, self.origin, self.closed = [], {}, {}, set()
