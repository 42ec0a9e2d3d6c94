"""The frontier between memory and time: the best plan at each of several budgets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

_SAME = 1e-9
"""Relative difference up to which times count as equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointPlan:
    """The figures of one plan.

    Attributes:
        order: index of its base order.
        actions: number of its actions; 0 for a model as it is.
    """

    peak_bytes: int
    time_us: float
    engine: str
    order: int
    recomputed_ops: int = 0
    recomputed_us: float = 0.0
    swap_out_bytes: int = 0
    swap_in_bytes: int = 0
    actions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One budget.

    Attributes:
        plan: None if no plan that fits was found.
        bound_us: no plan that fits takes less time, in any of the base orders; infinite if proved
            that nothing fits.
        order_bound_us: the same for plans in the base order of `plan`, for which a search proves
            more; 0 if unknown.
    """

    capacity_bytes: int
    plan: PointPlan | None
    bound_us: float
    order_bound_us: float = 0.0

    @property
    def is_impossible(self) -> bool:
        """Whether it is proved that nothing fits."""
        return self.bound_us == float("inf")


def with_views(point: Point, views_us: float) -> Point:
    """Add the time of nodes that no schedule names (views) to a point's plan and bounds."""
    found = _timed(point, lambda us: us + views_us)
    return found if point.order_bound_us else replace(found, order_bound_us=0.0)


def _timed(point: Point, new_us: Callable[[float], float]) -> Point:
    """Return the point with other times of its plan and bounds."""
    plan = point.plan
    return replace(
        point,
        plan=None if plan is None else replace(plan, time_us=new_us(plan.time_us)),
        bound_us=new_us(point.bound_us),
        order_bound_us=new_us(point.order_bound_us),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The step time of a written file, as a yardstick for plans that are not written.

    A written file has nodes that pin its order, and the processor's caches save some time. Another
    plan is assumed to have both in proportion to the time that it adds, at most as much as this
    file.

    Attributes:
        base_us: of the model as it is.
        schedule_us: of the plan's schedule, views included.
        step_us: of its file.
    """

    base_us: float
    schedule_us: float
    step_us: float

    def us(self, schedule_us: float) -> float:
        """Estimate the step time of another schedule; infinity stays."""
        added_us = self.schedule_us - self.base_us
        if added_us <= 0:
            return schedule_us
        share = min(1.0, max(0.0, (schedule_us - self.base_us) / added_us))
        return schedule_us + share * max(self.step_us - self.schedule_us, -added_us)

    def of(self, point: Point) -> Point:
        """Estimate the step times of a point's plan and bounds."""
        return _timed(point, self.us)


def monotone(points: Sequence[Point]) -> tuple[Point, ...]:
    """Sort the points by budget, and give each the best plan that fits it and the best bound.

    A bound that a plan refutes is dropped: bounds count buffers rounded up as an arena does, and a
    plan that was read back may fit in the bytes that it really needs.
    """
    ascending = sorted(points, key=lambda p: p.capacity_bytes)
    plans = [p.plan for p in ascending if p.plan is not None]
    bound_us, bounds = 0.0, []
    for point in reversed(ascending):
        fitting = (plan for plan in plans if plan.peak_bytes <= point.capacity_bytes)
        if all(plan.time_us >= point.bound_us * (1 - _SAME) for plan in fitting):
            bound_us = max(bound_us, point.bound_us)
        bounds.append(bound_us)
    best: list[Point] = []
    for point, bound in zip(ascending, reversed(bounds), strict=True):
        fitting = [plan for plan in plans if plan.peak_bytes <= point.capacity_bytes]
        plan = min(fitting, key=lambda p: (p.time_us, p.peak_bytes), default=None)
        own = bound
        if plan is not None:
            bound = min(bound, plan.time_us)
            own = max(bound, _in_order(plan, point, ascending, plans))
        best.append(replace(point, plan=plan, bound_us=bound, order_bound_us=own))
    return tuple(best)


def _in_order(
    plan: PointPlan, point: Point, points: Sequence[Point], plans: Sequence[PointPlan]
) -> float:
    """Return the best bound for plans in `plan`'s base order at `point`'s budget; 0 for none."""
    bounds = [0.0]
    for larger in points:
        same = larger.plan is not None and larger.plan.order == plan.order
        if not same or larger.capacity_bytes < point.capacity_bytes:
            continue
        fitting = (
            p for p in plans if p.order == plan.order and p.peak_bytes <= larger.capacity_bytes
        )
        if all(p.time_us >= larger.order_bound_us * (1 - _SAME) for p in fitting):
            bounds.append(larger.order_bound_us)
    return max(bounds)
