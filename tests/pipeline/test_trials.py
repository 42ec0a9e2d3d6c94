"""Which capacity is solved for next, and in which base order."""

from __future__ import annotations

import pytest

from planner.pipeline.orders import BaseOrder
from planner.pipeline.trials import SHARES, Trial, Trials
from planner.plan.candidate import Candidate
from planner.plan.problem import PlanOp, Problem
from planner.plan.solved import Solved
from planner.simulate.simulate import candidate_of
from tests.graphs import base_actions

ROOM = 1000


def order(name: str, peak: int, bound: int = 0) -> BaseOrder:
    """A base order, of which nothing else is asked."""
    return BaseOrder(name=name, order=(), peak_bytes=peak, least_bound_bytes=bound)


def plan(time_us: float, peak: int) -> Solved:
    """What a search found: one operation of this time, which holds so many bytes."""
    problem = Problem(
        name="one",
        ops=(PlanOp(name="op", duration_us=time_us, inputs=(), outputs=(), workspace_bytes=peak),),
        tensors=(),
        fixed_bytes=0,
        capacity_bytes=ROOM,
        swap_out_bytes_per_s=0.0,
        swap_in_bytes_per_s=0.0,
    )
    found: Candidate = candidate_of(problem, base_actions(problem))
    assert (found.time_us, found.peak_bytes) == (time_us, peak)
    return Solved(
        candidate=found, least=found, bound_us=0.0, bound_class="", engine="", solve_s=0.0
    )


def cheapest(trials: Trials) -> Trial:
    """The next one."""
    trial = trials.cheapest(left=1.0)
    assert trial is not None
    return trial


def test_the_order_that_adds_least_comes_first_and_the_unknown_last() -> None:
    trials = Trials(room=ROOM)
    trials.add(order("unknown", 1200), None)
    trials.add(order("dear", 1200), 9.0)
    trials.add(order("cheap", 1200), 3.0)
    assert cheapest(trials).base.name == "cheap"
    assert trials.capacity_bytes(cheapest(trials)) == ROOM


def test_a_lower_capacity_is_tried_before_an_order_that_adds_more() -> None:
    trials = Trials(room=ROOM)
    trials.add(order("dear", 1200), 9.0)
    trials.add(order("cheap", 1200), 3.0)
    trials.done(cheapest(trials), plan(103.0, ROOM), base_us=100.0, is_late=False)
    again = cheapest(trials)
    assert (again.base.name, again.step) == ("cheap", 1)
    saved, more = 1200 - ROOM, 1200 - trials.capacity_bytes(again)
    assert again.added_us == pytest.approx(3.0 * more / saved)
    steps = 0
    while cheapest(trials).base.name == "cheap":
        trial = cheapest(trials)
        capacity = trials.capacity_bytes(trial)
        trials.done(trial, plan(103.0 + steps, capacity), base_us=100.0, is_late=False)
        steps += 1
    assert 3 <= steps <= 7  # until the cheap one is expected to add as much


def test_a_capacity_that_the_plan_is_within_is_left_out() -> None:
    trials = Trials(room=ROOM)
    trials.add(order("only", 1200), 3.0)
    trials.done(cheapest(trials), plan(103.0, 960), base_us=100.0, is_late=False)
    step = cheapest(trials).step
    assert SHARES[step] * ROOM < 960 <= SHARES[step - 1] * ROOM


def test_an_order_ends_without_a_plan_and_below_its_bound() -> None:
    trials = Trials(room=ROOM)
    trials.add(order("none", 1200), 3.0)
    none = plan(103.0, ROOM)
    none = Solved(
        candidate=None, least=none.least, bound_us=0.0, bound_class="", engine="", solve_s=0.0
    )
    trials.done(cheapest(trials), none, base_us=100.0, is_late=False)
    assert trials.cheapest(left=1.0) is None
    trials.add(order("tight", 1200, bound=999), 3.0)
    trials.done(cheapest(trials), plan(103.0, ROOM), base_us=100.0, is_late=False)
    assert trials.cheapest(left=1.0) is None


def test_steps_are_larger_where_time_is_out() -> None:
    trials = Trials(room=ROOM)
    trials.add(order("late", 1200), 3.0)
    trials.done(cheapest(trials), plan(103.0, ROOM), base_us=100.0, is_late=True)
    assert cheapest(trials).step == 2
