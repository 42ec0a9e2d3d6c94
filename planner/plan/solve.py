"""The portfolio: which engine solves a problem, for how long, on which base orders.

Every engine returns decisions or a schedule; the simulator replays it; the best that fits wins. The
simple heuristic (repair from "keep all") always runs, so the answer is never worse than it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from planner.plan.cpsat import MAX_OPS, solve_exact
from planner.plan.cuts import BOUND_CLASS, least_peak_bound
from planner.plan.execute import Decisions
from planner.plan.improve import Candidate, Improver
from planner.plan.problem import Problem
from planner.plan.search import better, cut_loop

Progress = Callable[[str], None]
_PROOF = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """The best plan over all base orders tried.

    Attributes:
        order: index of its base order in the list that was given.
        candidate: decisions, actions and replay; None where nothing fits.
        least: the plan with the least peak seen, fitting or not.
        bound_us: no plan of `bound_class` (for this base order) takes less time.
        engine: what found it.
    """

    order: int
    candidate: Candidate | None
    least: Candidate
    least_order: int
    bound_us: float | None
    bound_class: str
    proved_optimal: bool
    engine: str
    solve_s: float


def solve(
    problems: Sequence[Problem],
    *,
    time_limit_s: float,
    seed: int = 0,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Solved:
    """Solve the same problem in several base orders (best first) and keep the best plan.

    Args:
        problems: equal but for their base order.
        time_limit_s: for all of it.
        seed, workers: for the exact engine; the others are deterministic.
    """
    start = time.monotonic()
    deadline = start + time_limit_s
    best: Candidate | None = None
    least: Candidate | None = None
    best_order = least_order = 0
    bound: float | None = None
    engine = ""
    proved = False
    for i, problem in enumerate(problems):
        share = start + time_limit_s * (0.6 if i == 0 and len(problems) > 1 else 1.0)
        improver = Improver(problem, deadline=share)
        found, name, bound_us = _solve_one(improver, progress)
        if least is None or found.peak_bytes < least.peak_bytes:
            least, least_order = found, i
        if improver.fits(found) and (best is None or found.time_us < best.time_us):
            best, best_order, bound, engine = found, i, bound_us, name
        if bound is not None and best is not None and best.time_us <= bound * (1 + _PROOF):
            break
        if time.monotonic() > deadline:
            break
    assert least is not None
    if best is not None and not _is_tight(best, bound):
        if len(problems[best_order].ops) <= MAX_OPS and time.monotonic() < deadline - 1:
            exact = solve_exact(
                problems[best_order],
                best,
                time_limit_s=deadline - time.monotonic(),
                lower_bound_us=bound or 0.0,
                seed=seed,
                workers=workers,
            )
            if exact is not None and exact.candidate.time_us < best.time_us * (1 - 1e-9):
                best, engine = exact.candidate, "cp-sat"
    if best is not None and bound is not None:
        proved = best.time_us <= bound * (1 + 1e-6)
    return Solved(
        order=best_order,
        candidate=best,
        least=least,
        least_order=least_order,
        bound_us=bound,
        bound_class=BOUND_CLASS,
        proved_optimal=proved,
        engine=engine,
        solve_s=time.monotonic() - start,
    )


def _is_tight(candidate: Candidate, bound: float | None) -> bool:
    return bound is not None and candidate.time_us <= bound * (1 + _PROOF)


def _solve_one(
    improver: Improver, progress: Progress | None
) -> tuple[Candidate, str, float | None]:
    """(best plan, engine, bound on its time) in one base order."""
    problem = improver.problem
    base = improver.evaluate(Decisions())
    if improver.fits(base):
        return base, "order", problem.base_duration_us
    simple = improver.prune(improver.repair(base))
    engine = "greedy"
    result = cut_loop(improver, on_progress=progress)
    found = simple
    if better(improver, result.best, simple):
        found, engine = result.best, "cut-lp"
    polished = improver.polish(found)
    if polished.time_us < found.time_us:
        found = polished
    return found, engine, problem.base_duration_us + result.bound_extra_us


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
    improver = Improver(problem, deadline=deadline)
    best = improver.evaluate(Decisions())
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
