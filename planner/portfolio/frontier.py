"""The frontier between memory and time: the best plan at each of several budgets.

A plan for one budget is a plan for every larger one, and a bound for one budget bounds every
smaller one. Both curves of a frontier are therefore monotone by construction: each point takes the
best plan of the budgets up to its own, and the largest bound of those from its own on. A search at
one budget starts from the results at the next larger one, and none is made at budgets where the two
curves meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from planner import clock
from planner.plan.candidate import Candidate
from planner.plan.points import Point, PointPlan, monotone
from planner.plan.problem import Problem
from planner.portfolio.orders import Raced, figure, solve_orders
from planner.portfolio.table import POLICY, Policy
from planner.search.patience import Patience
from planner.search.state import SearchSettings


@dataclass(slots=True, kw_only=True)
class FrontierSearch:
    """The search for a frontier, and its results so far.

    Attributes:
        problems: the same problem in several base orders; their own capacities do not count.
        settings: of the search at one budget; its time limit comes with each call.
        worth_per_s: share of a step's time that a second of waiting for one point must promise;
            None waits for the whole time limit.
        policy: of the race between the orders, and of the searches.
        found: results by budget; None if no search was needed.
    """

    problems: tuple[Problem, ...]
    settings: SearchSettings
    worth_per_s: float | None = None
    policy: Policy = POLICY
    found: dict[int, Raced | None] = field(default_factory=dict)

    def at(self, capacity_bytes: int, *, time_limit_s: float) -> Point:
        """Find the best plan at one budget, or below it; a repeated call looks for a better one."""
        if not self.is_settled(capacity_bytes):
            larger = self.larger(capacity_bytes)
            found = self.searched(capacity_bytes, larger, time_limit_s)
            known = self.found[capacity_bytes]
            if known is not None:
                bound_us = max(known.bound_us, found.bound_us)
                best = min((found, known), key=lambda raced: figure(raced.solved))
                found = replace(best, bound_us=bound_us)
            self.found[capacity_bytes] = found
        return next(p for p in self.points if p.capacity_bytes == capacity_bytes)

    @property
    def points(self) -> tuple[Point, ...]:
        """The points of all budgets asked for."""
        return monotone([_point(budget, raced) for budget, raced in self.found.items()])

    def is_settled(self, capacity_bytes: int) -> bool:
        """Record a budget, and tell whether results at other budgets leave nothing to find there."""
        self.found.setdefault(capacity_bytes, None)
        point = next(p for p in self.points if p.capacity_bytes == capacity_bytes)
        plan = point.plan
        return point.is_impossible or (plan is not None and plan.time_us <= point.bound_us)

    def larger(self, capacity_bytes: int) -> Raced | None:
        """Return the result at the least known budget from this one on."""
        found = [(budget, raced) for budget, raced in self.found.items() if raced is not None]
        larger = [pair for pair in found if pair[0] >= capacity_bytes]
        return min(larger, key=lambda pair: pair[0])[1] if larger else None

    def searched(self, capacity_bytes: int, larger: Raced | None, time_limit_s: float) -> Raced:
        """Search at one budget, starting from the result at a larger one."""
        patience = None
        if self.worth_per_s is not None:
            patience = Patience(since=clock.now(), per_s=self.worth_per_s)
        return solve_orders(
            [replace(problem, capacity_bytes=capacity_bytes) for problem in self.problems],
            replace(self.settings, limit_s=time_limit_s, patience=patience),
            larger=larger,
            policy=self.policy,
        )

    def within(self, orders: Sequence[int]) -> FrontierSearch:
        """Restrict the search to some of the orders, given by their indices."""
        return replace(self, problems=tuple(self.problems[i] for i in orders), found={})


def _point(capacity_bytes: int, raced: Raced | None) -> Point:
    if raced is None:
        return Point(capacity_bytes=capacity_bytes, plan=None, bound_us=0.0)
    candidate = raced.solved.candidate
    if candidate is None:
        return Point(capacity_bytes=capacity_bytes, plan=None, bound_us=raced.bound_us)
    return Point(
        capacity_bytes=capacity_bytes,
        plan=point_plan(candidate, engine=raced.solved.engine, order=raced.index),
        bound_us=raced.bound_us,
        order_bound_us=raced.solved.bound_us,
    )


def point_plan(candidate: Candidate, *, engine: str, order: int) -> PointPlan:
    """Return a plan's figures for a frontier."""
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
        actions=len(candidate.actions),
    )
