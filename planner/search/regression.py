"""Plans for little memory: before each operation, what it lacks is made again, planned from the end.

What must be on the device before an operation is a set, its inputs. The last of the set to be made was
some member m; just before, the device held the others and the inputs of m. By one such step after the
other one comes from the inputs of the operation to a set that is on the device already, perhaps an empty
one, and the steps in reverse are the runs that are wanted. (The game is that of black pebbles on a graph;
Cook and Sethi, "Storage Requirements for Deterministic Polynomial Time Recognizable Languages", STOC
1974.) A step is possible where the set fits together with the inputs of m. A set is tried sooner if it
needs less memory and fewer operations, and it leaves out what can be made from the rest of it.

Where that finds nothing, all is made from nothing, and a set is tried sooner the sooner its tensors are
made: of two sets, the one without the latest operation that is not in both. Such a search goes straight
back to the beginning, and only as far aside as memory makes it. On a random layered graph of 100
operations, at 55% of the base order's peak, it takes 2,000 sets where the other does not end with 20,000.

Time is no object here. Copies to the host are not used. What may not run again, and graph outputs, stay
on the device once they are made.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from planner.plan.problem import Action, Problem, run_actions
from planner.search.stop import NEVER, Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class RegressionPolicy:
    """Every number of the search.

    Attributes:
        weights: of an operation that is to be made, in mean bytes of an operation's outputs; one search
            after the other.
        max_sets: that one such search remembers.
        last_sets: that the search from nothing remembers.
    """

    weights: tuple[float, ...] = (10.0,)
    max_sets: int = 5_000
    last_sets: int = 50_000


REGRESSION = RegressionPolicy()
"""Until another is given; measured by `reports/solver.md`."""


class Regression:
    """Searches of one problem. A set of operations, whose outputs are meant, is a whole number's bits."""

    def __init__(
        self, problem: Problem, policy: RegressionPolicy = REGRESSION, stop: Stop = NEVER
    ) -> None:
        self.problem, self.policy, self.stop = problem, policy, stop
        ops, tensors = problem.ops, problem.tensors
        self.stays = [
            not (problem.allow_recompute and op.recomputable)
            or any(tensors[t].to_end for t in op.outputs)
            for op in ops
        ]
        self.bytes = [sum(tensors[t].bytes for t in op.outputs) for op in ops]
        self.inputs = [0] * len(ops)
        self.last = [0] * len(ops)  # the last operation that reads it
        for m, op in enumerate(ops):
            for p in {tensors[t].producer for t in op.inputs}:
                self.last[p] = m
                if not self.stays[p]:
                    self.inputs[m] |= 1 << p
        self.per_op = sum(self.bytes) / max(1, len(ops))

    def actions(self) -> list[Action] | None:
        """A schedule that fits the capacity; None where none was found before `stop`."""
        there, room = 0, self.problem.capacity_bytes - self.problem.fixed_bytes
        runs: list[int] = []
        for q in range(len(self.problem.ops)):
            if self.stop.left_s <= 0:
                return None
            own = self.bytes[q] + self.problem.ops[q].workspace_bytes
            if self.inputs[q] & ~there:
                made = self.search(self.inputs[q], there, room)
                if made is None:
                    return None
                runs += made
                there = self._kept(made, self.inputs[q], there, room)
            there = self._lighter(there, self.inputs[q], room - own, q)
            if own + self._size(there) > room:
                return None
            runs.append(q)
            if self.stays[q]:
                room -= self.bytes[q]
            else:
                there |= 1 << q
            there &= ~sum(1 << m for m in _members(there) if self.last[m] <= q)
        return run_actions(runs)

    def search(self, wanted: int, there: int, room: int) -> list[int] | None:
        """Runs after which all of `wanted` is on the device, from `there` on, in so many bytes."""
        costs = [self._needed(there, weight) for weight in self.policy.weights]
        for fixed in (there, 0):  # at first, nothing that is there is made again
            for cost in costs:
                found = self._search(wanted, (there, fixed), (room, self.policy.max_sets), cost)
                if found is not None:
                    return found
        # as a number, a set is the less the sooner its tensors are made
        return self._search(wanted, (0, 0), (room, self.policy.last_sets), lambda chosen, _: chosen)

    def _needed(self, there: int, weight: float) -> Callable[[int, int], float]:
        """The cost of (set, its bytes): these, and what making it from `there` on takes."""
        makers: dict[int, int] = {}

        def cost(chosen: int, size: int) -> float:
            found = 0
            for m in _members(chosen & ~there):
                if m not in makers:
                    makers[m] = self._makers(m, there)
                found |= makers[m]
            return size + weight * self.per_op * found.bit_count()

        return cost

    def _search(
        self,
        wanted: int,
        begin: tuple[int, int],
        limits: tuple[int, int],
        cost: Callable[[int, int], float],
    ) -> list[int] | None:
        """Runs that make `wanted`.

        Args:
            begin: the set that is there, and what of it is not made again.
            limits: bytes on the device, and sets that are remembered.
            cost: of a set and its bytes; the least is tried first.
        """
        (there, fixed), (room, most) = begin, limits
        first, made = self._reduced(wanted, there)
        came_from: dict[int, tuple[int, list[int]]] = {first: (-1, made)}
        heap: list[tuple[float, int, int]] = [(0, self._size(first), first)]
        while heap and len(came_from) < most and self.stop.left_s > 0:
            _, size, chosen = heapq.heappop(heap)
            if not chosen & ~there:
                return _path(came_from, chosen)
            for m in _members(chosen & ~fixed):
                missing = self.inputs[m] & ~chosen
                at_once = size + self._size(missing)
                if at_once + self.problem.ops[m].workspace_bytes > room:
                    continue
                after, made = self._reduced((chosen | missing) & ~(1 << m), there)
                if after not in came_from:
                    came_from[after] = (chosen, [m, *made])
                    left = at_once - self.bytes[m] - sum(self.bytes[k] for k in made)
                    heapq.heappush(heap, (cost(after, left), left, after))
        return None

    def _size(self, chosen: int) -> int:
        return sum(self.bytes[m] for m in _members(chosen))

    def _makers(self, m: int, there: int) -> int:
        """Operations that must run for the outputs of one, itself included, from what is there on."""
        found = front = 1 << m
        while front:
            lowest = front & -front
            new = self.inputs[lowest.bit_length() - 1] & ~there & ~found
            front = (front ^ lowest) | new
            found |= new
        return found

    def _reduced(self, chosen: int, there: int) -> tuple[int, list[int]]:
        """The set without what can be made from the rest of it, and that, what is made last first."""
        made: list[int] = []
        for m in sorted(_members(chosen & ~there), reverse=True):
            if not self.inputs[m] & ~chosen and not self.problem.ops[m].workspace_bytes:
                chosen &= ~(1 << m)
                made.append(m)
        return chosen, made

    def _kept(self, made: list[int], wanted: int, there: int, room: int) -> int:
        """What is on the device after the runs: all that is wanted, and of what was there as much as has
        room all the while, what is read soonest first."""
        needed, peak = wanted, self._size(wanted)
        for m in reversed(made):
            own = self.problem.ops[m].workspace_bytes
            needed |= 1 << m
            peak = max(peak, self._size(needed | self.inputs[m]) + own)
            needed = (needed & ~(1 << m)) | self.inputs[m]
        left, found = room - peak, wanted
        used = wanted | sum(1 << m for m in set(made))
        for m in made:
            used |= self.inputs[m]
        for m in sorted(_members(there & ~used), key=lambda m: self.last[m] - m):
            if self.bytes[m] <= left:
                left -= self.bytes[m]
                found |= 1 << m
        return found

    def _lighter(self, there: int, wanted: int, room: int, q: int) -> int:
        """What is there without what is in the way: what is read last first, nothing that is wanted."""
        size = self._size(there)
        for m in sorted(_members(there & ~wanted), key=lambda m: -self._next_use(m, q)):
            if size <= room:
                break
            size -= self.bytes[m]
            there &= ~(1 << m)
        return there

    def _next_use(self, m: int, q: int) -> int:
        uses = (u for t in self.problem.ops[m].outputs for u in self.problem.tensors[t].uses)
        return min((u for u in uses if u >= q), default=len(self.inputs))


def _members(chosen: int) -> Iterator[int]:
    while chosen:
        lowest = chosen & -chosen
        yield lowest.bit_length() - 1
        chosen ^= lowest


def _path(came_from: dict[int, tuple[int, list[int]]], chosen: int) -> list[int]:
    """The runs that lead from a set to the first."""
    runs: list[int] = []
    while chosen >= 0:
        chosen, made = came_from[chosen]
        runs.extend(reversed(made))
    return runs
