"""The LP over instants: a bound on the time of every plan, and a fractional plan to round.

An instant p is the moment at which base operation p runs. A tensor that is needed after p must be
resident at p, be on the host at p, or be computed again after p; the same holds for the inputs of each
operation that runs again:

    minimise    Σ_m c_m R[m] + Σ_t out_t O[t] + Σ_(t,g) in_t W[t,g]
    res[t,p] + A[prod t,p] + W[t, gap at p] >= 1          t used after p
    res[t,p] + A[prod t,p] + W[t, gap at p] >= A[m,p]     t an input of m, m < p
    Σ_t s_t res[t,p] <= capacity - bytes that p itself holds
    R[m] >= A[m,p],  O[t] >= W[t,g],  all in [0, 1]

Copies that run beside the operations cost no time themselves. W then has one variable per instant, and
`CopyTimes` adds the time of the copies.

Inputs of p are resident. The optimum is a lower bound for every schedule whose first executions follow
the base order, with any number of recomputes and swaps: each of these schedules gives a feasible point (A
= executed again after p, res = resident at p) of no greater cost. In-place outputs are credited in full,
which keeps the bound valid.

An operation that runs again after p, or a tensor needed after p, also does so after each earlier instant.
The LP leaves out the rows that say this: with them the simplex took up to 20 times as long on training
graphs of 1,200 to 2,100 operations with 12 instants, and the bounds did not change.
`planner.bound.column_generation` has them.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from planner.bound.instants import held_at, needed_at
from planner.bound.program import Floats, LinearProgram
from planner.plan.decisions import Gap
from planner.plan.problem import Problem

BOUND_CLASS = (
    "schedules that first run the operations in this base order, with any number of recomputes "
    "and swaps"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LpSolution:
    """The optimum of the LP over some instants.

    Attributes:
        extra_us: time that this solution adds to the base order.
        bound_us: lower bound on the time that any plan adds to the base order.
        feasible: False where some instant cannot meet the capacity at all.
        resident, swapped: values of res and W, by tensor and instant. rerun: A, by operation and instant.
        price_us: microseconds by which one more byte of capacity lowers the bound, by instant: the dual
            price of the instant's capacity row.
    """

    feasible: bool
    extra_us: float
    bound_us: float
    resident: dict[tuple[int, int], float]
    swapped: dict[tuple[int, int], float]
    rerun: dict[tuple[int, int], float]
    price_us: dict[int, float] = field(default_factory=dict)


INFEASIBLE = LpSolution(
    feasible=False, extra_us=0.0, bound_us=0.0, resident={}, swapped={}, rerun={}
)


class InstantLp:
    """An LP to which instants are added one by one."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.program = LinearProgram()
        self.scale = 1.0 / max(1e-9, problem.base_duration_us)
        self.instants: list[int] = []
        self.rerun_any: dict[int, int] = {}
        self.swap_gap: dict[Gap, int] = {}
        self.swap_any: dict[int, int] = {}
        self.swapped: dict[tuple[int, int], int] = {}
        self.resident: dict[tuple[int, int], int] = {}
        self.rerun: dict[tuple[int, int], int] = {}
        self.memory: dict[int, int] = {}
        self.objective: list[tuple[int, float]] = []
        self.times: CopyTimes | None = None
        if problem.overlap and problem.allow_swap:
            self.times = CopyTimes(self.program, problem)

    def add(self, p: int) -> None:
        """Add the instant at base operation p."""
        if p in self.instants:
            return
        self.instants.append(p)
        problem, program = self.problem, self.program
        used_after, reruns, wanted = needed_at(problem, p)
        after = set(used_after)
        for m in reruns:
            variable = program.variable()
            self.rerun[m, p] = variable
            if m not in self.rerun_any:
                self.rerun_any[m] = self._paid(problem.ops[m].duration_us)
            program.at_least([(self.rerun_any[m], 1.0), (variable, -1.0)], 0.0)
        scale = 1.0 / max(1, problem.capacity_bytes)
        memory: list[tuple[int, float]] = []
        back: dict[int, list[tuple[int, float]]] = {}
        for t in wanted:
            res = program.variable()
            self.resident[t, p] = res
            memory.append((res, problem.tensors[t].bytes * scale))
            back[t] = [(res, 1.0)]
            producer = problem.tensors[t].producer
            if (producer, p) in self.rerun:
                back[t].append((self.rerun[producer, p], 1.0))
            swap = self._swap(t, p)
            if swap is not None:
                self.swapped[t, p] = swap
                back[t].append((swap, 1.0))
            if t in after:
                program.at_least(back[t], 1.0)
        for m in reruns:
            for t in problem.ops[m].inputs:
                if t in back:
                    program.at_least([*back[t], (self.rerun[m, p], -1.0)], 0.0)
        room = problem.capacity_bytes - held_at(problem, p)
        self.memory[p] = program.at_most(memory, room * scale)
        if self.times is not None:
            host = {t: self.swapped[t, p] for t in wanted if (t, p) in self.swapped}
            self.times.add(p, host, [(m, self.rerun[m, p]) for m in reruns])

    def _swap(self, t: int, p: int) -> int | None:
        problem = self.problem
        if not problem.allow_swap or not problem.tensors[t].swappable:
            return None
        if self.times is not None:
            return self.program.variable()
        uses = problem.tensors[t].uses
        # a tensor may return after its last use, for a recompute that reads it
        gap = (t, next((i for i, u in enumerate(uses) if u > p), len(uses)))
        if gap not in self.swap_gap:
            self.swap_gap[gap] = self._paid(problem.swap_in_us(t))
            if t not in self.swap_any:
                self.swap_any[t] = self._paid(problem.swap_out_us(t))
            row = [(self.swap_any[t], 1.0), (self.swap_gap[gap], -1.0)]
            self.program.at_least(row, 0.0)
        return self.swap_gap[gap]

    def _paid(self, us: float) -> int:
        """Add a variable that costs `us` microseconds, and return its number.

        Where copies run beside the operations, `solve` adds the cost as a row instead.
        """
        cost = self.scale * us
        variable = self.program.variable(0.0 if self.times is not None else cost)
        self.objective.append((variable, cost))
        return variable

    def solve(self, *, time_limit_s: float) -> LpSolution | None:
        """Solve the LP; return None where the time limit passed without an answer."""
        if self.times is not None:
            self.program.at_most([*self.objective, (self.times.recompute, -1.0)], 0.0)
        answer = self.program.linear(time_limit_s=time_limit_s)
        if answer.is_impossible:
            return INFEASIBLE
        if answer.values is None or not answer.is_optimal:
            return None
        values = answer.values.tolist()
        extra_us = max(0.0, answer.objective / self.scale)
        return LpSolution(
            feasible=True,
            extra_us=extra_us,
            bound_us=extra_us,
            resident={k: values[v] for k, v in self.resident.items()},
            swapped={k: values[v] for k, v in self.swapped.items()},
            rerun={k: values[v] for k, v in self.rerun.items()},
            price_us=self._prices(answer.duals),
        )

    def _prices(self, duals: Floats) -> dict[int, float]:
        """Convert the duals of the capacity rows from scaled units to microseconds per byte."""
        per_byte = 1.0 / max(1, self.problem.capacity_bytes) / self.scale
        return {p: max(0.0, -float(duals[row])) * per_byte for p, row in self.memory.items()}


_POINTS = 8
"""Number of releases and deadlines for each instant; more tighten the bound little."""


class CopyTimes:
    """The time of copies in an LP over instants, with copies beside the operations.

    A plan's time is that of the base order, its recomputes, and its stalls. With S_p the stall and
    b_p the recompute time before instant p, S and P those of the whole run, and T the base order's
    starts:

        minimise   P + S      P >= Σ_m c_m R[m],   b_p + Σ_m c_m A[m,p] <= P

    A tensor that is only on the host at instant p was copied out after it was made, and is copied in
    before it is next read, each on one engine. Hence for any release r and deadline d, where j is an
    instant at or before r and k one at or after d (else the ends of the run):

        Σ_(prod t >= r) out_t W[t,p] <= T_p - T_(r+1) + (S_p + b_p) - (S_j + b_j)
        Σ_(next use of t <= d) in_t W[t,p] <= T_d - T_p + (S_k + b_k) - (S_p + b_p)

    Every schedule of the class satisfies these with its own times, so the value stays a lower bound.
    """

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
