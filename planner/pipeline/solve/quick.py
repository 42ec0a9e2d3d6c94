"""Short searches that compare changes to a model before it is planned in earnest."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from planner.graph.model import OpId
from planner.pipeline.prepare.prepared import Prepared
from planner.pipeline.prepare.settings import Settings
from planner.pipeline.solve.orders import BaseOrder, formulate_in, one_of_each_first
from planner.pipeline.solve.planned import Planned
from planner.pipeline.solve.policy import POLICY
from planner.portfolio.race import Entrant, race
from planner.portfolio.solve import solve
from planner.search.state import SearchSettings
from planner.search.stop import Patience


def least_bytes(prepared: Prepared) -> int:
    """Return the size in bytes below which a tensor is not worth a node of its own."""
    return max(POLICY.least_bytes, int(POLICY.least_of_peak * prepared.baseline.peak_bytes))


def quick_us(
    prepared: Prepared, order: Sequence[OpId], settings: Settings, limit_s: float
) -> float:
    """Search briefly for a plan within the budget, in one order.

    Returns a step's time with the plan in microseconds, infinite without one.
    """
    form = formulate_in(prepared, order, settings, settings.budget_bytes)
    found = solve(form.problem, SearchSettings(limit_s=limit_s, thorough=False)).candidate
    return float("inf") if found is None else found.time_us + prepared.views_us


def quickest(
    prepared: Prepared,
    orders: Sequence[BaseOrder],
    settings: Settings,
    limit_s: float,
    *,
    most: int = POLICY.quick_orders,
    patience: Patience | None = None,
) -> tuple[BaseOrder, float]:
    """Search briefly in base orders for a plan within the budget.

    Args:
        most: number of orders to search in; they are of as many kinds as possible.

    Returns:
        The best order, and a step's time with the plan in it in microseconds, infinite without one.
    """
    orders = one_of_each_first(orders)[:most]
    capacity = settings.budget_bytes
    forms = [formulate_in(prepared, base.order, settings, capacity) for base in orders]
    entrants = [Entrant(problem=form.problem) for form in forms]
    best = race(entrants, time_limit_s=limit_s, patience=patience)[0]
    found = None if best.solved is None else best.solved.candidate
    time_us = float("inf") if found is None else found.time_us + prepared.views_us
    return orders[best.index], time_us


def between(tried: Iterable[int], best: int) -> list[int]:
    """Return the midpoints of the gaps on both sides of the best number tried, wider gap first."""
    known = sorted(tried)
    place = known.index(best)
    beside = list(itertools.pairwise(known))[max(0, place - 1) : place + 1]
    gaps = [(b - a, (a + b) // 2) for a, b in beside if b - a > 1]
    return [middle for _, middle in sorted(gaps, reverse=True)]


def is_slow(prepared: Prepared, planned: Planned) -> bool:
    """Tell whether another plan has enough to gain.

    Args:
        prepared: the model without the lever.
    """
    if planned.solved.is_interrupted:
        return False
    return not planned.holds or planned.added_us > POLICY.worth * prepared.baseline.time_us
