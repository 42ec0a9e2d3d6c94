"""Choice of the runs of a plan to free: parts that may improve, small enough to solve.

A neighbourhood is a set of operations. Their outputs may be copied out and in anywhere, and each
operation has stages in which it may run again: stages in which the plan runs it again now; before
base uses that close a gap over a stage that is full with everything kept; stages in which an input
is present anyway, for a base use or a recompute of the plan; and stages in which a chosen reader
may run again.
"""

from __future__ import annotations

import itertools
import random
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from planner.order.reorder import children_of, parents_of
from planner.plan.problem import Problem
from planner.plan.stages import MemoryProfile, Run, base_plan, may_swap, overwritten

_OVERSHOOT = 1.3


class Neighbourhood(StrEnum):
    """Ways to choose the operations of a neighbourhood."""

    FULL = "full"
    WINDOW = "window"
    CONNECTED = "connected"
    STAGES = "stages"
    SPREAD = "spread"
    RANDOM = "random"


@dataclass(frozen=True, slots=True, kw_only=True)
class Freed:
    """The free part of a neighbourhood: runs, and tensors that may be swapped."""

    runs: frozenset[Run]
    tensors: frozenset[int]

    def __len__(self) -> int:
        return len(self.runs) + len(self.tensors)


class _Plan(NamedTuple):
    """A plan, the stages in which it runs each operation again, and the source of random choices."""

    held: MemoryProfile
    stages_of: dict[int, list[int]]
    draw: random.Random


class Neighbourhoods:
    """The neighbourhoods of plans of one problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.may_run = [
            problem.allow_recompute and op.recomputable and bool(op.outputs) for op in problem.ops
        ]
        self.may_swap = [
            [t for t in op.outputs if problem.allow_swap and may_swap(problem, t)]
            for op in problem.ops
        ]
        self.readers, self.makers = children_of(problem), parents_of(problem)
        peaks = MemoryProfile(problem, base_plan()).stage_peaks
        self.full = np.flatnonzero(peaks > problem.capacity_bytes).tolist()
        self.closings: list[list[int]] = [[] for _ in problem.ops]
        spared = [overwritten(problem, m) for m in range(len(problem.ops))]
        for t, tensor in enumerate(problem.tensors):
            for opens, closes in itertools.pairwise((tensor.producer, *tensor.uses)):
                # dropped where it is written over, it makes room for the output
                if tensor.bytes and self._full_between(opens - (t in spared[opens]), closes):
                    self.closings[tensor.producer].append(closes)
        self.candidates = [
            m
            for m in range(len(problem.ops))
            if self.closings[m] and (self.may_run[m] or self.may_swap[m])
        ]

    def _full_between(self, a: int, b: int) -> bool:
        i = bisect_right(self.full, a)
        return i < len(self.full) and self.full[i] < b

    def choose(
        self,
        held: MemoryProfile,
        kind: Neighbourhood,
        size: int,
        most_stages: int,
        draw: random.Random,
    ) -> Freed:
        """Choose about `size` runs and tensors.

        An operation gets at most `most_stages` stages besides those in which it runs again now and
        those that close its gaps.
        """
        if not self.candidates:
            return Freed(runs=frozenset(), tensors=frozenset())
        stages_of: dict[int, list[int]] = {}
        for q, m in sorted(held.plan.reruns):
            stages_of.setdefault(m, []).append(q)
        chosen: dict[int, None] = {}
        freed = Freed(runs=frozenset(), tensors=frozenset())
        wanted = max(2, size // 4)
        source = self._operations(kind, _Plan(held, stages_of, draw))
        while True:
            before = len(chosen)
            chosen.update(dict.fromkeys(itertools.islice(source, wanted)))
            grown = Freed(
                runs=frozenset(self._runs(chosen, stages_of, most_stages, draw)),
                tensors=frozenset(t for m in chosen for t in self.may_swap[m]),
            )
            if len(freed) and len(grown) > _OVERSHOOT * size:
                return freed
            freed = grown
            wanted = max(1, (size - len(freed)) // 6)
            if len(freed) >= size or len(chosen) == before:
                return freed

    # -- operations --------------------------------------------------------------------------

    def _operations(self, kind: Neighbourhood, plan: _Plan) -> Iterator[int]:
        """Yield the operations to free, most wanted first, each once."""
        seen: set[int] = set()
        make = {
            Neighbourhood.FULL: self._at_full_stage,
            Neighbourhood.WINDOW: self._window,
            Neighbourhood.CONNECTED: self._connected,
            Neighbourhood.STAGES: self._stages,
            Neighbourhood.SPREAD: self._spread,
            Neighbourhood.RANDOM: self._random,
        }[kind]
        for m in make(plan):
            if m not in seen and (self.may_run[m] or self.may_swap[m]):
                seen.add(m)
                yield m

    def _at_full_stage(self, plan: _Plan) -> Iterator[int]:
        """Yield producers of tensors that wait at a full stage, or would."""
        stage = self._pick_stage(plan)
        waiting = [
            m
            for m in self.candidates
            if any(m < stage < c for c in self.closings[m]) and self.readers[m][-1] > stage
        ]
        plan.draw.shuffle(waiting)
        again = [m for m in plan.stages_of if any(q >= stage for q in plan.stages_of[m])]
        plan.draw.shuffle(again)
        for pair in itertools.zip_longest(waiting, again):
            yield from (m for m in pair if m is not None)
            if plan.draw.random() < 0.3:
                yield from (m for m in pair if m is not None for m in self.makers[m])

    def _pick_stage(self, plan: _Plan) -> int:
        """Draw a stage: one over the capacity if there is any, else one that is nearly full."""
        peaks = plan.held.stage_peaks
        over = np.maximum(peaks - self.problem.capacity_bytes, 0)
        if over.any():
            return plan.draw.choices(range(len(peaks)), weights=over.tolist())[0]
        return plan.draw.choice(self.full)

    def _window(self, plan: _Plan) -> Iterator[int]:
        """Yield operations in base order around one that is a candidate or runs again."""
        middle = plan.draw.choice(self.candidates)
        if plan.stages_of and plan.draw.random() < 0.5:
            middle = plan.draw.choice(sorted(plan.stages_of))
        yield middle
        for step in range(1, len(self.problem.ops)):
            yield from (m for m in (middle - step, middle + step) if 0 <= m < len(self.may_run))

    def _connected(self, plan: _Plan) -> Iterator[int]:
        return self._around(self._seed(plan), plan.draw)

    def _seed(self, plan: _Plan) -> int:
        if plan.stages_of and plan.draw.random() < 0.6:
            return plan.draw.choice(sorted(plan.stages_of))
        return plan.draw.choice(self.candidates)

    def _around(self, seed: int, draw: random.Random) -> Iterator[int]:
        """Yield the operations around `seed`, by steps to producers and readers."""
        front, seen = deque([seed]), {seed}
        while front:
            m = front.popleft()
            yield m
            near = [x for x in (*self.makers[m], *self.readers[m]) if x not in seen]
            draw.shuffle(near)
            seen.update(near)
            front.extend(near)

    def _spread(self, plan: _Plan) -> Iterator[int]:
        """Yield operations around several far-apart ones, whose tensors may make room for each other."""
        around = [self._around(self._seed(plan), plan.draw) for _ in range(plan.draw.randint(2, 6))]
        while around:
            for source in tuple(around):
                m = next(source, None)
                if m is None:
                    around.remove(source)
                else:
                    yield m

    def _stages(self, plan: _Plan) -> Iterator[int]:
        """Yield operations that run again, or may close a gap, near some stage, and their producers."""
        around = self._pick_stage(plan)
        if plan.stages_of and not plan.held.excess(self.problem.capacity_bytes):
            around = plan.draw.choice(plan.stages_of[plan.draw.choice(list(plan.stages_of))])
        far = [
            (min(abs(q - around) for q in (*plan.stages_of.get(m, ()), *self.closings[m])), m)
            for m in {*plan.stages_of, *self.candidates}
        ]
        for _, m in sorted(far):
            yield m
            if m in plan.stages_of:
                yield from self.makers[m]

    def _random(self, plan: _Plan) -> Iterator[int]:
        pool = sorted(plan.stages_of) + self.candidates
        plan.draw.shuffle(pool)
        yield from pool

    # -- stages ------------------------------------------------------------------------------

    def _runs(
        self,
        chosen: Iterable[int],
        stages_of: dict[int, list[int]],
        most_stages: int,
        draw: random.Random,
    ) -> set[Run]:
        """Return the free runs of the chosen operations, readers first."""
        inherited: dict[int, set[int]] = {}
        free: set[Run] = set()
        members = set(chosen)
        for m in sorted(members, reverse=True):
            if not self.may_run[m]:
                continue
            now = set(stages_of.get(m, ()))
            own = set(self.closings[m]) - now
            passed = inherited.get(m, set()) - own - now
            fixed_readers = {
                q for r in self.readers[m] if r not in members for q in stages_of.get(r, ())
            }
            mine = now | own
            room = most_stages - len(mine)
            near = sorted(q for q in (passed | fixed_readers) - mine if q > m)
            if len(near) > room > 0:
                near = sorted(draw.sample(near, room))
            mine.update(near if room > 0 else ())
            room = most_stages - len(mine)
            if room > 0 and mine:
                last = max(mine)
                early = self._early(m, last, stages_of) - mine
                if early:
                    mine.update(draw.sample(sorted(early), min(room, len(early))))
            mine = {q for q in mine if q > m}
            free.update((q, m) for q in mine)
            for p in self.makers[m]:
                inherited.setdefault(p, set()).update(mine)
        return free

    def _early(self, m: int, last: int, stages_of: dict[int, list[int]]) -> set[int]:
        """Return the stages up to `last`, after a full one, in which an input is needed anyway."""
        problem = self.problem
        first = self.full[bisect_left(self.full, m)] if self.full and self.full[-1] >= m else last
        stages: set[int] = set()
        for t in problem.ops[m].inputs:
            stages.update(u for u in problem.tensors[t].uses if first < u <= last)
            stages.update(q for q in stages_of.get(problem.tensors[t].producer, ()) if q <= last)
        return stages
