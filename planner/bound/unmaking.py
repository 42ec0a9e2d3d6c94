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
from collections.abc import Iterable, Iterator
from itertools import accumulate
from operator import attrgetter

from planner.bound.instants import min_peak_bound
from planner.plan.problem import Problem
from planner.plan.stages import overwritten


class Game:
    """A problem in the form of the game.

    A set of tensors is an integer's bits, in the order in which the tensors are made. A tensor that
    stays once it is made has no bit: a graph output, or an output of an operation that may not run
    again.

    Attributes:
        size: per bit, bytes. owner: per bit, the operation that makes it.
        reads, makes: per operation, the set that it reads, and makes.
        frees: per operation, bits of inputs that it may write over in place.
        needs: per operation, the set that lets it run at no cost, if all of it is there; -1 for none.
        touched: per operation, the tensors that may be made at no cost once all of its inputs are there.
        own_bytes: per operation, bytes of its workspace and of all its outputs: the simulator counts
            outputs without readers while the operation runs, and a second copy of a graph output
            besides the first.
        first_bytes: per operation, bytes that the device holds in its first run.
        outputs_bytes: per operation, bytes of the graph outputs made before it, and the fixed bytes; one
            more at the end.
        lasting: (operation, last reader, bytes) of tensors made only once that are no graph output.
        easy: sets from which a game reaches the empty set within the proved peak, and the first
            operation for which this is known: for later ones no more tensors last.
        settled: operations, as bits, whose games are known to prove no more than the proved peak.
    """

    def __init__(self, problem: Problem) -> None:
        ops, tensors = problem.ops, problem.tensors
        order = sorted(range(len(tensors)), key=lambda t: tensors[t].producer)
        loose = [
            t for t in order if not tensors[t].to_end and ops[tensors[t].producer].recomputable
        ]
        bit = {t: i for i, t in enumerate(loose)}

        def chosen(some: Iterable[int]) -> int:
            return sum(1 << bit[t] for t in set(some) if t in bit)

        def bytes_of(some: Iterable[int]) -> int:
            return sum(tensors[t].bytes for t in some)

        self.size = [tensors[t].bytes for t in loose]
        self.owner = [tensors[t].producer for t in loose]
        self.reads = [chosen(op.inputs) for op in ops]
        self.makes = [chosen(op.outputs) for op in ops]
        self.frees = [
            tuple(bit[t] for t in overwritten(problem, m) if t in bit) for m in range(len(ops))
        ]
        self.own_bytes = [op.workspace_bytes + bytes_of(op.outputs) for op in ops]
        self.needs = [
            -1
            if op.workspace_bytes or bytes_of(t for t in op.outputs if t not in bit)
            # an output without bytes need not be there
            else self.reads[m] | chosen(t for t in op.outputs if tensors[t].bytes)
            for m, op in enumerate(ops)
        ]
        readers = [chosen(t for u in tensors[t].uses for t in ops[u].outputs) for t in loose]
        self.touched = list(self.reads)
        for m in range(len(ops)):
            for i in bits(self.reads[m]):
                self.touched[m] |= readers[i]
        made = [bytes_of(t for t in op.outputs if tensors[t].to_end) for op in ops]
        self.outputs_bytes = list(accumulate(made, initial=problem.fixed_bytes))
        self.lasting = [
            (x.producer, x.uses[-1], x.bytes)
            for x in tensors
            if x.uses and x.bytes and not x.to_end and not ops[x.producer].recomputable
        ]
        change = [0] * (len(ops) + 1)
        for producer, last, size in self.lasting:
            change[producer + 1] += size
            change[last + 1] -= size
        self.first_bytes: list[int] = []
        for q, lasts in enumerate(accumulate(change[:-1])):
            over = (t for t in overwritten(problem, q) if t in bit or tensors[t].uses[-1] == q)
            held = self.outputs_bytes[q] + lasts + self.own_bytes[q] - bytes_of(over)
            self.first_bytes.append(held + self.bytes_of(self.reads[q]))
        self.easy: dict[int, int] = {}
        self.settled = 0

    def settle(self, front: int) -> None:
        """Mark the operations that any game from a set goes through as settled."""
        while front:
            m = self.owner[front.bit_length() - 1]
            front &= ~self.makes[m]
            if not self.settled >> m & 1:
                self.settled |= 1 << m
                front |= self.reads[m]

    def bytes_of(self, chosen: int) -> int:
        """Return the bytes of a set."""
        return sum(self.size[i] for i in bits(chosen))

    def reduced(self, chosen: int, among: int) -> int:
        """Remove the tensors of a set that can be made from the rest of it at no cost.

        Args:
            among: only tensors of this set may be removed.
        """
        left = chosen & among
        while left:
            m = self.owner[left.bit_length() - 1]
            if not self.needs[m] & ~chosen:
                chosen &= ~self.makes[m]
            left &= ~self.makes[m]
        return chosen

    def staying_bytes(self, q: int) -> list[int]:
        """Return, per operation, the bytes that earlier ones made and that stay until q first runs.

        One more at the end.
        """
        if not self.lasting:
            return self.outputs_bytes
        made = [0] * len(self.outputs_bytes)
        for producer, last, size in self.lasting:
            if last >= q:
                made[producer + 1] += size
        return [a + b for a, b in zip(self.outputs_bytes, accumulate(made), strict=True)]


def bits(chosen: int) -> Iterator[int]:
    """Yield the bits of a set, highest first."""
    while chosen:
        highest = chosen.bit_length() - 1
        yield highest
        chosen ^= 1 << highest


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
