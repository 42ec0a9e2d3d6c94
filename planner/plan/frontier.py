"""The frontier between memory and time: the best plan at each of several budgets.

A plan for one budget is a plan for every larger one, and a bound for one budget bounds every smaller
one. So both lines of a frontier are monotone by construction: each point takes the best plan of the
budgets up to its own, and the largest bound of those from its own on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.plan.improve import Candidate
from planner.plan.problem import Problem
from planner.plan.race import solve_orders


@dataclass(frozen=True, slots=True, kw_only=True)
class PointPlan:
    """The figures of one plan; `order` is the index of its base order."""

    peak_bytes: int
    time_us: float
    engine: str
    order: int
    recomputed_ops: int = 0
    recomputed_us: float = 0.0
    swap_out_bytes: int = 0
    swap_in_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One budget.

    Attributes:
        plan: None where nothing was found that fits.
        bound_us: no plan that fits takes less time, in any of the base orders; infinite where that
            proves that nothing fits.
    """

    capacity_bytes: int
    plan: PointPlan | None
    bound_us: float

    @property
    def is_impossible(self) -> bool:
        """Proved that nothing fits."""
        return self.bound_us == float("inf")


def solve_point(
    problems: Sequence[Problem], capacity_bytes: int, *, time_limit_s: float, seed: int = 0
) -> Point:
    """The best plan found at one budget, on one core.

    Args:
        problems: the same problem in several base orders; their own capacities do not count.
    """
    tight = [replace(problem, capacity_bytes=capacity_bytes) for problem in problems]
    found = solve_orders(tight, time_limit_s=time_limit_s, seed=seed, workers=1)
    candidate = found.solved.candidate
    if candidate is None:
        return Point(capacity_bytes=capacity_bytes, plan=None, bound_us=found.bound_us)
    plan = point_plan(candidate, engine=found.solved.engine, order=found.index)
    return Point(capacity_bytes=capacity_bytes, plan=plan, bound_us=found.bound_us)


def point_plan(candidate: Candidate, *, engine: str, order: int) -> PointPlan:
    """The figures of a plan, for a frontier."""
    replay = candidate.replay
    return PointPlan(
        peak_bytes=replay.peak_bytes,
        time_us=replay.time_us,
        engine=engine,
        order=order,
        recomputed_ops=replay.recomputed_ops,
        recomputed_us=replay.recompute_us,
        swap_out_bytes=replay.swap_out_bytes,
        swap_in_bytes=replay.swap_in_bytes,
    )


def monotone(points: Sequence[Point]) -> tuple[Point, ...]:
    """The points by budget, ascending, each with the best plan that fits it and the best bound."""
    ascending = sorted(points, key=lambda p: p.capacity_bytes)
    bound_us, bounds = 0.0, []
    for point in reversed(ascending):
        bound_us = max(bound_us, point.bound_us)
        bounds.append(bound_us)
    plans = [p.plan for p in ascending if p.plan is not None]
    best: list[Point] = []
    for point, bound in zip(ascending, reversed(bounds), strict=True):
        fitting = [plan for plan in plans if plan.peak_bytes <= point.capacity_bytes]
        plan = min(fitting, key=lambda p: (p.time_us, p.peak_bytes), default=None)
        best.append(replace(point, plan=plan, bound_us=bound))
    return tuple(best)
