"""The LP over instants by minimum cuts: a bound for every plan, and the value of the LP itself."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.bound.column_generation import ColumnGeneration
from planner.bound.lp import InstantLp
from planner.plan.problem import PlanOp, PlanTensor, Problem
from planner.search.evaluate import Evaluator
from planner.search.program.cutting_loop import round_solution
from planner.simulate.simulate import simulate
from tests.graphs import at_capacity, between, decisions_for, problems, there_and_back

TOLERANCE = 1e-6
"""Of the base duration: how near the prices come to the best ones."""


def all_instants(problem: Problem) -> ColumnGeneration:
    model = ColumnGeneration(problem)
    for p in range(len(problem.ops)):
        model.add(p)
    return model


def add_rows_of_earlier_instants(lp: InstantLp) -> None:
    """What runs again, or is needed, after an instant is so after each instant before it too."""
    needed: dict[tuple[int, int], int] = {}
    for (t, p), resident in lp.resident.items():
        tensor = lp.problem.tensors[t]
        if tensor.uses[-1] > p:
            continue  # needed there in any case
        needed[t, p] = lp.program.variable()
        again = lp.rerun.get((tensor.producer, p))
        back = [(resident, 1.0)] + ([(again, 1.0)] if again is not None else [])
        lp.program.at_least([*back, (needed[t, p], -1.0)], 0.0)
    for (m, p), rerun in lp.rerun.items():
        for t in lp.problem.ops[m].inputs:
            if (t, p) in needed:
                lp.program.at_least([(needed[t, p], 1.0), (rerun, -1.0)], 0.0)
    for variables in (lp.rerun, needed):
        for which, p in variables:
            sooner = max((q for w, q in variables if w == which and q < p), default=None)
            if sooner is not None:
                terms = [(variables[which, sooner], 1.0), (variables[which, p], -1.0)]
                lp.program.at_least(terms, 0.0)


@settings(max_examples=75, deadline=None)
@given(data=st.data(), problem=problems(swaps=False))
def test_no_plan_within_the_capacity_is_faster_than_the_bound(data, problem):
    replay = simulate(problem, Evaluator(problem).schedule(data.draw(decisions_for(problem))))
    solution = all_instants(at_capacity(problem, replay.peak_bytes)).solve(time_limit_s=30)
    assert solution is not None
    assert solution.feasible
    extra = replay.time_us - problem.base_duration_us
    assert solution.bound_us <= extra + 1e-9 * problem.base_duration_us


@settings(max_examples=50, deadline=None)
@given(problem=problems(swaps=False), share=st.floats(0, 1), op=st.integers(0, 50))
def test_with_one_cut_the_value_is_that_of_the_lp(problem, share, op):
    tight = between(problem, share)
    lp, flow = InstantLp(tight), ColumnGeneration(tight)
    for model in (lp, flow):
        model.add(op % len(problem.ops))
    expected, found = lp.solve(time_limit_s=30), flow.solve(time_limit_s=30)
    assert expected is not None
    assert found is not None
    assert found.feasible == expected.feasible
    if found.feasible:
        near = 5e-4 * expected.extra_us + 2 * TOLERANCE * problem.base_duration_us
        assert found.bound_us == pytest.approx(expected.extra_us, abs=near)
        assert sum(found.resident.values()) >= -TOLERANCE


@settings(max_examples=50, deadline=None)
@given(problem=problems(swaps=False), share=st.floats(0, 1))
def test_with_many_instants_the_value_is_that_of_the_lp(problem, share):
    tight = between(problem, share)
    lp, flow = InstantLp(tight), all_instants(tight)
    for p in range(len(problem.ops)):
        lp.add(p)
    before = lp.solve(time_limit_s=30)
    add_rows_of_earlier_instants(lp)
    expected, found = lp.solve(time_limit_s=30), flow.solve(time_limit_s=30)
    assert before is not None
    assert expected is not None
    if not expected.feasible:
        assert found is None or not found.feasible
        return
    assert found is not None
    assert found.feasible
    assert before.extra_us <= expected.extra_us + TOLERANCE * problem.base_duration_us
    near = 5e-4 * expected.extra_us + 2 * TOLERANCE * problem.base_duration_us
    assert found.bound_us == pytest.approx(expected.extra_us, abs=near)


@settings(max_examples=60, deadline=None)
@given(problem=problems(swaps=False), share=st.floats(0, 1))
def test_rounded_plans_are_valid(problem, share):
    tight = between(problem, share)
    model = all_instants(tight)
    solution = model.solve(time_limit_s=30)
    assume(solution is not None and solution.feasible)
    assert solution is not None
    decisions = round_solution(tight, model.instants, solution)
    simulate(tight, Evaluator(tight).schedule(decisions))  # raises where it is not


@settings(max_examples=50, deadline=None)
@given(data=st.data(), problem=problems(), slack=st.integers(0, 20))
def test_the_bound_holds_where_copies_run_beside_the_operations(data, problem, slack):
    steps = Evaluator(problem).schedule(data.draw(decisions_for(problem)))
    peak = simulate(problem, steps).peak_bytes
    tight = replace(at_capacity(problem, peak + slack), overlap=True)
    replay = simulate(tight, steps)  # copies wait for memory: it fits
    assert replay.peak_bytes <= tight.capacity_bytes
    solution = all_instants(tight).solve(time_limit_s=30)
    assert solution is not None
    assert solution.feasible
    extra = replay.time_us - problem.base_duration_us
    assert solution.bound_us <= extra + TOLERANCE * problem.base_duration_us


@settings(max_examples=60, deadline=None)
@given(problem=problems(), share=st.floats(0, 1), op=st.integers(0, 50))
def test_with_one_cut_and_copies_the_value_is_that_of_the_lp(problem, share, op):
    tight = replace(between(problem, share), overlap=True)
    lp, flow = InstantLp(tight), ColumnGeneration(tight)
    for model in (lp, flow):
        model.add(op % len(problem.ops))
    expected, found = lp.solve(time_limit_s=30), flow.solve(time_limit_s=30)
    assert expected is not None
    assert found is not None
    assert found.feasible == expected.feasible
    if found.feasible:
        near = 5e-4 * expected.extra_us + 2 * TOLERANCE * problem.base_duration_us
        assert found.bound_us == pytest.approx(expected.extra_us, abs=near)


def test_copies_that_add_to_the_step_are_refused():
    op = PlanOp(name="f", duration_us=1.0, inputs=(), outputs=(0,))
    tensor = PlanTensor(name="a", bytes=1, producer=0, uses=(), to_end=True)
    problem = Problem(
        name="copies",
        ops=(op,),
        tensors=(tensor,),
        fixed_bytes=0,
        capacity_bytes=1,
        swap_out_bytes_per_s=1.0,
        swap_in_bytes_per_s=1.0,
    )
    with pytest.raises(ValueError, match="copies that add to the step"):
        ColumnGeneration(problem)


@pytest.mark.parametrize("held", [11, 101, 1_000_001])
def test_a_plan_is_found_where_few_of_many_bytes_are_too_many(held: int) -> None:
    """One byte is saved by a rerun of a fourth of the step: 11 are held instead of 10, and so on."""
    names, sizes = "abd", (held - 1, held, 0)
    ops = (
        PlanOp(name="a", duration_us=1.0, inputs=(), outputs=(0,), recomputable=False),
        PlanOp(name="b", duration_us=1.0, inputs=(0,), outputs=(1,)),
        PlanOp(name="d", duration_us=1.0, inputs=(), outputs=(2,), workspace_bytes=held + 9),
        PlanOp(name="end", duration_us=1.0, inputs=(1, 2), outputs=()),
    )
    tensors = tuple(
        PlanTensor(name=name, bytes=size, producer=i, uses=uses)
        for i, (name, size, uses) in enumerate(zip(names, sizes, ((1,), (3,), (3,)), strict=True))
    )
    problem = Problem(
        name="tight",
        ops=ops,
        tensors=tensors,
        fixed_bytes=0,
        capacity_bytes=2 * held + 8,
        swap_out_bytes_per_s=0.0,
        swap_in_bytes_per_s=0.0,
    )
    expected = InstantLp(problem)
    for p in range(4):
        expected.add(p)
    for solution in (expected.solve(time_limit_s=30), all_instants(problem).solve(time_limit_s=30)):
        assert solution is not None
        assert solution.feasible
        assert solution.extra_us == pytest.approx(1.0)


def test_no_interrupt_is_lost_in_the_solver():
    """Code that native code calls may lose the exception that a signal's handler raises there."""
    problem = between(there_and_back(8).without_swaps(), 0.3)
    raised: list[int] = []

    def interrupted(number: int, _frame: object) -> None:
        raised.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupted)
    try:
        for k in range(100):
            raised.clear()
            signal.setitimer(signal.ITIMER_REAL, 0.002 + 1e-4 * k)
            with pytest.raises(KeyboardInterrupt):
                while not raised:
                    all_instants(problem).solve(time_limit_s=30)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
