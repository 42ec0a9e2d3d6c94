"""The LP over instants's value and the one-operation peak bound hold for every plan."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.bound.instants import held_at, min_peak_bound
from planner.bound.lp import InstantLp
from planner.plan.decisions import Choice, Decisions
from planner.plan.problem import PlanOp, PlanTensor, Problem
from planner.search.evaluate import Evaluator
from planner.search.program.cutting_loop import round_solution
from planner.simulate.simulate import simulate
from tests.graphs import at_capacity, base_actions, between, decisions_for, problems

TOLERANCE = 1e-6


def all_instants(problem: Problem) -> InstantLp:
    model = InstantLp(problem)
    for p in range(len(problem.ops)):
        model.add(p)
    return model


@settings(max_examples=75, deadline=None)
@given(data=st.data(), problem=problems())
def test_no_plan_within_the_capacity_is_faster_than_the_bound(data, problem):
    replay = simulate(problem, Evaluator(problem).schedule(data.draw(decisions_for(problem))))
    solution = all_instants(at_capacity(problem, replay.peak_bytes)).solve(time_limit_s=30)
    assert solution is not None
    assert solution.feasible
    extra = replay.time_us - problem.base_duration_us
    assert solution.extra_us <= extra + TOLERANCE * problem.base_duration_us


@settings(max_examples=50, deadline=None)
@given(data=st.data(), problem=problems(swaps=False))
def test_the_bound_holds_without_swaps(data, problem):
    replay = simulate(problem, Evaluator(problem).schedule(data.draw(decisions_for(problem))))
    solution = all_instants(at_capacity(problem, replay.peak_bytes)).solve(time_limit_s=30)
    assert solution is not None
    assert solution.feasible
    extra = replay.time_us - problem.base_duration_us
    assert solution.extra_us <= extra + TOLERANCE * problem.base_duration_us


@settings(max_examples=75, deadline=None)
@given(data=st.data(), problem=problems())
def test_no_plan_peaks_below_the_one_operation_bound(data, problem):
    replay = simulate(problem, Evaluator(problem).schedule(data.draw(decisions_for(problem))))
    bound, where = min_peak_bound(problem)
    assert bound <= replay.peak_bytes
    assert bound == max(held_at(problem, p) for p in range(len(problem.ops)))
    assert bound == held_at(problem, where)


@settings(max_examples=60, deadline=None)
@given(problem=problems())
def test_below_the_one_operation_bound_the_lp_has_no_point(problem):
    bound, where = min_peak_bound(problem)
    model = InstantLp(at_capacity(problem, bound - 1))
    model.add(where)
    solution = model.solve(time_limit_s=30)
    assert solution is not None
    assert not solution.feasible


@settings(max_examples=40, deadline=None)
@given(problem=problems())
def test_nothing_has_to_be_added_at_the_base_peak(problem):
    peak = simulate(problem, base_actions(problem)).peak_bytes
    solution = all_instants(at_capacity(problem, peak)).solve(time_limit_s=30)
    assert solution is not None
    assert solution.feasible
    assert solution.extra_us <= TOLERANCE * problem.base_duration_us


@settings(max_examples=60, deadline=None)
@given(problem=problems(), share=st.floats(0, 1), threshold=st.sampled_from([0.1, 0.5, 0.9]))
def test_rounded_plans_are_valid(problem, share, threshold):
    tight = between(problem, share)
    model = all_instants(tight)
    solution = model.solve(time_limit_s=30)
    assert solution is not None
    assume(solution.feasible)
    decisions = round_solution(tight, model.instants, solution, threshold=threshold)
    simulate(tight, Evaluator(tight).schedule(decisions))  # raises where it is not


def late_reader(*, recomputable: bool = True) -> Problem:
    """a (10 bytes, 3 us) waits under b (30 bytes, 50 us) for the last operation."""
    ops = (
        PlanOp(name="f", duration_us=3.0, inputs=(), outputs=(0,), recomputable=recomputable),
        PlanOp(name="g", duration_us=50.0, inputs=(), outputs=(1,)),
        PlanOp(name="h", duration_us=50.0, inputs=(1,), outputs=(2,)),
        PlanOp(name="i", duration_us=50.0, inputs=(0, 2), outputs=(3,)),
    )
    tensors = (
        PlanTensor(name="a", bytes=10, producer=0, uses=(3,)),
        PlanTensor(name="b", bytes=30, producer=1, uses=(2,)),
        PlanTensor(name="c", bytes=1, producer=2, uses=(3,)),
        PlanTensor(name="d", bytes=1, producer=3, uses=(), to_end=True),
    )
    return Problem(
        name="late",
        ops=ops,
        tensors=tensors,
        fixed_bytes=0,
        capacity_bytes=31,
        swap_out_bytes_per_s=1e6,
        swap_in_bytes_per_s=1e6,
    )


def bound_of(problem: Problem) -> float:
    solution = all_instants(problem).solve(time_limit_s=30)
    assert solution is not None
    assert solution.feasible
    return solution.extra_us


def test_the_bound_is_tight_where_one_recompute_is_the_only_way():
    assert bound_of(late_reader()) == pytest.approx(3.0)


def test_the_bound_is_tight_where_one_swap_is_the_only_way():
    assert bound_of(late_reader(recomputable=False)) == pytest.approx(20.0)


def test_what_was_swapped_may_come_back_for_a_recompute_after_its_last_use():
    # noise may not run twice; its last reader in base order is op 2; f must run again for op 4
    ops = (
        PlanOp(name="noise", duration_us=1.0, inputs=(), outputs=(0,), recomputable=False),
        PlanOp(name="f", duration_us=1.0, inputs=(0,), outputs=(1,)),
        PlanOp(name="g", duration_us=1.0, inputs=(0,), outputs=(2,)),
        PlanOp(name="heavy", duration_us=9.0, inputs=(2,), outputs=(3,), workspace_bytes=99),
        PlanOp(name="last", duration_us=100.0, inputs=(1, 3), outputs=(4,)),
    )
    tensors = (
        PlanTensor(name="a", bytes=10, producer=0, uses=(1, 2)),
        PlanTensor(name="b", bytes=20, producer=1, uses=(4,), swappable=False),
        PlanTensor(name="c", bytes=1, producer=2, uses=(3,)),
        PlanTensor(name="d", bytes=1, producer=3, uses=(4,)),
        PlanTensor(name="e", bytes=1, producer=4, uses=(), to_end=True),
    )
    problem = Problem(
        name="noise",
        ops=ops,
        tensors=tensors,
        fixed_bytes=0,
        capacity_bytes=1000,
        swap_out_bytes_per_s=1e6,
        swap_in_bytes_per_s=1e6,
    )
    swapped = Decisions(gaps={(0, 1): Choice.SWAP, (1, 0): Choice.DROP})
    replay = simulate(problem, Evaluator(problem).schedule(swapped))
    solution = all_instants(at_capacity(problem, replay.peak_bytes)).solve(time_limit_s=30)
    assert solution is not None
    assert solution.feasible
    assert solution.extra_us <= replay.time_us - problem.base_duration_us + TOLERANCE
