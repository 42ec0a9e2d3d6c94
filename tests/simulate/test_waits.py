"""Schedules with waits: nothing is fetched that was not copied out, and bytes and times hold."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.plan.problem import ActionKind
from planner.search.evaluate import Evaluator
from planner.simulate.simulate import InvalidScheduleError, simulate
from planner.simulate.waits import with_waits
from tests.graphs import at_capacity, decisions_for, problems
from tests.simulate.test_streams import chain, plan

RUN, OUT, IN, DONE = (
    ActionKind.RUN,
    ActionKind.SWAP_OUT,
    ActionKind.SWAP_IN,
    ActionKind.SWAP_OUT_DONE,
)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), problem=problems())
def test_a_schedule_with_waits_holds_no_more_and_takes_no_longer(data, problem):
    problem = replace(problem, overlap=True)
    decisions = data.draw(decisions_for(problem))
    actions = Evaluator(problem).evaluate(decisions).actions
    peak = simulate(problem, actions).peak_bytes
    tight = at_capacity(problem, peak + data.draw(st.integers(0, 5)))
    found = with_waits(tight, actions)
    replay = simulate(tight, found)
    assert replay.peak_bytes <= tight.capacity_bytes
    bare = [a for a in found if a.kind is not DONE]
    assert replay.time_us == pytest.approx(simulate(tight, bare).time_us)
    assert with_waits(tight, found) == found
    state: dict[int, str] = {}
    for action in found:
        if action.kind is RUN or problem.tensors[action.target].host_copy:
            continue
        before = {OUT: ("", "back"), DONE: ("out",), IN: ("there",)}[action.kind]
        assert state.get(action.target, "") in before
        state[action.target] = {OUT: "out", DONE: "there", IN: "back"}[action.kind]
    assert set(state.values()) <= {"back"}
    runs, listed = (Counter(a.target for a in of if a.kind is RUN) for of in (found, actions))
    assert runs == listed


def test_a_wait_stands_before_what_needs_its_memory():
    steps = plan((RUN, 0), (OUT, 0), (RUN, 1), (RUN, 2), (RUN, 3), (IN, 0), (RUN, 4))
    kinds = [a.kind for a in with_waits(chain(capacity=20), steps)]
    # with 20 bytes, operation 2 needs those of a; with all, the wait is free before operation 4
    assert kinds == [RUN, OUT, RUN, DONE, RUN, RUN, IN, RUN]
    kinds = [a.kind for a in with_waits(chain(), steps)]
    assert kinds == [RUN, OUT, RUN, RUN, RUN, DONE, IN, RUN]


def test_what_comes_back_twice_goes_out_twice():
    problem = chain()
    again = replace(problem.ops[3], inputs=(0, 2))
    tensors = (replace(problem.tensors[0], uses=(1, 3, 4)), *problem.tensors[1:])
    problem = replace(problem, ops=(*problem.ops[:3], again, problem.ops[4]), tensors=tensors)
    problem = replace(problem, overlap=True)
    steps = plan((RUN, 0), (OUT, 0), (RUN, 1), (RUN, 2), (IN, 0), (RUN, 3), (IN, 0), (RUN, 4))
    found = with_waits(problem, steps)
    kinds = [a.kind for a in found]
    assert kinds == [RUN, OUT, RUN, RUN, DONE, IN, RUN, OUT, DONE, IN, RUN]


def test_a_wait_for_nothing_is_refused():
    with pytest.raises(InvalidScheduleError, match="not on the host"):
        simulate(chain(), plan((RUN, 0), (DONE, 0)))
