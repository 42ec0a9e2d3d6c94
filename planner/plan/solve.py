"""The portfolio: which engine solves a problem, and for how long.

Every engine's answer is replayed by the simulator; the best that fits wins. The simple heuristic
(repair from "keep all") always runs, so the answer is never worse than it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from planner.plan.cpsat import MAX_OPS, solve_exact
from planner.plan.cuts import BOUND_CLASS, least_peak_bound
from planner.plan.execute import Decisions
from planner.plan.improve import Candidate, Improver
from planner.plan.problem import Problem
from planner.plan.search import PRUNED_OPS, better, cut_loop, guarded_loops

Progress = Callable[[str], None]

TIGHT = 1e-3
"""A plan within this of its bound is as good as proved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """The best plan in one base order.

    Attributes:
        candidate: decisions, actions and replay; None where nothing fits.
        least: the plan with the least peak seen, fitting or not.
        bound_us: no plan of `bound_class` takes less time.
        engine: what found the plan.
    """

    candidate: Candidate | None
    least: Candidate
    bound_us: float
    bound_class: str
    engine: str
    solve_s: float

    @property
    def gap(self) -> float | None:
        """How far from the bound the plan may be: 0.01 is 1%."""
        if self.candidate is None or self.bound_us <= 0:
            return None
        return max(0.0, self.candidate.time_us / self.bound_us - 1)

    @property
    def is_tight(self) -> bool:
        """Whether nothing is left to gain."""
        return self.gap is not None and self.gap <= TIGHT


def solve(
    problem: Problem,
    *,
    time_limit_s: float,
    thorough: bool = True,
    seed: int = 0,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Solved:
    """Solve one problem.

    Args:
        time_limit_s: for all engines together.
        thorough: False leaves out the guarded searches and the exact engine.
        seed, workers: of the exact engine; the others are deterministic.
    """
    start = time.monotonic()
    deadline = start + time_limit_s
    improver = Improver(problem, deadline=deadline)
    base = improver.evaluate(Decisions())
    if improver.fits(base):
        return _solved(base, base, problem.base_duration_us, "order", start)
    best, engine = improver.repair(base), "greedy"
    if len(problem.ops) <= PRUNED_OPS:
        best = improver.prune(best)
    least = min((base, best), key=lambda c: c.peak_bytes)
    result = cut_loop(improver, max_cuts=12 if thorough else 6, on_progress=progress)
    bound = problem.base_duration_us + result.bound_extra_us
    if better(improver, result.best, best):
        best, engine = result.best, "cut-lp"
    if thorough and not result.proved_infeasible and not _tight(improver, best, bound):
        guarded = guarded_loops(improver, replace(result, best=best), on_progress=progress).best
        if better(improver, guarded, best):
            best, engine = guarded, "cut-lp"
    best = improver.polish(improver.prune(best))
    least = min((least, best, result.best), key=lambda c: c.peak_bytes)
    if not improver.fits(best):
        return _solved(None, least, bound, engine, start)
    left = deadline - time.monotonic()
    if thorough and len(problem.ops) <= MAX_OPS and left > 1 and not _tight(improver, best, bound):
        if progress:
            progress("exact engine")
        found = solve_exact(
            problem,
            best,
            time_limit_s=left,
            lower_bound_us=bound,
            seed=seed,
            workers=workers,
        )
        if found is not None and found.candidate.time_us < best.time_us * (1 - 1e-9):
            best, engine = found.candidate, "cp-sat"
    return _solved(best, least, bound, engine, start)


def _tight(improver: Improver, candidate: Candidate, bound_us: float) -> bool:
    return improver.fits(candidate) and candidate.time_us <= bound_us * (1 + TIGHT)


def _solved(
    candidate: Candidate | None, least: Candidate, bound_us: float, engine: str, start: float
) -> Solved:
    return Solved(
        candidate=candidate,
        least=least,
        bound_us=bound_us,
        bound_class=BOUND_CLASS,
        engine=engine,
        solve_s=time.monotonic() - start,
    )


def least_peak(
    problem: Problem,
    *,
    time_limit_s: float,
    start: Candidate | None = None,
    precision: float = 0.005,
) -> tuple[Candidate, int]:
    """The plan with the least peak that a bisection over capacities finds, and a proven bound.

    The bound holds for `BOUND_CLASS`: the largest of the one-operation bound and the capacities at
    which some cut has no feasible point.
    """
    deadline = time.monotonic() + time_limit_s
    low, _ = least_peak_bound(problem)
    best = Improver(problem, deadline=deadline).evaluate(Decisions())
    if start is not None and start.peak_bytes < best.peak_bytes:
        best = start
    failed = low - 1  # the largest capacity at which no plan was found
    capacity = low
    while best.peak_bytes > (failed + 1) * (1 + precision) and time.monotonic() < deadline:
        attempt = replace(problem, capacity_bytes=capacity)
        left = deadline - time.monotonic()
        trial = Improver(attempt, deadline=time.monotonic() + max(0.5, left / 3))
        result = cut_loop(trial, max_cuts=6)
        if result.proved_infeasible:
            low = max(low, capacity + 1)
        if result.best.peak_bytes < best.peak_bytes:
            best = result.best
        if result.best.peak_bytes > capacity:
            failed = capacity
        capacity = failed + 1 + (best.peak_bytes - failed) // 2
    return best, low
