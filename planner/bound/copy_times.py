"""Time in the LP over instants, where copies run beside the operations.

A plan's time is the base order's, its recomputes', and its stalls. With S_p the stall and b_p the
recompute time before instant p, S and P those of the whole run, and T the base order's starts:

    minimise   P + S      P >= Σ_m c_m R[m],   b_p + Σ_m c_m A[m,p] <= P

What is only on the host at instant p was copied out after it was made, and is copied in before it is
next read, each on one engine; so for any release r and deadline d, where j is an instant at or before r
and k one at or after d (else the ends of the run):

    Σ_(prod t >= r) out_t W[t,p] <= T_p - T_(r+1) + (S_p + b_p) - (S_j + b_j)
    Σ_(next use of t <= d) in_t W[t,p] <= T_d - T_p + (S_k + b_k) - (S_p + b_p)

Every schedule of the class satisfies these with its own times, so the value stays a lower bound.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence

import numpy as np
from ortools.math_opt.python import mathopt

from planner.plan.problem import Problem

_POINTS = 8
"""Releases and deadlines for each instant; more tighten the bound little."""


class CopyTimes:
    """Adds the time of copies to an LP over instants; `bandwidth_scale` below 1 leaves slack for
    queueing, and then the value is no bound."""

    def __init__(
        self, model: mathopt.Model, problem: Problem, *, bandwidth_scale: float = 1.0
    ) -> None:
        self.model = model
        self.problem = problem
        self.bandwidth_scale = bandwidth_scale
        duration = [op.duration_us for op in problem.ops]
        self.starts = np.concatenate([[0.0], np.cumsum(duration)])
        self.unit = 1.0 / max(1e-9, problem.base_duration_us)
        self.recompute = model.add_variable(lb=0.0)
        self.stall = model.add_variable(lb=0.0)
        self.instants: list[int] = []
        self.before: dict[int, tuple[mathopt.Variable, mathopt.Variable]] = {}

    @property
    def cost(self) -> mathopt.LinearBase:
        """Added time, in base durations."""
        return self.recompute + self.stall

    def add(
        self,
        p: int,
        host: Mapping[int, mathopt.Variable],
        rerun: Sequence[tuple[int, mathopt.Variable]],
    ) -> None:
        """Add instant p: `host` is W[., p] by tensor, `rerun` is A[., p] by operation."""
        model = self.model
        stall = model.add_variable(lb=0.0)
        recompute = model.add_variable(lb=0.0)
        self.before[p] = stall, recompute
        model.add_linear_constraint(stall <= self.stall)
        duration = [self.problem.ops[m].duration_us * self.unit for m, _ in rerun]
        again = mathopt.fast_sum(c * v for c, (_, v) in zip(duration, rerun, strict=True))
        model.add_linear_constraint(recompute + again <= self.recompute)
        at = bisect_left(self.instants, p)
        if at:
            earlier = self.before[self.instants[at - 1]]
            model.add_linear_constraint(earlier[0] <= stall)
            model.add_linear_constraint(earlier[1] <= recompute)
        if at < len(self.instants):
            later = self.before[self.instants[at]]
            model.add_linear_constraint(stall <= later[0])
            model.add_linear_constraint(recompute <= later[1])
        insort(self.instants, p)
        self._copies_out(p, host)
        self._copies_in(p, host)

    def _copies_out(self, p: int, host: Mapping[int, mathopt.Variable]) -> None:
        made = sorted(host, key=lambda t: self.problem.tensors[t].producer)
        producers = [self.problem.tensors[t].producer for t in made]
        stall, recompute = self.before[p]
        for r in spread(producers):
            time = self.unit * (self.starts[p] - self.starts[r + 1])
            extra = stall + recompute
            at = bisect_right(self.instants, r) - 1
            if at >= 0:
                earlier = self.before[self.instants[at]]
                extra = extra - earlier[0] - earlier[1]
            copies = mathopt.fast_sum(
                self.unit / self.bandwidth_scale * self.problem.swap_out_us(t) * host[t]
                for t in made[bisect_left(producers, r) :]
            )
            self.model.add_linear_constraint(copies <= time + extra)

    def _copies_in(self, p: int, host: Mapping[int, mathopt.Variable]) -> None:
        read = {t: u for t in host if (u := next_use(self.problem, t, p)) is not None}
        wanted = sorted(read, key=lambda t: read[t])
        deadlines = [read[t] for t in wanted]
        stall, recompute = self.before[p]
        for d in spread(deadlines):
            at = bisect_left(self.instants, d)
            later = self.before[self.instants[at]] if at < len(self.instants) else None
            extra = later[0] + later[1] if later else self.stall + self.recompute
            copies = mathopt.fast_sum(
                self.unit / self.bandwidth_scale * self.problem.swap_in_us(t) * host[t]
                for t in wanted[: bisect_right(deadlines, d)]
            )
            time = self.unit * (self.starts[d] - self.starts[p])
            self.model.add_linear_constraint(copies <= time + extra - stall - recompute)


def next_use(problem: Problem, t: int, p: int) -> int | None:
    """The first base operation behind p that reads t."""
    uses = problem.tensors[t].uses
    at = bisect_right(uses, p)
    return uses[at] if at < len(uses) else None


def spread(values: Sequence[int]) -> list[int]:
    """Up to `_POINTS` distinct values, evenly over the sorted sequence, its ends among them."""
    if not values:
        return []
    picked = np.linspace(0, len(values) - 1, min(_POINTS, len(values))).round().astype(int)
    return sorted({values[int(i)] for i in picked})
