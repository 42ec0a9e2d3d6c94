"""The frontier: monotone, and no point better or worse than what it was made from."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.order.lists import list_schedule
from planner.order.reorder import reorder
from planner.plan.points import Point, PointPlan, monotone
from planner.portfolio.frontier import FrontierSearch
from planner.search.state import SearchSettings
from planner.simulate.simulate import simulate
from tests.graphs import between, problems


@st.composite
def point_lists(draw: st.DrawFn) -> list[Point]:
    """Points of distinct budgets; each plan fits its own, and takes at least its bound."""
    found = []
    for capacity in draw(st.sets(st.integers(1, 50), min_size=1, max_size=8)):
        bound = float(draw(st.integers(0, 20)))
        plan = None
        if draw(st.booleans()):
            peak, more = draw(st.integers(1, capacity)), draw(st.integers(0, 20))
            order = draw(st.integers(0, 2))
            plan = PointPlan(peak_bytes=peak, time_us=bound + more, engine="", order=order)
        own = bound + (draw(st.integers(0, int(plan.time_us - bound))) if plan else 0)
        found.append(Point(capacity_bytes=capacity, plan=plan, bound_us=bound, order_bound_us=own))
    return found


def refuted(point: Point, points: list[Point]) -> bool:
    """Whether some plan that fits takes less time than the bound."""
    plans = [p.plan for p in points if p.plan and p.plan.peak_bytes <= point.capacity_bytes]
    return any(plan.time_us < point.bound_us for plan in plans)


def test_what_a_plan_refutes_is_not_impossible():
    plan = PointPlan(peak_bytes=5, time_us=7.0, engine="", order=0)
    points = [
        Point(capacity_bytes=5, plan=plan, bound_us=6.0),
        Point(capacity_bytes=8, plan=None, bound_us=math.inf),
        Point(capacity_bytes=4, plan=None, bound_us=math.inf),
    ]
    four, five, eight = monotone(points)
    assert four.is_impossible
    assert (five.plan, five.bound_us) == (plan, 6.0)
    assert (eight.plan, eight.bound_us) == (plan, 0.0)


@given(points=point_lists())
def test_every_point_has_the_best_plan_that_fits_and_the_best_bound(points):
    curve = monotone(points)
    assert [p.capacity_bytes for p in curve] == sorted(p.capacity_bytes for p in points)
    for point in curve:
        fitting = [
            p.plan.time_us for p in points if p.plan and p.plan.peak_bytes <= point.capacity_bytes
        ]
        assert (point.plan.time_us if point.plan else None) == min(fitting, default=None)
        above = [
            p.bound_us
            for p in points
            if p.capacity_bytes >= point.capacity_bytes and not refuted(p, points)
        ]
        assert point.bound_us == max(above, default=0.0)
        assert point.order_bound_us >= point.bound_us
        assert point.plan is None or point.plan.time_us >= point.order_bound_us
    times = [p.plan.time_us if p.plan else math.inf for p in curve]
    assert times == sorted(times, reverse=True)
    bounds = [p.bound_us for p in curve]
    assert bounds == sorted(bounds, reverse=True)


def searched(problem) -> FrontierSearch:
    """A frontier of a problem in two base orders."""
    plain = list(range(len(problem.ops)))
    orders = problem, reorder(problem, list_schedule(problem, plain))
    return FrontierSearch(problems=orders, settings=SearchSettings())


@settings(max_examples=8, deadline=None)
@given(problem=problems(max_ops=9), share=st.floats(0, 1))
def test_a_point_bounds_and_fits(problem, share):
    capacity = between(problem, share).capacity_bytes
    point = searched(problem).at(capacity, time_limit_s=1.0)
    if point.plan is not None:
        assert point.plan.peak_bytes <= capacity
        assert point.bound_us <= point.plan.time_us * (1 + 1e-6)
        assert not point.is_impossible
        again = searched(problem).at(point.plan.peak_bytes, time_limit_s=1.0)
        assert again.bound_us >= problem.base_duration_us * (1 - 1e-9)


@settings(max_examples=8, deadline=None)
@given(problem=problems(max_ops=9), shares=st.permutations([0.2, 0.5, 0.8, 1.0]))
def test_budgets_hand_along_what_they_found(problem, shares):
    search = searched(problem)
    at_once = {}
    for budget in (between(problem, share).capacity_bytes for share in shares):
        at_once[budget] = search.at(budget, time_limit_s=0.5)
    assert sorted(search.found) == [p.capacity_bytes for p in search.points]
    for point in search.points:
        before, raced = at_once[point.capacity_bytes], search.found[point.capacity_bytes]
        assert point.bound_us >= before.bound_us * (1 - 1e-9)
        if before.plan is not None:
            assert point.plan is not None and point.plan.time_us <= before.plan.time_us
        if raced is not None and (found := raced.solved.candidate) is not None:
            replay = simulate(search.problems[raced.index], found.actions)
            assert replay.peak_bytes <= point.capacity_bytes
            assert (replay.time_us, replay.peak_bytes) == (found.time_us, found.peak_bytes)
    times = [p.plan.time_us if p.plan else math.inf for p in search.points]
    assert times == sorted(times, reverse=True)


@settings(max_examples=8, deadline=None)
@given(problem=problems(max_ops=9))
def test_what_is_settled_is_not_searched_for(problem):
    """Between the order's own peak and any larger budget nothing is left to gain."""
    search = searched(problem)
    whole = search.at(1 << 60, time_limit_s=1.0)
    assert whole.plan is not None and whole.plan.time_us == problem.base_duration_us
    between_them = search.at(whole.plan.peak_bytes, time_limit_s=1.0)
    assert search.found[whole.plan.peak_bytes] is None
    assert between_them.plan == whole.plan


@settings(max_examples=8, deadline=None)
@given(problem=problems(max_ops=9), share=st.floats(0, 1))
def test_asked_again_a_budget_is_no_worse(problem, share):
    search, capacity = searched(problem), between(problem, share).capacity_bytes
    first, then = (search.at(capacity, time_limit_s=limit_s) for limit_s in (0.1, 0.5))
    assert first.plan is None or (then.plan is not None and then.plan.time_us <= first.plan.time_us)
    assert then.bound_us >= first.bound_us * (1 - 1e-9)
