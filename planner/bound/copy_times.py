"""Time in the LP over instants, with copies beside the operations.

A plan's time is that of the base order, its recomputes, and its stalls. With S_p the stall and b_p
the recompute time before instant p, S and P those of the whole run, and T the base order's starts:

    minimise   P + S      P >= Σ_m c_m R[m],   b_p + Σ_m c_m A[m,p] <= P

A tensor that is only on the host at instant p was copied out after it was made, and is copied in
before it is next read, each on one engine. Hence for any release r and deadline d, where j is an
instant at or before r and k one at or after d (else the ends of the run):

    Σ_(prod t >= r) out_t W[t,p] <= T_p - T_(r+1) + (S_p + b_p) - (S_j + b_j)
    Σ_(next use of t <= d) in_t W[t,p] <= T_d - T_p + (S_k + b_k) - (S_p + b_p)

Every schedule of the class satisfies these with its own times, so the value stays a lower bound.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence

import numpy as np

from planner.bound.program import LinearProgram
from planner.plan.problem import Problem

_POINTS = 8
"""Number of releases and deadlines for each instant; more tighten the bound little."""


class CopyTimes:
    """The time of copies in an LP over instants."""

    def __init__(self, program: LinearProgram, problem: Problem) -> None:
        self.program = program
        self.problem = problem
        duration = [op.duration_us for op in problem.ops]
        self.starts = np.concatenate([[0.0], np.cumsum(duration)])
        self.unit = 1.0 / max(1e-9, problem.base_duration_us)
        # the time added is the sum of both, in base durations
        self.recompute = program.variable(1.0, high=math.inf)
        self.stall = program.variable(1.0, high=math.inf)
        self.instants: list[int] = []
        self.before: dict[int, tuple[int, int]] = {}

    def add(
        self,
        p: int,
        host: Mapping[int, int],
        rerun: Sequence[tuple[int, int]],
    ) -> None:
        """Add instant p: `host` is W[., p] by tensor, `rerun` is A[., p] by operation."""
        program = self.program
        stall = program.variable(high=math.inf)
        recompute = program.variable(high=math.inf)
        self.before[p] = stall, recompute
        _no_more(program, stall, self.stall)
        again = [(v, self.problem.ops[m].duration_us * self.unit) for m, v in rerun]
        program.at_most([(recompute, 1.0), *again, (self.recompute, -1.0)], 0.0)
        at = bisect_left(self.instants, p)
        if at:
            earlier = self.before[self.instants[at - 1]]
            _no_more(program, earlier[0], stall)
            _no_more(program, earlier[1], recompute)
        if at < len(self.instants):
            later = self.before[self.instants[at]]
            _no_more(program, stall, later[0])
            _no_more(program, recompute, later[1])
        insort(self.instants, p)
        self._copies_out(p, host)
        self._copies_in(p, host)

    def _copies_out(self, p: int, host: Mapping[int, int]) -> None:
        made = sorted(host, key=lambda t: self.problem.tensors[t].producer)
        producers = [self.problem.tensors[t].producer for t in made]
        stall, recompute = self.before[p]
        for r in spread(producers):
            time = self.unit * (self.starts[p] - self.starts[r + 1])
            terms = [(stall, -1.0), (recompute, -1.0)]
            at = bisect_right(self.instants, r) - 1
            if at >= 0:
                terms += [(variable, 1.0) for variable in self.before[self.instants[at]]]
            for t in made[bisect_left(producers, r) :]:
                cost = self.unit * self.problem.swap_out_us(t)
                terms.append((host[t], cost))
            self.program.at_most(terms, time)

    def _copies_in(self, p: int, host: Mapping[int, int]) -> None:
        read = {t: u for t in host if (u := next_use(self.problem, t, p)) is not None}
        wanted = sorted(read, key=lambda t: read[t])
        deadlines = [read[t] for t in wanted]
        stall, recompute = self.before[p]
        for d in spread(deadlines):
            at = bisect_left(self.instants, d)
            later = self.before[self.instants[at]] if at < len(self.instants) else None
            until = later or (self.stall, self.recompute)
            terms = [(stall, 1.0), (recompute, 1.0), *((variable, -1.0) for variable in until)]
            for t in wanted[: bisect_right(deadlines, d)]:
                cost = self.unit * self.problem.swap_in_us(t)
                terms.append((host[t], cost))
            self.program.at_most(terms, self.unit * (self.starts[d] - self.starts[p]))


def _no_more(program: LinearProgram, first: int, second: int) -> None:
    """Require that one variable is at most another."""
    program.at_most([(first, 1.0), (second, -1.0)], 0.0)


def next_use(problem: Problem, t: int, p: int) -> int | None:
    """Return the first base operation after p that reads t; None if there is none."""
    uses = problem.tensors[t].uses
    at = bisect_right(uses, p)
    return uses[at] if at < len(uses) else None


def spread(values: Sequence[int]) -> list[int]:
    """Return up to `_POINTS` distinct values, evenly over the sorted sequence, including its ends."""
    if not values:
        return []
    picked = np.linspace(0, len(values) - 1, min(_POINTS, len(values))).round().astype(int)
    return sorted({values[int(i)] for i in picked})
