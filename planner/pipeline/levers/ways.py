"""The ways of a model to have what outlives a step, side by side: on the device, and on the host.

`optimize` chooses tensor by tensor for one budget (`planner.pipeline.levers.hosting`). Where
many are looked at, the two ends of that choice are: as much on the host as costs nothing, and all that
may be. What the choice in between finds can only be quicker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.pipeline.levers.hosting import HOSTING, candidates_of, residence_of
from planner.pipeline.levers.residence import resided
from planner.pipeline.prepare.prepared import Prepared
from planner.pipeline.prepare.settings import Settings
from planner.plan.points import Point, monotone
from planner.results import Frontier


def ways_of(prepared: Prepared, settings: Settings) -> tuple[Prepared, ...]:
    """The model with as much on the host as its request allows at no cost and, where there is more that
    may be there, with all of it: the ends of what `Hosting` chooses from.

    Raises:
        UsageError: the host is asked for, and ONNX Runtime here has no copies.
    """
    HOSTING.supports(prepared)
    if (lever := residence_of(prepared)) == "device":
        return (prepared,)
    found = candidates_of(prepared, settings)
    every = len(found.ranked)
    counts = [every] if lever == "host" else sorted({0, every})
    return tuple(resided(prepared, found.first(count)) for count in counts)


def merged(found: Sequence[Frontier]) -> Frontier:
    """One frontier of several ways: at each budget the quickest plan of any, and the least bound.

    With less on the host than all, a plan may be quicker than the bound of those with all; but where
    none of those fits, none does.

    Args:
        found: of one model at one size and at the same budgets, what costs nothing first.
    """
    first = found[0]
    names: list[str] = []
    points: dict[int, Point] = {}
    for way, frontier in enumerate(found):
        for point in frontier.points:
            plan, bound_us = point.plan, point.bound_us
            if plan is not None:
                plan = replace(plan, order=plan.order + len(names))
            if way and not point.is_impossible:
                bound_us = min(bound_us, frontier.base_us)
            mine = replace(point, plan=plan, bound_us=bound_us)
            known = points.get(point.capacity_bytes)
            points[point.capacity_bytes] = mine if known is None else _quicker(known, mine)
        names += frontier.orders if not names else (f"{n}, on the host" for n in frontier.orders)
    return replace(
        first,
        least_bound_bytes=min(f.least_bound_bytes for f in found),
        orders=tuple(names),
        points=monotone(list(points.values())),
    )


def _quicker(one: Point, other: Point) -> Point:
    plans = [p.plan for p in (one, other) if p.plan is not None]
    return replace(
        one,
        plan=min(plans, key=lambda plan: (plan.time_us, plan.peak_bytes), default=None),
        bound_us=min(one.bound_us, other.bound_us),
    )
