"""One answer from several base orders: a race, then longer searches in the best of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner import clock
from planner.plan.problem import Problem
from planner.plan.solved import Solved
from planner.portfolio.race import Entrant, Runner, race
from planner.portfolio.solve import solve
from planner.portfolio.table import POLICY, Policy
from planner.search.state import SearchSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Raced:
    """The best plan over several base orders.

    Attributes:
        index: of the order; `solved` is the result in it, including a bound for plans in it.
        bound_us: no plan in any of the orders takes less time; infinite if nothing fits in any.
    """

    index: int
    solved: Solved
    bound_us: float


def solve_orders(
    problems: Sequence[Problem],
    settings: SearchSettings,
    *,
    larger: Raced | None = None,
    policy: Policy = POLICY,
) -> Raced:
    """Compare the orders, then search longer in the best one, and in others that may gain more.

    A single order is searched at once.

    Args:
        settings: of the whole call.
        larger: the result in the same orders at a larger capacity, as a start.
    """
    start = clock.now()
    limit_s, numbers = settings.limit_s, policy.race
    index, best = 0, None
    bounds_us: list[float] = []
    runners = [Runner(index=0, bound_us=problems[0].base_duration_us)]
    if len(problems) > 1:
        entrants = [Entrant(problem=problem) for problem in problems]
        runners = race(entrants, time_limit_s=numbers.share * limit_s, policy=policy)
    for runner in runners:
        left_s = limit_s - (clock.now() - start)
        best_us = best.candidate.time_us if best and best.candidate else float("inf")
        bounds_us.append(runner.bound_us)
        if best is not None and (left_s < numbers.min_s or runner.bound_us >= best_us):
            continue
        same = larger if larger is not None and larger.index == runner.index else None
        found = solve(
            problems[runner.index],
            replace(settings, limit_s=left_s),
            start=runner.solved,
            larger=None if same is None else same.solved,
            policy=policy,
        )
        bounds_us[-1] = (
            float("inf") if found.is_impossible else max(runner.bound_us, found.bound_us)
        )
        if best is None and found.candidate is not None:
            # an early end means a good plan: the others are not worth much more time
            limit_s = min(settings.limit_s, numbers.others_factor * (clock.now() - start))
        if best is None or figure(found) < figure(best):
            index, best = runner.index, found
    assert best is not None
    took_s = clock.now() - start
    bound_us = max(min(bounds_us), 0.0 if larger is None else larger.bound_us)
    return Raced(index=index, solved=replace(best, solve_s=took_s), bound_us=bound_us)


def figure(solved: Solved) -> tuple[int, float]:
    """Return the sort key, best first: time, or the least peak if nothing fits; impossible last."""
    if solved.candidate is None:
        return 1 + solved.is_impossible, float(solved.least.peak_bytes)
    return 0, solved.candidate.time_us
