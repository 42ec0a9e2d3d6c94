"""What other budgets would cost, and what binds at this one: short searches beside a plan.

`planner sweep` looks at the same longer, on all cores and in the best of all base orders.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from planner.pipeline.orders import BaseOrder, Settings, formulate_in
from planner.pipeline.planned import Planned
from planner.pipeline.prepare import Prepared, Progress
from planner.plan.points import Point, PointPlan, monotone
from planner.plan.problem import Problem
from planner.portfolio.frontier import point_plan
from planner.portfolio.race import race
from planner.portfolio.solve import solve
from planner.results import Frontier, Outlook, Worth
from planner.search.patience import begin
from planner.search.shadow_prices import shadow_prices
from planner.units import format_bytes

_SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
"""Budgets looked at, as shares of the model's own peak."""

_PRICING, _RACING = 0.2, 0.3
"""Shares of the time for the prices of the bound, and for finding a base order."""

_MIN_POINT_S = 0.2

_WORTH_PER_S = 1e-2
"""A preview: a second of waiting must promise so much of a step's time."""

_PLAIN_S, _POINT_S_PER_OP, _MOST = 8.0, 3e-4, 0.4
"""A short search takes some seconds with 10,000 operations; never more than this share of the time limit
goes into all of them."""


def outlook(
    prepared: Prepared,
    settings: Settings,
    orders: Sequence[BaseOrder],
    *,
    own: int,
    time_limit_s: float,
    planned: Planned | None = None,
    progress: Progress,
) -> Outlook:
    """The best plan and a bound at each of some budgets, in one base order, and what binds a plan.

    Peaks have the reserve in them, as the budgets do.

    Args:
        orders: all base orders, the one with the least peak first.
        own: the model's own peak, in bytes.
        planned: its base order is searched in, and its budget is one of the points; without it, the
            order that does best at the middle of the range is taken.
    """
    start = time.monotonic()
    worth = None
    if planned is None:
        progress("comparing base orders")
        base = _best_order(prepared, settings, orders, own, time_limit_s=_RACING * time_limit_s)
    else:
        base = planned.base
        progress("finding what binds the budget")
        worth = _worth(planned, time_limit_s=_PRICING * time_limit_s)
    problem = formulate_in(prepared, base.order, settings, own).problem
    budgets = {int(share * own) for share in _SHARES}
    if planned is not None:
        budgets.discard(settings.budget_bytes)
    room = sorted(b for b in budgets if b - settings.reserve_bytes >= base.least_bound_bytes)
    points = [_as_it_is(own + settings.reserve_bytes, problem.base_duration_us)]
    points += [_as_planned(planned, settings)] if planned else []
    for done, budget in enumerate(room):
        left_s = time_limit_s - (time.monotonic() - start)
        progress(f"what {format_bytes(budget)} would cost ({done + 1} of {len(room)})")
        share_s = max(_MIN_POINT_S, left_s / (len(room) - done))
        points.append(_point(problem, budget, settings, time_limit_s=share_s))
    return Outlook(
        frontier=Frontier(
            dims=dict(prepared.loaded.dims),
            baseline_bytes=own,
            base_us=problem.base_duration_us,
            order_alone_bytes=orders[0].peak_bytes,
            least_bound_bytes=base.least_bound_bytes,
            orders=(base.name, "as it is"),
            points=monotone(points),
        ),
        worth=worth,
        seconds=time.monotonic() - start,
    )


def _best_order(
    prepared: Prepared,
    settings: Settings,
    orders: Sequence[BaseOrder],
    own: int,
    *,
    time_limit_s: float,
) -> BaseOrder:
    """The order that a race finds best half way down to what may be possible."""
    middle = (own + min(base.least_bound_bytes for base in orders)) // 2
    problems = [formulate_in(prepared, base.order, settings, middle).problem for base in orders]
    return orders[race(problems, time_limit_s=time_limit_s)[0].index]


def outlook_s(ops: int, time_limit_s: float) -> float:
    """How long to look at other budgets, for a model that is planned in `time_limit_s`."""
    return min(_MOST * time_limit_s, max(_PLAIN_S, _POINT_S_PER_OP * ops * len(_SHARES)))


def _as_it_is(needed: int, base_us: float) -> Point:
    """The model unchanged: within its own peak it costs nothing."""
    plan = PointPlan(peak_bytes=needed, time_us=base_us, engine="none", order=1)
    return Point(capacity_bytes=needed, plan=plan, bound_us=base_us)


def _as_planned(planned: Planned, settings: Settings) -> Point:
    """The plan, at its budget."""
    problem, solved = planned.formulation.problem, planned.solved
    assert solved.candidate is not None
    plan = point_plan(solved.candidate, engine=solved.engine, order=0)
    whole = problem.capacity_bytes >= settings.budget_bytes  # else the bound is of a lower capacity
    return Point(
        capacity_bytes=settings.budget_bytes,
        plan=replace(plan, peak_bytes=planned.timeline.peak_bytes + settings.reserve_bytes),
        bound_us=solved.bound_us if whole else problem.base_duration_us,
    )


def _point(problem: Problem, budget: int, settings: Settings, *, time_limit_s: float) -> Point:
    """A short search at one budget."""
    solved = solve(
        replace(problem, capacity_bytes=budget),
        time_limit_s=time_limit_s,
        thorough=False,
        seed=settings.seed,
        workers=settings.workers,
        patience=begin(_WORTH_PER_S),
    )
    plan = None
    if solved.candidate is not None:
        plan = point_plan(solved.candidate, engine=solved.engine, order=0)
    return Point(
        capacity_bytes=budget,
        plan=plan,
        bound_us=float("inf") if solved.is_impossible else solved.bound_us,
    )


def _worth(planned: Planned, *, time_limit_s: float) -> tuple[Worth, ...] | None:
    """Prices of the bound at the plan's own capacity, the dearest first; None where time ran out."""
    problem = planned.formulation.problem
    found = shadow_prices(problem, time_limit_s=time_limit_s)
    if found is None:
        return None
    step = {name: i for i, name in enumerate(planned.rewritten.planned_order)}
    rows = [
        Worth(
            node=problem.ops[op].name,
            step=step.get(problem.ops[op].name, 0),
            us_per_byte=price,
        )
        for op, price in found.us_per_byte.items()
        if price > 0
    ]
    return tuple(sorted(rows, key=lambda row: -row.us_per_byte))
