"""The frontier between memory and time: the best plan at each of several budgets.

A plan for one budget is a plan for every larger one, and a bound for one budget bounds every smaller
one. So both lines of a frontier are monotone by construction: each point takes the best plan of the
budgets up to its own, and the largest bound of those from its own on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.plan.candidate import Candidate
from planner.plan.points import Point, PointPlan
from planner.plan.problem import Problem
from planner.plan.solved import Solved
from planner.portfolio.race import solve_orders
from planner.portfolio.table import POLICY, Policy


def solve_point(
    problems: Sequence[Problem],
    capacity_bytes: int,
    *,
    time_limit_s: float,
    seed: int = 0,
    policy: Policy = POLICY,
) -> Point:
    """The best plan found at one budget, on one core.

    Args:
        problems: the same problem in several base orders; their own capacities do not count.
        policy: of the race between the orders, and of the searches.
    """
    tight = [replace(problem, capacity_bytes=capacity_bytes) for problem in problems]
    found = solve_orders(tight, time_limit_s=time_limit_s, seed=seed, workers=1, policy=policy)
    candidate = found.solved.candidate
    if candidate is None:
        return Point(capacity_bytes=capacity_bytes, plan=None, bound_us=found.bound_us)
    plan = point_plan(candidate, engine=found.solved.engine, order=found.index)
    return Point(
        capacity_bytes=capacity_bytes,
        plan=plan,
        bound_us=found.bound_us,
        order_bound_us=found.solved.bound_us,
    )


def point_of(solved: Solved, capacity_bytes: int) -> Point:
    """What a search in one base order came to, at one budget."""
    plan = None
    if solved.candidate is not None:
        plan = point_plan(solved.candidate, engine=solved.engine, order=0)
    bound_us = float("inf") if solved.is_impossible else solved.bound_us
    return Point(capacity_bytes=capacity_bytes, plan=plan, bound_us=bound_us)


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
