"""The least budget whose plan stays within a given slowdown.

Bisection finds the budget, because time is monotone in the budget (`planner.portfolio.frontier`).
The plan found is then lowered and checked like any other; if it comes out slower than the limit, it
gets a little more memory.
"""

from __future__ import annotations

from dataclasses import replace

from planner import clock
from planner.errors import InfeasibleBudgetError
from planner.pipeline.answer.budgets.frontier import FrontierWay, way_of
from planner.pipeline.answer.policy import ANSWERING
from planner.pipeline.prepare.prepared import Prepared, Progress
from planner.pipeline.prepare.settings import Settings
from planner.pipeline.solve.planned import Planned
from planner.pipeline.solve.planning import Means, make_plan
from planner.units import format_both, format_bytes, format_percent


def plan_within(
    prepared: Prepared, settings: Settings, max_slowdown: float, progress: Progress
) -> tuple[Planned, Settings]:
    """Find the plan with the least peak that adds at most `max_slowdown` (0.05 for 5%) to the time.

    The time is that of the model as it is. Returns the plan, and the settings with its budget.

    Args:
        settings: its budget is the most that the plan may use.

    Raises:
        InfeasibleBudgetError: every plan found within the budget is slower.
    """
    start = clock.now()
    most_us = prepared.baseline.time_us * (1 + max_slowdown) - prepared.views_us
    progress("searching for base orders")
    way = way_of(prepared, settings)
    low, high = way.least_bound_bytes, settings.budget_bytes
    order_alone = way.order_alone_bytes + settings.reserve_bytes
    found = order_alone if order_alone <= high else None
    high = min(high, order_alone)
    impossible = 0
    for step in range(ANSWERING.bisections):
        budget = high if found is None and not step else (low + high) // 2
        progress(f"searching for the least budget: {format_bytes(budget)}")
        left_s = start + ANSWERING.bisecting * settings.time_limit_s - clock.now()
        share_s = left_s / (ANSWERING.bisections - step)
        point = way.search.at(budget, time_limit_s=max(1.0, share_s))
        if point.bound_us > most_us:
            impossible = max(impossible, budget)
        if point.plan is not None and point.plan.time_us <= most_us:
            found = high = point.plan.peak_bytes
        elif found is None:
            break  # not even the largest budget allowed suffices
        else:
            low = budget
        if high - low <= 0.002 * high:
            break
    if found is not None:
        made = _made(way, settings, found, most_us, start, Means(progress=progress))
        if made is not None:
            return made
    proved = impossible >= settings.budget_bytes
    raise InfeasibleBudgetError(
        f"no plan {'' if proved else 'was found that '}fits {format_both(settings.budget_bytes)} "
        f"and is at most {format_percent(max_slowdown)} slower: the slowdown binds; raise "
        "--max-slowdown, or compare budgets with planner sweep",
        bound_bytes=impossible,
    )


def _made(
    way: FrontierWay,
    settings: Settings,
    budget: int,
    most_us: float,
    start: float,
    means: Means,
) -> tuple[Planned, Settings] | None:
    """Plan and lower at the least budget, from `budget` on, whose plan is fast enough."""
    for _ in range(ANSWERING.more_tries):
        left_s = settings.time_limit_s - (clock.now() - start)
        tight = replace(
            settings,
            budget_bytes=min(budget, settings.budget_bytes),
            most_us=most_us,
            time_limit_s=max(2.0, 0.6 * left_s),
        )
        try:
            planned = make_plan(way.prepared, tight, means, orders=way.orders)
        except InfeasibleBudgetError:
            planned = None  # the search had less time, or the anchors took too many bytes
        if planned is not None:
            return planned, tight
        if budget >= settings.budget_bytes:
            return None
        budget = int(ANSWERING.more_memory * budget)
    return None
