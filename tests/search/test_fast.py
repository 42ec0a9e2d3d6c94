"""The compiled replay agrees with the simulator, which shares no code with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.plan.decisions import Choice, Decisions
from planner.plan.problem import ActionKind, OpIndex, PlanOp, PlanTensor, Problem, TensorIndex
from planner.search.evaluate import Evaluator
from planner.search.fast.arrays import arrays_of, decisions_of, plan_of
from planner.search.fast.core import OVERFLOW, Core
from planner.simulate.simulate import simulate
from tests.graphs import at_capacity, decisions_for, problems


@settings(max_examples=75, deadline=None)
@given(data=st.data(), problem=problems())
def test_live_bytes_and_time_agree(data, problem):
    decoder = Evaluator(problem)
    steps = decoder.schedule(data.draw(decisions_for(problem)))
    replay = decoder.core.replay(len(steps))
    judged = simulate(problem, steps)
    assert decoder.core.steps.live[: len(steps)].tolist() == judged.live_bytes.tolist()
    assert (replay.peak_bytes, replay.copies) == (judged.peak_bytes, len(judged.copies))
    assert replay.time_us == pytest.approx(judged.time_us)


@settings(max_examples=75, deadline=None)
@given(data=st.data(), problem=problems())
def test_times_beside_the_operations_agree(data, problem):
    decisions = data.draw(decisions_for(problem))
    peak = simulate(problem, Evaluator(problem).schedule(decisions)).peak_bytes
    problem = replace(at_capacity(problem, peak + data.draw(st.integers(0, 20))), overlap=True)
    decoder = Evaluator(problem)
    core = decoder.core
    count = core.schedule(plan_of(core.arrays, decisions))
    just_in_time = core.replay(count, overlap=True).time_us
    judged = simulate(problem, decoder.actions(count))
    assert judged.timeline is not None
    assert core.steps.start[:count].tolist() == pytest.approx(judged.timeline.start_us)
    assert just_in_time == pytest.approx(judged.time_us)
    replay = core.place_and_time(count, data.draw(st.integers(2, 3)))
    peak, time_us = replay.peak_bytes, replay.time_us
    placed = decoder.actions(count)
    judged = simulate(problem, placed)
    assert (peak, time_us) == (judged.peak_bytes, pytest.approx(judged.time_us))
    # never slower for it, within the capacity, and the operations stay as they were
    assert time_us <= just_in_time * (1 + 1e-9)
    assert peak <= problem.capacity_bytes
    runs = [x for x in decoder.schedule(decisions) if x.kind is ActionKind.RUN]
    assert [x for x in placed if x.kind is ActionKind.RUN] == runs


@settings(max_examples=50, deadline=None)
@given(data=st.data(), problem=problems())
def test_decisions_survive_the_arrays(data, problem):
    decoder = Evaluator(problem)
    decisions = data.draw(decisions_for(problem))
    plan = plan_of(decoder.core.arrays, decisions)
    again = plan_of(decoder.core.arrays, decisions_of(decoder.core.arrays, plan))
    assert all(np.array_equal(x, y) for x, y in zip(plan, again, strict=True))


@settings(max_examples=50, deadline=None)
@given(data=st.data(), problem=problems())
def test_a_tensor_brought_back_early_is_there_from_then_on(data, problem):
    decisions = data.draw(decisions_for(problem))
    early = {}
    for (t, g), _ in decisions.gaps.items():
        events = (problem.tensors[t].producer, *problem.tensors[t].uses)
        early[t, g] = data.draw(st.integers(events[g] + 1, events[g + 1]))
    simulate(problem, Evaluator(problem).schedule(replace(decisions, early=early)))


def fan(width: int) -> Problem:
    """One operation makes `width` tensors, the last one reads them all."""
    tensors = [
        PlanTensor(name=f"t{i}", bytes=8, producer=OpIndex(0), uses=(OpIndex(2),))
        for i in range(width)
    ]
    everything = tuple(TensorIndex(i) for i in range(width))
    ops = [
        PlanOp(name="split", duration_us=1.0, inputs=(), outputs=everything),
        PlanOp(name="pause", duration_us=1.0, inputs=(), outputs=()),
        PlanOp(name="concat", duration_us=1.0, inputs=everything, outputs=()),
    ]
    return Problem(
        name="fan",
        ops=tuple(ops),
        tensors=tuple(tensors),
        fixed_bytes=0,
        capacity_bytes=1 << 20,
        swap_out_bytes_per_s=1e9,
        swap_in_bytes_per_s=1e9,
    )


@pytest.mark.parametrize("room", [220, 260, 300, 399, 410, 420, 700])
def test_copies_before_one_operation_never_leave_the_steps(room: int):
    """Thousands of them, as a Split into 3,000 parts has, once ran over their end."""
    width, beyond = 200, 1000
    a = arrays_of(fan(width))
    kind = np.full(room + beyond, 99, dtype=np.uint8)
    target = np.full(room + beyond, 99, dtype=np.int32)
    core = Core(a)
    core.use(core.steps._replace(kind=kind[:room], target=target[:room]))
    decisions = Decisions(gaps={(t, 0): Choice.SWAP for t in range(width)})
    count = core.schedule(plan_of(a, decisions))
    assert (kind[room:] == 99).all() and (target[room:] == 99).all()
    whole = 3 + 2 * width
    assert count in (OVERFLOW, whole)
    if room > whole + width + 16:
        assert count == whole


def test_a_plan_of_thousands_of_copies_is_carried_out():
    problem = fan(6000)
    decisions = Decisions(gaps={(t, 0): Choice.SWAP for t in range(6000)})
    decoder = Evaluator(problem)
    steps = decoder.schedule(decisions)
    assert simulate(problem, steps).swap_in_bytes == 8 * 6000
    replay = decoder.core.replay(len(steps))
    assert (replay.peak_bytes, replay.copies) == (8 * 6000, 12_000)
