"""Any decisions give a valid schedule that does what they say."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.plan.decisions import Choice, Decisions
from planner.plan.problem import ActionKind, PlanOp, PlanTensor, Problem
from planner.search.evaluate import Evaluator
from planner.simulate.simulate import simulate
from tests.graphs import base_actions, decisions_for, problems

RUN, OUT, IN = ActionKind.RUN, ActionKind.SWAP_OUT, ActionKind.SWAP_IN


@settings(max_examples=50, deadline=None)
@given(data=st.data(), problem=problems())
def test_any_decisions_give_a_valid_schedule(data, problem):
    plan = Evaluator(problem).schedule(data.draw(decisions_for(problem)))
    simulate(problem, plan)  # raises where it is not


@settings(max_examples=50, deadline=None)
@given(data=st.data(), problem=problems())
def test_first_runs_come_in_base_order(data, problem):
    plan = Evaluator(problem).schedule(data.draw(decisions_for(problem)))
    firsts = list(dict.fromkeys(a.target for a in plan if a.kind is RUN))
    assert firsts == list(range(len(problem.ops)))


@settings(max_examples=50, deadline=None)
@given(problem=problems())
def test_keeping_everything_is_the_base_order(problem):
    assert Evaluator(problem).schedule(Decisions()) == base_actions(problem)


@settings(max_examples=50, deadline=None)
@given(data=st.data(), problem=problems())
def test_a_tensor_is_copied_out_at_most_once_and_only_where_swapped(data, problem):
    decisions = data.draw(decisions_for(problem))
    plan = Evaluator(problem).schedule(decisions)
    out = Counter(a.target for a in plan if a.kind is OUT)
    swapped = {
        t
        for (t, _), choice in decisions.gaps.items()
        if choice is Choice.SWAP and not problem.tensors[t].to_end  # outputs stay anyway
    }
    assert set(out) == swapped
    assert all(count == 1 for count in out.values())
    assert {a.target for a in plan if a.kind is IN} <= swapped


@settings(max_examples=50, deadline=None)
@given(data=st.data(), problem=problems())
def test_operations_that_may_not_run_twice_run_once(data, problem):
    plan = Evaluator(problem).schedule(data.draw(decisions_for(problem)))
    runs = Counter(a.target for a in plan if a.kind is RUN)
    assert all(runs[i] == 1 for i, op in enumerate(problem.ops) if not op.recomputable)


def chain_over_a_fixed_op() -> Problem:
    """0 (fixed) makes a; 1 makes b from a; 2 makes c from b; 3 reads b and c."""
    ops = (
        PlanOp(name="noise", duration_us=1.0, inputs=(), outputs=(0,), recomputable=False),
        PlanOp(name="f", duration_us=1.0, inputs=(0,), outputs=(1,)),
        PlanOp(name="g", duration_us=1.0, inputs=(1,), outputs=(2,)),
        PlanOp(name="h", duration_us=1.0, inputs=(1, 2), outputs=(3,)),
    )
    tensors = (
        PlanTensor(name="a", bytes=4, producer=0, uses=(1,)),
        PlanTensor(name="b", bytes=8, producer=1, uses=(2, 3)),
        PlanTensor(name="c", bytes=8, producer=2, uses=(3,)),
        PlanTensor(name="d", bytes=8, producer=3, uses=(), to_end=True),
    )
    return Problem(name="noise", ops=ops, tensors=tensors, fixed_bytes=0, capacity_bytes=100)


def test_what_a_recompute_reads_and_cannot_be_made_again_is_kept():
    problem = chain_over_a_fixed_op()
    plan = Evaluator(problem).schedule(Decisions(gaps={(1, 1): Choice.DROP}))
    assert [a.target for a in plan] == [0, 1, 2, 1, 3]
    # a waits for the second run of f: it is live to that run, and no longer
    assert simulate(problem, plan).live_bytes.tolist() == [4, 12, 20, 20, 24]


def test_dropping_runs_the_producer_again_just_before_the_reader():
    problem = chain_over_a_fixed_op()
    plan = Evaluator(problem).schedule(Decisions(gaps={(1, 1): Choice.DROP}, extended={0}))
    assert [a.target for a in plan] == [0, 1, 2, 1, 3]
