"""One answer from several base orders, and the frontier of the best plans at several budgets.

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
from planner.plan.solved import Solved
from planner.portfolio.race import Entrant, Runner, race
from planner.portfolio.solve import solve
from planner.portfolio.table import POLICY, Policy
from planner.search.state import SearchSettings
from planner.search.stop import Patience


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
        return self.point(capacity_bytes)

    def point(self, capacity_bytes: int) -> Point:
        """Return the point of a budget asked for."""
        return next(p for p in self.points if p.capacity_bytes == capacity_bytes)

    @property
    def points(self) -> tuple[Point, ...]:
        """The points of all budgets asked for."""
        return monotone([_point(budget, raced) for budget, raced in self.found.items()])

    def is_settled(self, capacity_bytes: int) -> bool:
        """Record a budget, and tell whether results at other budgets leave nothing to find there."""
        self.found.setdefault(capacity_bytes, None)
        point = self.point(capacity_bytes)
        plan = point.plan
        return point.is_impossible or (plan is not None and plan.time_us <= point.bound_us)

    def larger(self, capacity_bytes: int) -> Raced | None:
        """Return the result at the least known budget from this one on."""
        known = {b: raced for b, raced in self.found.items() if raced and b >= capacity_bytes}
        return known[min(known)] if known else None

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
    candidate = None if raced is None else raced.solved.candidate
    if raced is None or candidate is None:
        bound_us = 0.0 if raced is None else raced.bound_us
        return Point(capacity_bytes=capacity_bytes, plan=None, bound_us=bound_us)
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
