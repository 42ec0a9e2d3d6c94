"""Schedules by stages hold what the simulator says they hold."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.plan.problem import Action, ActionKind, Problem
from planner.plan.stages import (
    MemoryProfile,
    actions_of,
    added_us,
    base_plan,
    latest,
    runs_of,
    stage_schedule,
)
from planner.search.evaluate import Evaluator
from planner.simulate.simulate import InvalidScheduleError, simulate
from tests.graphs import base_actions, decisions_for, problems


@settings(max_examples=75, deadline=None)
@given(data=st.data(), problem=problems())
def test_bytes_and_time_are_the_simulators(data, problem):
    actions = Evaluator(problem).schedule(data.draw(decisions_for(problem)))
    plan = stage_schedule(problem, actions)
    again = actions_of(problem, plan)
    assert stage_schedule(problem, again) == plan
    replay = simulate(problem, again)
    held = MemoryProfile(problem, plan)
    assert held.peak_bytes == replay.peak_bytes
    assert held.stage_peaks.max() == replay.peak_bytes
    added = replay.time_us - problem.base_duration_us
    assert np.isclose(added_us(problem, plan), added, rtol=1e-9, atol=1e-6)
    at_runs = [i for i, a in enumerate(again) if a.kind is ActionKind.RUN]
    assert held.live[1::2].tolist() == replay.live_bytes[at_runs].tolist()


@settings(max_examples=50, deadline=None)
@given(problem=problems())
def test_the_base_order_is_the_empty_plan(problem: Problem):
    assert stage_schedule(problem, base_actions(problem)) == base_plan()
    assert actions_of(problem, base_plan()) == base_actions(problem)
    assert runs_of(problem, base_plan()) == [(q, q) for q in range(len(problem.ops))]


def is_valid(problem: Problem, actions: list[Action]) -> bool:
    try:
        simulate(problem, actions)
    except InvalidScheduleError:
        return False
    return True


@settings(max_examples=60, deadline=None)
@given(data=st.data(), problem=problems())
def test_first_runs_out_of_base_order_are_put_there(data, problem):
    actions = Evaluator(problem).schedule(data.draw(decisions_for(problem)))
    for place in data.draw(st.lists(st.integers(0, max(0, len(actions) - 2)), max_size=60)):
        swapped = [*actions]
        swapped[place : place + 2] = reversed(swapped[place : place + 2])
        actions = swapped if is_valid(problem, swapped) else actions
    plan = stage_schedule(problem, actions)
    simulate(problem, actions_of(problem, plan))  # raises where it cannot be carried out
    again = [a.target for a in actions if a.kind is ActionKind.RUN]
    assert len(plan.reruns) <= len(again) - len(problem.ops)


@settings(max_examples=80, deadline=None)
@given(data=st.data(), problem=problems())
def test_later_runs_hold_no_more_and_take_as_long(data, problem):
    plan = stage_schedule(problem, Evaluator(problem).schedule(data.draw(decisions_for(problem))))
    later = latest(problem, plan)
    assert MemoryProfile(problem, later).peak_bytes <= MemoryProfile(problem, plan).peak_bytes
    assert added_us(problem, later) == added_us(problem, plan)
    assert latest(problem, later) == later


def test_the_excess_is_summed_over_stages():
    problem = _chain(sizes=(3, 5, 4))
    held = MemoryProfile(problem, base_plan())
    assert held.stage_peaks.tolist() == [3, 8, 9]
    assert held.excess(8) == 1
    assert held.excess(6) == 2 + 3


def _chain(sizes: tuple[int, ...]) -> Problem:
    from planner.plan.problem import PlanOp, PlanTensor

    count = len(sizes)
    return Problem(
        name="chain",
        ops=tuple(
            PlanOp(name=f"op{i}", duration_us=1.0, inputs=(i - 1,) if i else (), outputs=(i,))
            for i in range(count)
        ),
        tensors=tuple(
            PlanTensor(name=f"t{i}", bytes=size, producer=i, uses=(i + 1,) if i + 1 < count else ())
            for i, size in enumerate(sizes)
        ),
        fixed_bytes=0,
        capacity_bytes=1,
    )
