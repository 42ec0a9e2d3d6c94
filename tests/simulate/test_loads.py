"""Loads that begin early: nothing is read before it is there, bytes hold, and the step is no longer."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.plan.problem import ActionKind, Problem
from planner.search.evaluate import Evaluator
from planner.simulate.loads import begun_early
from planner.simulate.simulate import simulate
from planner.simulate.waits import with_waits
from tests.graphs import at_capacity, decisions_for, problems
from tests.simulate.test_streams import chain, plan

RUN = ActionKind.RUN


def loads_of(problem: Problem) -> set[int]:
    """Operations that could be copies of what lives on the host: they read nothing and are read."""
    found = set[int]()
    for i, op in enumerate(problem.ops):
        made = [problem.tensors[t] for t in op.outputs]
        if not op.inputs and made and all(t.uses and not t.to_end for t in made):
            found.add(i)
    return found


@settings(max_examples=80, deadline=None)
@given(data=st.data(), problem=problems())
def test_any_schedule_holds_no_more_and_takes_no_longer(data, problem):
    problem = replace(problem, overlap=True)
    tensors = (
        replace(t, swappable=False) if t.producer in loads_of(problem) else t
        for t in problem.tensors
    )
    problem = replace(problem, tensors=tuple(tensors))
    loads = loads_of(problem)
    actions = Evaluator(problem).evaluate(data.draw(decisions_for(problem))).actions
    before = simulate(problem, actions, loads)
    tight = at_capacity(problem, before.peak_bytes + data.draw(st.integers(0, 20)))
    found = begun_early(tight, actions, loads)
    after = simulate(tight, found, loads)
    assert after.peak_bytes <= tight.capacity_bytes
    assert after.time_us <= simulate(tight, actions, loads).time_us + 1e-9
    others = [a for a in actions if a.kind is not RUN or a.target not in loads]
    assert [a for a in found if a.kind is not RUN or a.target not in loads] == others
    ran, listed = (Counter(a.target for a in of if a.kind is RUN) for of in (found, actions))
    assert set(ran) == set(listed) and ran <= listed
    least_us = sum(
        problem.ops[op].duration_us * (n if op not in loads else 0) for op, n in ran.items()
    )
    assert after.time_us >= least_us - 1e-9
    waiting = with_waits(tight, found, loads)
    bare = [a for a in waiting if a.kind is not ActionKind.SWAP_OUT_DONE]
    timed = simulate(tight, waiting, loads)
    assert timed.time_us == pytest.approx(simulate(tight, bare, loads).time_us)
    assert simulate(tight, waiting, loads).peak_bytes <= tight.capacity_bytes


def test_a_load_hides_behind_the_operations_before_its_reader():
    problem, loads = loaded(capacity=100)
    steps = plan((RUN, 0), (RUN, 1), (RUN, 2), (RUN, 3), (RUN, 4))
    plain, early = (
        simulate(problem, steps, loads),
        simulate(problem, begun_early(problem, steps, loads), loads),
    )
    load_us = problem.ops[2].duration_us
    assert plain.time_us - early.time_us == pytest.approx(load_us)
    assert early.stall_us == pytest.approx(0.0) and plain.stall_us == pytest.approx(load_us)
    assert early.loads_us == load_us


def test_a_load_waits_where_there_is_no_room_for_it():
    steps = plan((RUN, 0), (RUN, 1), (RUN, 2), (RUN, 3), (RUN, 4))
    problem, loads = loaded(capacity=100)
    peak = simulate(problem, steps, loads).peak_bytes
    tight, loads = loaded(capacity=peak)
    assert simulate(tight, begun_early(tight, steps, loads), loads).peak_bytes <= peak


def loaded(capacity: int) -> tuple[Problem, set[int]]:
    """A chain whose third operation only copies in what the fourth reads."""
    problem = chain(capacity=capacity)
    ops = list(problem.ops)
    load = ops[2]
    made = load.outputs[0]
    tensors = list(problem.tensors)
    for t in load.inputs:
        tensors[t] = replace(tensors[t], uses=tuple(u for u in tensors[t].uses if u != 2) or (3,))
        if 3 in tensors[t].uses and t not in ops[3].inputs:
            ops[3] = replace(ops[3], inputs=(*ops[3].inputs, t))
    ops[2] = replace(load, inputs=(), inplace=())
    assert tensors[made].uses
    return replace(problem, ops=tuple(ops), tensors=tuple(tensors), overlap=True), {2}
