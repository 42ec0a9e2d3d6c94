"""Plans for little memory: run the base order within a capacity, and drop tensors in the way.

Operations run in base order. A missing input is made again, together with its own missing inputs,
depth first: one input after the other, the one that takes most memory first (Sethi and Ullman, "The
Generation of Optimal Code for Arithmetic Expressions", JACM 1970, for trees). Inputs made for a
waiting operation are pinned until it runs; each waiting operation therefore makes each of its
inputs at most once, and the search ends. All other tensors on the device may be dropped when room
is needed: first those that are cheap to make again, large, and not read for long (the heuristic of
Kirisame et al., "Dynamic Tensor Rematerialization", ICLR 2021, with the base order's next read in
place of the last access); inputs of a waiting operation go last.

The plan's time does not matter here. Copies to the host are not used.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from planner import clock
from planner.plan.problem import Action, Problem, run_actions

_BLUR = 0.7
"""Standard deviation of the logarithm of the random factors that blur scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionPolicy:
    """Exponents of the score by which tensors are dropped, least first.

    The score is cost ** `cost` / (bytes * distance to the next base read ** `distance`).
    `in_order`: all missing tensors are made in base order, not depth first.
    """

    cost: float
    distance: float
    in_order: bool


EVICTION_POLICIES = (
    EvictionPolicy(cost=1.0, distance=1.0, in_order=True),
    EvictionPolicy(cost=1.0, distance=1.0, in_order=False),
    EvictionPolicy(cost=0.0, distance=1.0, in_order=False),
    EvictionPolicy(cost=0.5, distance=0.0, in_order=False),
)


MAX_RUNS = 8
"""A plan by eviction has at most this many runs per operation."""


class Eviction:
    """Schedules of one problem by eviction, with the data that does not depend on the capacity."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        tensors, ops = problem.tensors, problem.ops
        self.size = [t.bytes for t in tensors]
        self.producer = [int(t.producer) for t in tensors]
        self.uses = [t.uses for t in tensors]
        self.duration_us = problem.base_duration_us
        self.to_end = [t.to_end for t in tensors]
        # a second run would make second copies of graph outputs, for all later readers
        self.may_run_again = [
            problem.allow_recompute
            and op.recomputable
            and not any(self.to_end[t] for t in op.outputs)
            for op in ops
        ]
        self.overwrites: list[dict[int, int]] = []  # per operation, output -> input under it
        for op in ops:
            chosen: dict[int, int] = {}
            for source, target in op.inplace:
                if not self.to_end[source]:
                    chosen.setdefault(target, source)
            self.overwrites.append(chosen)
        self.last = self._last_needs()
        self.need = self._needs()

    def _last_needs(self) -> list[int]:
        """Return the last base operation at which each tensor may still be of use; -1 if none."""
        last = [-1] * len(self.size)
        for m in range(len(self.problem.ops) - 1, -1, -1):
            op = self.problem.ops[m]
            latest = m
            if self.may_run_again[m]:
                latest = max(m, *(last[t] for t in op.outputs), m)
            for t in op.inputs:
                last[t] = max(last[t], latest)
        return last

    def _needs(self) -> list[int]:
        """Return the bytes to run each operation on an empty device, as if its ancestors were a tree."""
        need: list[int] = []
        for op in self.problem.ops:
            most = op.workspace_bytes + sum(self.size[t] for t in (*op.inputs, *op.outputs))
            held = 0
            for t in sorted(op.inputs, key=lambda t: self.size[t] - need[self.producer[t]]):
                most = max(most, held + need[self.producer[t]])
                held += self.size[t]
            need.append(most)
        return need

    def actions(
        self,
        capacity_bytes: int,
        policy: EvictionPolicy,
        *,
        deadline: float,
        draw: random.Random | None = None,
    ) -> list[Action] | None:
        """Build a schedule that fits the capacity; None if that fails.

        It fails at a dead end, beyond `MAX_RUNS` runs per operation, or at `deadline` (seconds of
        `clock.now`).

        Args:
            draw: source of random factors that blur scores; None for exact scores.
        """
        most = MAX_RUNS * len(self.problem.ops)
        runs = _EvictionWalk(self, capacity_bytes, policy, draw).runs(most, deadline)
        if runs is None:
            return None
        return run_actions(runs)


class _EvictionWalk:
    """A schedule under construction."""

    def __init__(
        self,
        static: Eviction,
        capacity_bytes: int,
        policy: EvictionPolicy,
        draw: random.Random | None,
    ) -> None:
        count = len(static.size)
        self.static = static
        self.policy = policy
        self.draw = draw
        self.room = capacity_bytes - static.problem.fixed_bytes
        self.there = [False] * count
        self.resident: dict[int, None] = {}  # tensors on the device that may be dropped
        self.pinned = [0] * count
        self.waits = [0] * count  # number of waiting operations that read it
        self.depth = [0] * count  # of the innermost of them
        self.may_run_again = list(static.may_run_again)
        self.cost = [0.0] * count  # of making it again, when it was dropped
        self.next_use = [0] * count
        self.at = 0

    def runs(self, most: int, deadline: float) -> list[int] | None:
        """Return the operations in the order in which they run."""
        static = self.static
        ops = static.problem.ops
        done: list[int] = []
        for q in range(len(ops)):
            if clock.now() > deadline:
                return None
            self.at = q
            waiting: list[tuple[int, list[int]]] = []
            self._wait(q, waiting)
            while waiting:
                m, pins = waiting[-1]
                if m != q and not self._is_awaited(m):
                    self._leave(*waiting.pop())
                    continue
                missing = [t for t in ops[m].inputs if not self.there[t]]
                if missing and self.policy.in_order:
                    again = self._closure(missing)
                    if again is None or len(done) >= most:
                        return None
                    for k in again:
                        self._wait(k, waiting)
                    continue
                if missing:
                    t = max(missing, key=lambda t: static.need[static.producer[t]] - static.size[t])
                    if not self.may_run_again[static.producer[t]]:
                        return None
                    self._wait(static.producer[t], waiting)
                    continue
                if len(done) >= most or not self._make_room(m):
                    return None
                done.append(m)
                waiting.pop()
                self._run(m, pins)
                if waiting:
                    above, its_pins = waiting[-1]
                    for t in ops[m].outputs:
                        if t in ops[above].inputs:
                            self.pinned[t] += 1
                            its_pins.append(t)
            for t in ops[q].inputs:
                self.next_use[t] += 1
            self._forget(q)
        return done

    def _wait(self, m: int, waiting: list[tuple[int, list[int]]]) -> None:
        waiting.append((m, []))
        for t in self.static.problem.ops[m].inputs:
            self.waits[t] += 1
            self.depth[t] = len(waiting)

    def _is_awaited(self, m: int) -> bool:
        """Tell whether some operation waits for a missing output of `m`."""
        outputs = self.static.problem.ops[m].outputs
        return any(self.waits[t] and not self.there[t] for t in outputs)

    def _closure(self, missing: Sequence[int]) -> list[int] | None:
        """Return the operations to run for `missing`, last first; None if one may not run again."""
        static = self.static
        stack = [static.producer[t] for t in missing]
        found: set[int] = set()
        while stack:
            m = stack.pop()
            if m in found:
                continue
            if not self.may_run_again[m]:
                return None
            found.add(m)
            inputs = static.problem.ops[m].inputs
            stack.extend(static.producer[t] for t in inputs if not self.there[t])
        return sorted(found, reverse=True)

    def _leave(self, m: int, pins: Sequence[int]) -> None:
        """Stop `m`'s wait."""
        for t in self.static.problem.ops[m].inputs:
            self.waits[t] -= 1
        for t in pins:
            self.pinned[t] -= 1

    def _run(self, m: int, pins: Sequence[int]) -> None:
        """Account for a run: its outputs are on the device, and inputs that only it waited for may go."""
        static = self.static
        op = static.problem.ops[m]
        self._leave(m, pins)
        for t in op.outputs:
            if self.there[t] or (static.last[t] < self.at and not static.to_end[t]):
                continue
            self._put(t)

    def _forget(self, q: int) -> None:
        """Drop the tensors that no later operation may read."""
        gone = [t for t in self.resident if self.static.last[t] <= q]
        for t in gone:
            self._drop(t)

    def _put(self, t: int) -> None:
        self.there[t] = True
        self.room -= self.static.size[t]
        if not self.static.to_end[t]:
            self.resident[t] = None

    def _drop(self, t: int) -> None:
        self.there[t] = False
        self.room += self.static.size[t]
        del self.resident[t]

    def _make_room(self, m: int) -> bool:
        """Drop tensors until operation `m` fits."""
        static = self.static
        op = static.problem.ops[m]
        size = static.size
        over = op.workspace_bytes - self.room
        over += sum(size[t] for t in op.outputs if not self.there[t])
        dying = self._overwritten(m)
        over -= sum(size[t] for t in dying)
        if over <= 0:
            return True
        mine = {*op.inputs, *op.outputs}
        order = sorted(
            (self._score(t), t)
            for t in self.resident
            if size[t] and t not in mine and not self.pinned[t]
        )
        dropped: list[int] = []
        for may_go in (self._is_plain, self._may_be_lost, self._may_return):
            for _, t in order:
                if over > 0 and self.there[t] and may_go(t):
                    over -= size[t]
                    if may_go == self._may_be_lost:
                        self._lose(t)
                    else:
                        dropped.append(t)
                        self.cost[t] = self._cost(t)
                    self._drop(t)
        for target, source in static.overwrites[m].items():
            free = self.there[source] and not self.pinned[source] and target not in dying
            if over <= 0 or not free:
                continue
            if not self._may_return(source):
                if not self._may_be_lost(source, by=m):
                    continue
                self._lose(source, by=m)
            over -= size[target]
            self.cost[source] = self._cost(source)
            self._drop(source)
        for t in reversed(dropped):  # tensors that were not in the way after all stay
            if over + size[t] <= 0:
                over += size[t]
                self._put(t)
        return over <= 0

    def _overwritten(self, m: int) -> list[int]:
        """Return the outputs that take over an input's buffer anyway, because nothing reads it again."""
        if m != self.at:
            return []
        chosen = self.static.overwrites[m]
        return [t for t, source in chosen.items() if self.static.last[source] <= m]

    def _may_return(self, t: int) -> bool:
        """Tell whether a tensor could be made again."""
        return self.may_run_again[self.static.producer[t]]

    def _is_plain(self, t: int) -> bool:
        """Tell whether a tensor may be dropped and no operation waits for it."""
        return self._may_return(t) and not self.waits[t]

    def _may_be_lost(self, t: int, by: int = -1) -> bool:
        """Tell whether a tensor may be dropped for good.

        It may if no base operation reads it or needs a tensor that only it could bring back. `by`
        is the operation that is about to run and write over it.
        """
        static = self.static
        last_use = max(static.uses[t], default=-1)
        if last_use >= self.at + (by == self.at) or self.waits[t] > (by >= 0):
            return False
        return all(
            self.there[u] or static.last[u] < self.at or self._may_be_lost(u)
            for m in static.uses[t]
            if self.may_run_again[m] and m != by
            for u in static.problem.ops[m].outputs
        )

    def _lose(self, t: int, by: int = -1) -> None:
        """Bar all readers of the tensor from running again, and all operations that would need those."""
        stack = [t]
        while stack:
            for m in self.static.uses[stack.pop()]:
                if self.may_run_again[m]:
                    self.may_run_again[m] = False
                    outputs = self.static.problem.ops[m].outputs if m != by else ()
                    stack.extend(u for u in outputs if not self.there[u])

    def _cost(self, t: int) -> float:
        """Estimate the microseconds to make a tensor again.

        Missing inputs count with their last estimates.
        """
        static = self.static
        op = static.problem.ops[static.producer[t]]
        cost = op.duration_us + sum(self.cost[u] for u in op.inputs if not self.there[u])
        return min(cost, static.duration_us)

    def _score(self, t: int) -> tuple[int, float]:
        """Return the score of a tensor; the least is dropped first."""
        if self.waits[t]:
            return self.depth[t], 0.0
        uses = self.static.uses[t]
        count = len(self.static.problem.ops)
        following = self.next_use[t]
        distance = uses[following] - self.at + 1 if following < len(uses) else 4 * count
        weight = (self._cost(t) + 1e-9) ** self.policy.cost
        if self.draw is not None:
            weight *= self.draw.lognormvariate(0.0, _BLUR)
        return 0, weight / (self.static.size[t] * distance**self.policy.distance)
