"""The simulator against peaks worked out by hand, and against a second, slower reckoning."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.plan.problem import Action, ActionKind, PlanOp, PlanTensor, Problem
from planner.search.evaluate import Evaluator
from planner.simulate.simulate import InvalidScheduleError, simulate
from tests.graphs import base_actions, decisions_for, problems

RUN, OUT, IN = ActionKind.RUN, ActionKind.SWAP_OUT, ActionKind.SWAP_IN


def there_and_back(**changes) -> Problem:
    """a -> b -> c -> d, and d reads a again. a, c: 10 bytes; b: 30; d: 1."""
    tensors = [
        PlanTensor(name="a", bytes=10, producer=0, uses=(1, 3)),
        PlanTensor(name="b", bytes=30, producer=1, uses=(2,)),
        PlanTensor(name="c", bytes=10, producer=2, uses=(3,)),
        PlanTensor(name="d", bytes=1, producer=3, uses=(), to_end=True),
    ]
    ops = [
        PlanOp(name="make_a", duration_us=1.0, inputs=(), outputs=(0,)),
        PlanOp(name="make_b", duration_us=2.0, inputs=(0,), outputs=(1,)),
        PlanOp(name="make_c", duration_us=4.0, inputs=(1,), outputs=(2,)),
        PlanOp(name="make_d", duration_us=8.0, inputs=(0, 2), outputs=(3,)),
    ]
    for index, op in changes.pop("ops", {}).items():
        ops[index] = op
    for index, tensor in changes.pop("tensors", {}).items():
        tensors[index] = tensor
    return Problem(
        name="there and back",
        ops=tuple(ops),
        tensors=tuple(tensors),
        fixed_bytes=100,
        capacity_bytes=1000,
        swap_out_bytes_per_s=1e6,
        swap_in_bytes_per_s=2e6,
    )


def actions(*steps: tuple[ActionKind, int]) -> list[Action]:
    return [Action(kind=kind, target=target) for kind, target in steps]


def test_keeping_everything():
    replay = simulate(there_and_back(), base_actions(there_and_back()))
    assert replay.live_bytes.tolist() == [110, 140, 150, 121]
    assert (replay.peak_bytes, replay.peak_action) == (150, 2)
    assert replay.time_us == 15.0
    assert replay.recomputed_ops == replay.swap_out_bytes == replay.swap_in_bytes == 0
    assert replay.copies == ((0, 0, 4), (1, 1, 3), (2, 2, 4), (3, 3, 4))


def test_a_recomputed_tensor_is_gone_in_the_gap():
    plan = actions((RUN, 0), (RUN, 1), (RUN, 2), (RUN, 0), (RUN, 3))
    replay = simulate(there_and_back(), plan)
    assert replay.live_bytes.tolist() == [110, 140, 140, 120, 121]
    assert replay.time_us == 16.0
    assert (replay.recomputed_ops, replay.recompute_us, replay.recomputed_bytes) == (1, 1.0, 10)


def test_a_swapped_tensor_is_gone_between_its_copies():
    plan = actions((RUN, 0), (RUN, 1), (OUT, 0), (RUN, 2), (IN, 0), (RUN, 3))
    replay = simulate(there_and_back(), plan)
    assert replay.live_bytes.tolist() == [110, 140, 140, 140, 120, 121]
    assert (replay.swap_out_bytes, replay.swap_in_bytes) == (10, 10)
    assert replay.swap_us == pytest.approx(10 + 5)
    assert replay.time_us == pytest.approx(15 + 15)


def test_one_copy_on_the_host_serves_many_reads():
    plan = actions((RUN, 0), (OUT, 0), (IN, 0), (RUN, 1), (RUN, 2), (IN, 0), (RUN, 3))
    replay = simulate(there_and_back(), plan)
    assert replay.live_bytes.tolist() == [110, 110, 110, 140, 140, 120, 121]
    assert (replay.swap_out_bytes, replay.swap_in_bytes) == (10, 20)


def test_an_output_written_in_place_takes_its_input_s_buffer():
    relu = PlanOp(name="relu", duration_us=8.0, inputs=(0, 2), outputs=(3,), inplace=((2, 3),))
    same_size = PlanTensor(name="d", bytes=10, producer=3, uses=(), to_end=True)
    problem = there_and_back(ops={3: relu}, tensors={3: same_size})
    assert simulate(problem, base_actions(problem)).live_bytes.tolist() == [110, 140, 150, 120]


def test_an_input_that_is_read_later_is_not_written_over():
    in_place = PlanOp(name="make_b", duration_us=2.0, inputs=(0,), outputs=(1,), inplace=((0, 1),))
    problem = there_and_back(ops={1: in_place})
    assert simulate(problem, base_actions(problem)).live_bytes.tolist() == [110, 140, 150, 121]
    # with a made again for its second reader, the first copy may be written over
    plan = actions((RUN, 0), (RUN, 1), (RUN, 2), (RUN, 0), (RUN, 3))
    assert simulate(problem, plan).live_bytes.tolist() == [110, 130, 140, 120, 121]


def test_only_one_input_gives_its_buffer_to_an_output():
    both = PlanOp(
        name="both", duration_us=8.0, inputs=(0, 2), outputs=(3,), inplace=((0, 3), (2, 3))
    )
    same_size = PlanTensor(name="d", bytes=10, producer=3, uses=(), to_end=True)
    problem = there_and_back(ops={3: both}, tensors={3: same_size})
    assert simulate(problem, base_actions(problem)).live_bytes.tolist() == [110, 140, 150, 120]


def test_a_graph_output_stays_to_the_end():
    b = PlanTensor(name="b", bytes=30, producer=1, uses=(2,), to_end=True)
    problem = there_and_back(tensors={1: b})
    assert simulate(problem, base_actions(problem)).live_bytes.tolist() == [110, 140, 150, 151]


def test_a_second_copy_of_a_graph_output_goes_after_its_last_reader():
    a = PlanTensor(name="a", bytes=10, producer=0, uses=(1, 3), to_end=True)
    problem = there_and_back(tensors={0: a})
    plan = actions((RUN, 0), (RUN, 0), (RUN, 1), (RUN, 2), (RUN, 3))
    assert simulate(problem, plan).live_bytes.tolist() == [110, 120, 150, 160, 131]
    plan = actions((RUN, 0), (RUN, 1), (RUN, 0), (RUN, 2), (RUN, 3), (RUN, 0))
    assert simulate(problem, plan).live_bytes.tolist() == [110, 140, 150, 160, 131, 121]


def test_a_second_copy_of_a_graph_output_may_be_written_over_at_the_last_step():
    a = PlanTensor(name="a", bytes=10, producer=0, uses=(1, 3), to_end=True)
    d = PlanTensor(name="d", bytes=10, producer=3, uses=(), to_end=True)
    last = PlanOp(name="last", duration_us=8.0, inputs=(0, 2), outputs=(3,), inplace=((0, 3),))
    problem = there_and_back(ops={3: last}, tensors={0: a, 3: d})
    plan = actions((RUN, 0), (RUN, 1), (RUN, 2), (RUN, 0), (RUN, 3))
    assert simulate(problem, plan).live_bytes.tolist() == [110, 140, 150, 130, 130]


def test_workspace_counts_at_its_own_action_only():
    heavy = PlanOp(name="heavy", duration_us=4.0, inputs=(1,), outputs=(2,), workspace_bytes=7)
    problem = there_and_back(ops={2: heavy})
    assert simulate(problem, base_actions(problem)).live_bytes.tolist() == [110, 140, 157, 121]


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([(RUN, 1)], "action 0 (make_b) reads 'a', not on the device"),
        ([(RUN, 0), (RUN, 2)], "action 1 (make_c) reads 'b', not on the device"),
        ([(OUT, 0)], "action 0 (swap-out of a) reads 'a', not on the device"),
        ([(RUN, 0), (IN, 0)], "action 1 swaps in 'a', not on the host"),
        ([(RUN, 0), (RUN, 1), (RUN, 2)], "operation 'make_d' never runs"),
        ([], "operation 'make_a' never runs"),
    ],
)
def test_an_impossible_schedule_is_refused_by_name(steps, message):
    with pytest.raises(InvalidScheduleError, match=re.escape(message)):
        simulate(there_and_back(), actions(*steps))


def test_an_operation_that_may_not_run_twice_is_refused_by_name():
    once = PlanOp(name="dropout", duration_us=1.0, inputs=(), outputs=(0,), recomputable=False)
    plan = actions((RUN, 0), (RUN, 1), (RUN, 2), (RUN, 0), (RUN, 3))
    with pytest.raises(InvalidScheduleError, match="action 3 runs 'dropout' again"):
        simulate(there_and_back(ops={0: once}), plan)


# -- the second reckoning ------------------------------------------------------------------------


def reads_of(problem: Problem, action: Action) -> tuple[int, ...]:
    if action.kind is RUN:
        return problem.ops[action.target].inputs
    return (action.target,) if action.kind is OUT else ()


def makes_of(problem: Problem, action: Action) -> tuple[int, ...]:
    if action.kind is RUN:
        return problem.ops[action.target].outputs
    return (action.target,) if action.kind is IN else ()


def is_written_over(problem: Problem, action: Action, tensor: int) -> bool:
    """Whether `action` may write an output over `tensor`: the first such pair of that output."""
    if action.kind is not RUN:
        return False
    pairs = problem.ops[action.target].inplace
    return any(
        source == tensor and all(t != target for _, t in pairs[:i])
        for i, (source, target) in enumerate(pairs)
    )


def live_by_scanning(problem: Problem, plan: list[Action]) -> list[int]:
    """Live bytes at each action: copies are (tensor, action that made them), found by looking."""
    made = [(t, at) for at, action in enumerate(plan) for t in makes_of(problem, action)]

    def read_at(step: int) -> set[tuple[int, int]]:
        return {
            max((c for c in made if c[0] == t and c[1] < step), key=lambda c: c[1])
            for t in reads_of(problem, plan[step])
        }

    readers = {c: [s for s in range(len(plan)) if c in read_at(s)] for c in made}
    firsts = {t: min(at for u, at in made if u == t) for t, _ in made}

    def is_live(copy: tuple[int, int], step: int) -> bool:
        tensor, birth = copy
        if step < birth:
            return False
        if problem.tensors[tensor].to_end and birth == firsts[tensor]:
            return True
        last = max([birth, *readers[copy]])
        if step == last > birth:
            return not is_written_over(problem, plan[step], tensor)
        return step <= last

    found = []
    for step, action in enumerate(plan):
        size = problem.fixed_bytes
        size += sum(problem.tensors[c[0]].bytes for c in made if is_live(c, step))
        if action.kind is RUN:
            size += problem.ops[action.target].workspace_bytes
        found.append(size)
    return found


@settings(max_examples=75, deadline=None)
@given(data=st.data(), problem=problems())
def test_live_bytes_equal_those_of_a_scan(data, problem):
    plan = Evaluator(problem).schedule(data.draw(decisions_for(problem)))
    replay = simulate(problem, plan)
    assert replay.live_bytes.tolist() == live_by_scanning(problem, plan)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), problem=problems())
def test_times_and_copied_bytes_are_sums_over_the_actions(data, problem):
    plan = Evaluator(problem).schedule(data.draw(decisions_for(problem)))
    replay = simulate(problem, plan)
    runs = [problem.ops[a.target] for a in plan if a.kind is RUN]
    outs = [problem.tensors[a.target] for a in plan if a.kind is OUT]
    out = sum(t.bytes for t in outs if not t.host_copy)
    into = sum(problem.tensors[a.target].bytes for a in plan if a.kind is IN)
    swap_us = out / problem.swap_out_bytes_per_s * 1e6 + into / problem.swap_in_bytes_per_s * 1e6
    assert (replay.swap_out_bytes, replay.swap_in_bytes) == (out, into)
    assert replay.swap_us == pytest.approx(swap_us)
    assert replay.time_us == pytest.approx(sum(op.duration_us for op in runs) + swap_us)
    assert replay.recompute_us == pytest.approx(
        sum(op.duration_us for op in runs) - problem.base_duration_us
    )
    assert replay.recomputed_ops == len(runs) - len(problem.ops)
