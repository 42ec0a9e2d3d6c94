"""Copies beside the operations: times worked out by hand, and invariants read off the timeline."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.plan.candidate import Replay
from planner.plan.problem import Action, ActionKind, PlanOp, PlanTensor, Problem
from planner.search.evaluate import Evaluator
from planner.simulate.simulate import simulate
from tests.graphs import at_capacity, base_actions, decisions_for, problems
from tests.simulate.test_simulate import makes_of, reads_of

RUN, OUT, IN = ActionKind.RUN, ActionKind.SWAP_OUT, ActionKind.SWAP_IN


def chain(capacity: int = 1000) -> Problem:
    """a (10 bytes, 10 us out, 5 us in) is read at once and again at the end of five operations."""
    names = "abcde"
    tensors = tuple(
        PlanTensor(
            name=n, bytes=10, producer=i, uses=(1, 4) if i == 0 else (i + 1,) if i < 4 else ()
        )
        for i, n in enumerate(names)
    )
    ops = tuple(
        PlanOp(
            name=f"make_{n}",
            duration_us=4.0,
            inputs=() if i == 0 else (0, 3) if i == 4 else (i - 1,),
            outputs=(i,),
        )
        for i, n in enumerate(names)
    )
    return Problem(
        name="chain",
        ops=ops,
        tensors=tensors,
        fixed_bytes=0,
        capacity_bytes=capacity,
        swap_out_bytes_per_s=1e6,
        swap_in_bytes_per_s=2e6,
        overlap=True,
    )


def plan(*steps: tuple[ActionKind, int]) -> list[Action]:
    return [Action(kind=kind, target=target) for kind, target in steps]


def times(replay: Replay) -> list[tuple[float, float]]:
    assert replay.timeline is not None
    return list(zip(replay.timeline.start_us, replay.timeline.end_us, strict=True))


def test_a_copy_out_runs_beside_the_operations():
    steps = plan((RUN, 0), (OUT, 0), (RUN, 1), (RUN, 2), (RUN, 3), (IN, 0), (RUN, 4))
    replay = simulate(chain(), steps)
    # what comes back is listed behind operation 3, and starts once that is done
    assert times(replay) == [(0, 4), (4, 14), (4, 8), (8, 12), (12, 16), (16, 21), (21, 25)]
    assert (replay.time_us, replay.stall_us, replay.swap_us) == (25.0, 5.0, 15.0)


def test_a_copy_in_listed_early_hides():
    steps = plan((RUN, 0), (OUT, 0), (RUN, 1), (RUN, 2), (IN, 0), (RUN, 3), (RUN, 4))
    replay = simulate(chain(), steps)
    # what comes back has to be out first, at 14, and the operations wait for that
    assert times(replay)[4:6] == [(14, 19), (14, 18)]
    faster = replace(chain(), swap_out_bytes_per_s=1e7)
    assert simulate(faster, steps).time_us == 21.0


def test_memory_that_is_not_free_in_time_is_waited_for():
    # with 20 bytes, operation 2 waits for the copy out of a to be done
    steps = plan((RUN, 0), (OUT, 0), (RUN, 1), (RUN, 2), (RUN, 3), (IN, 0), (RUN, 4))
    tight = chain(capacity=30)
    assert simulate(tight, steps).live_bytes.tolist() == [10, 10, 20, 20, 20, 20, 30]
    assert times(simulate(chain(capacity=20), steps))[3] == (14, 18)
    assert times(simulate(tight, steps))[3] == (8, 12)


def test_a_copy_out_holds_back_a_write_over_its_tensor():
    problem = chain()
    over = PlanOp(name="over", duration_us=4.0, inputs=(0,), outputs=(1,), inplace=((0, 1),))
    tensors = (replace(problem.tensors[0], uses=(1,)), *problem.tensors[1:])
    last = replace(problem.ops[4], inputs=(3,))
    ops = (problem.ops[0], over, *problem.ops[2:4], last)
    problem = replace(problem, ops=ops, tensors=tensors)
    steps = plan((RUN, 0), (OUT, 0), (RUN, 1), (RUN, 2), (RUN, 3), (RUN, 4))
    assert times(simulate(problem, steps))[2] == (14, 18)


def test_without_copies_nothing_changes():
    problem = chain()
    assert simulate(problem, base_actions(problem)).time_us == problem.base_duration_us


# -- invariants, for any schedule ------------------------------------------------------------------


def usage(problem: Problem, steps: list[Action], replay: Replay) -> list[tuple[float, int]]:
    """(time, bytes in use from then on), from the timeline alone."""
    line = replay.timeline
    assert line is not None
    changes: list[tuple[float, int, int]] = []
    owner: dict[int, int] = {}
    readers: dict[tuple[int, int], list[int]] = {}
    for at, action in enumerate(steps):
        for t in reads_of(problem, action):
            readers[t, owner[t]].append(at)
        for t in makes_of(problem, action):
            owner[t] = at
            readers[t, at] = []
        if action.kind is RUN and problem.ops[action.target].workspace_bytes:
            size = problem.ops[action.target].workspace_bytes
            changes += [(line.start_us[at], 1, size), (line.end_us[at], 0, -size)]
    ends = {(t, birth): end for t, birth, end in replay.copies}
    firsts: set[int] = set()
    for (t, birth), at in readers.items():
        size = problem.tensors[t].bytes
        taken = line.issue_us[birth]
        stays = problem.tensors[t].to_end and t not in firsts
        firsts.add(t)
        changes.append((taken, 1, size))
        if stays:
            continue
        overwritten = bool(at) and ends[t, birth] == at[-1]
        done = line.start_us[at[-1]] if overwritten else max(line.end_us[i] for i in [birth, *at])
        changes.append((done, 0, -size))
    used, found = problem.fixed_bytes, []
    for when, _, change in sorted(changes):
        used += change
        found.append((when, used))
    return found


@settings(max_examples=75, deadline=None)
@given(data=st.data(), problem=problems())
def test_memory_in_use_never_exceeds_the_capacity_nor_an_engine_its_order(data, problem):
    problem = replace(problem, overlap=True)
    steps = Evaluator(problem).schedule(data.draw(decisions_for(problem)))
    steps = _earlier(data, steps)
    peak = simulate(problem, steps).peak_bytes
    tight = at_capacity(problem, peak + data.draw(st.integers(0, 5)))
    replay = simulate(tight, steps)
    assert max(used for _, used in usage(tight, steps, replay)) <= tight.capacity_bytes
    line = replay.timeline
    assert line is not None
    for kind in ActionKind:
        mine = [i for i, a in enumerate(steps) if a.kind is kind]
        for a, b in itertools.pairwise(mine):
            assert line.end_us[a] <= line.start_us[b] + 1e-9
    made: dict[int, int] = {}
    for at, action in enumerate(steps):
        for t in reads_of(problem, action):
            assert line.end_us[made[t]] <= line.start_us[at] + 1e-9
        for t in makes_of(problem, action):
            made[t] = at


@settings(max_examples=60, deadline=None)
@given(data=st.data(), problem=problems())
def test_overlap_is_never_slower_than_one_stream_nor_faster_than_an_engine(data, problem):
    steps = Evaluator(problem).schedule(data.draw(decisions_for(problem)))
    serial = simulate(problem, steps)
    tight = at_capacity(problem, serial.peak_bytes)
    beside = simulate(replace(tight, overlap=True), steps)
    assert beside.live_bytes.tolist() == serial.live_bytes.tolist()
    runs = sum(problem.ops[a.target].duration_us for a in steps if a.kind is RUN)
    assert beside.time_us <= serial.time_us + 1e-6
    assert beside.time_us >= runs - 1e-6
    assert beside.stall_us == pytest.approx(beside.time_us - runs)


def _earlier(data: st.DataObject, steps: list[Action]) -> list[Action]:
    """The same schedule with some copies in listed earlier, where that changes no reader."""
    steps = list(steps)
    for at, action in enumerate(steps):
        if action.kind is not IN:
            continue
        low = at
        while low and steps[low - 1].kind is RUN and data.draw(st.booleans()):
            low -= 1
        steps.insert(low, steps.pop(at))
    return steps
