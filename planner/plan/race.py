"""Which base order to plan in: a race of short searches.

How well a graph can be planned depends on its order far more than the order's own peak tells:
between two orders whose peaks are 1% apart, recomputing to half of it has cost 7% and 47% (ResNet-50).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from planner.plan.cuts import least_peak_bound
from planner.plan.problem import Problem
from planner.plan.search import bound_at_peak
from planner.plan.solve import Solved, solve

RACE = 0.4
"""Share of the time of a whole search that the race should take."""

_LEAST_S = 0.2
"""No search is shorter."""

_BOUNDS = 0.25
"""Share of the time for the bounds."""

_AGAIN = 3
"""Orders that get a second, longer search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """One order in the race.

    Attributes:
        index: of its problem.
        bound_us: no plan in this order takes less time; infinite where nothing fits.
        solved: what the search found; None where it was not tried, its bound being too high or time
            being out.
    """

    index: int
    bound_us: float
    solved: Solved | None = None

    @property
    def is_impossible(self) -> bool:
        """Whether nothing fits in this order."""
        return self.bound_us == float("inf")

    @property
    def rank(self) -> tuple[int, float, float]:
        """Least is best: a plan by its time; then those not tried, by their bound; then those that
        found nothing, by their least peak; then what is impossible."""
        if self.is_impossible:
            return 3, 0.0, 0.0
        if self.solved is None:
            return 1, self.bound_us, 0.0
        if self.solved.candidate is None:
            return 2, float(self.solved.least.peak_bytes), self.bound_us
        return 0, self.solved.candidate.time_us, self.bound_us


def race(
    problems: Sequence[Problem],
    *,
    time_limit_s: float,
    progress: Callable[[int], None] | None = None,
) -> list[Runner]:
    """Search a little in each order, most promising bound first, then longer in the best few.

    Args:
        problems: the same operations, tensors and capacity in several orders, and so of one base
            duration.
        progress: called with the index of a problem when its search begins.

    Returns:
        One runner for each problem, the best first.
    """
    start = time.monotonic()
    runners = _bounded(problems, start + _BOUNDS * time_limit_s)
    half, end = start + 0.6 * time_limit_s, start + time_limit_s
    _search(problems, runners, sorted(runners, key=lambda r: r.bound_us), half, progress)
    again = sorted(runners, key=lambda r: r.rank)[:_AGAIN]
    _search(problems, runners, again, end, progress)
    return sorted(runners, key=lambda r: r.rank)


def _bounded(problems: Sequence[Problem], until: float) -> list[Runner]:
    """Each with the bound of one cut, or its base duration where time is out."""
    runners: list[Runner] = []
    for index, problem in enumerate(problems):
        bound_us = problem.base_duration_us
        if least_peak_bound(problem)[0] > problem.capacity_bytes:
            bound_us = float("inf")
        elif (left_s := until - time.monotonic()) > 0:
            bound_us += bound_at_peak(problem, time_limit_s=left_s)
        runners.append(Runner(index=index, bound_us=bound_us))
    return runners


def _search(
    problems: Sequence[Problem],
    runners: list[Runner],
    turn: Sequence[Runner],
    until: float,
    progress: Callable[[int], None] | None,
) -> None:
    """Search in the orders whose turn it is, but for those whose bound is behind the best plan."""
    for number, runner in enumerate(turn):
        best_us = min((r.rank[1] for r in runners if r.rank[0] == 0), default=float("inf"))
        limit_s = (until - time.monotonic()) / (len(turn) - number)
        known = runner.solved
        if limit_s < _LEAST_S or runner.bound_us >= best_us or (known and known.is_tight):
            continue
        if progress:
            progress(runner.index)
        found = solve(
            problems[runner.index],
            time_limit_s=limit_s,
            thorough=False,
            start=known,
        )
        bound_us = max(runner.bound_us, found.bound_us)
        if found.is_impossible:
            bound_us = float("inf")
        runners[runner.index] = Runner(index=runner.index, bound_us=bound_us, solved=found)


def solve_orders(
    problems: Sequence[Problem],
    *,
    time_limit_s: float,
    seed: int = 0,
    workers: int | None = None,
) -> tuple[int, Solved]:
    """Compare the orders, then search at length in the best one: (its index, what was found).

    Arguments as of `race` and of `planner.plan.solve.solve`; the time is that of both.
    """
    start = time.monotonic()
    best = race(problems, time_limit_s=RACE * time_limit_s)[0]
    solved = solve(
        problems[best.index],
        time_limit_s=time_limit_s - (time.monotonic() - start),
        seed=seed,
        workers=workers,
        start=best.solved,
    )
    return best.index, replace(solved, solve_s=time.monotonic() - start)
