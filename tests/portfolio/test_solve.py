"""The portfolio: within the capacity, never worse than the simple heuristic, the same each time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.bound.instants import min_peak_bound
from planner.plan.decisions import Decisions
from planner.plan.problem import PlanOp, PlanTensor, Problem
from planner.plan.solved import Solved
from planner.portfolio.min_peak import min_peak
from planner.portfolio.solve import solve
from planner.search.evaluate import Evaluator
from planner.search.improve import Improver
from planner.search.state import SearchSettings
from planner.simulate.simulate import simulate
from tests.graphs import at_capacity, base_actions, between, problems

FEW = settings(max_examples=25, deadline=None)
shares = st.floats(0, 1)


def base_peak(problem: Problem) -> int:
    return simulate(problem, base_actions(problem)).peak_bytes


def solved(problem: Problem, *, seed: int = 0, limit_s: float = 1.0) -> Solved:
    return solve(problem, SearchSettings(limit_s=limit_s, seed=seed))


@FEW
@given(problem=problems(), share=shares)
def test_a_plan_is_confirmed_by_the_simulator_and_fits(problem, share):
    problem = between(problem, share)
    found = solved(problem)
    for candidate in filter(None, (found.candidate, found.least)):
        replay = simulate(problem, candidate.actions)
        assert replay.peak_bytes == candidate.peak_bytes
        assert replay.time_us == candidate.time_us
    if found.candidate is None:
        assert found.least.peak_bytes > problem.capacity_bytes
    else:
        assert found.candidate.peak_bytes <= problem.capacity_bytes


@FEW
@given(problem=problems(), share=shares)
def test_never_worse_than_the_simple_heuristic(problem, share):
    problem = between(problem, share)
    improver = Improver(Evaluator(problem))
    simple = improver.prune(improver.repair(improver.evaluator.evaluate(Decisions())))
    found = solved(problem)
    if improver.evaluator.fits(simple):
        assert found.candidate is not None
        assert found.candidate.time_us <= simple.time_us


@FEW
@given(problem=problems(), share=shares)
def test_no_plan_is_faster_than_the_bound(problem, share):
    found = solved(between(problem, share))
    if found.candidate is not None:
        assert found.bound_us <= found.candidate.time_us * (1 + 1e-6)
        assert found.gap is not None
        assert found.gap >= 0


@FEW
@given(problem=problems())
def test_at_the_base_peak_nothing_is_added(problem):
    found = solved(at_capacity(problem, base_peak(problem)))
    assert found.candidate is not None
    assert found.candidate.actions == base_actions(problem)
    assert found.is_tight
    assert found.candidate.time_us == found.bound_us == problem.base_duration_us


@FEW
@given(problem=problems())
def test_below_the_bound_there_is_no_plan_but_a_least_one(problem):
    bound, _ = min_peak_bound(problem)
    found = solved(at_capacity(problem, bound - 1))
    assert found.candidate is None
    assert bound <= found.least.peak_bytes <= base_peak(problem)


@settings(max_examples=5, deadline=None)
@given(problem=problems(), share=shares)
def test_the_same_seed_gives_the_same_plan(problem, share):
    problem = between(problem, share)
    # the clock decides which rounds are the last: both have time for many
    first, second = (solved(problem, seed=7, limit_s=5.0) for _ in range(2))
    assert (first.candidate is None) == (second.candidate is None)
    assert first.least.actions == second.least.actions
    if first.candidate is not None and second.candidate is not None:
        assert first.candidate.actions == second.candidate.actions


@settings(max_examples=15, deadline=None)
@given(problem=problems())
def test_the_least_peak_lies_between_its_bound_and_the_base_peak(problem):
    best, bound = min_peak(problem, time_limit_s=5.0)
    one_op, _ = min_peak_bound(problem)
    assert one_op <= bound <= best.peak_bytes <= base_peak(problem)
    assert simulate(problem, best.actions).peak_bytes == best.peak_bytes


def test_an_operation_without_duration_is_no_obstacle(chain):
    free = replace(chain, ops=tuple(replace(op, duration_us=0.0) for op in chain.ops))
    said: list[str] = []
    problem = at_capacity(free, base_peak(free) - 1)
    found = solve(problem, SearchSettings(limit_s=5.0), progress=said.append)
    assert found.candidate is not None
    assert found.candidate.peak_bytes < base_peak(free)
    assert any(line.startswith("+0.0 µs time") for line in said), said


@pytest.fixture
def chain() -> Problem:
    """Five operations; the last reads what the first made, which waits over a large tensor."""
    ops = tuple(
        PlanOp(
            name=f"op{i}",
            duration_us=1.0,
            inputs=((i - 1,) if i else ()) + ((0,) if i == 4 else ()),
            outputs=(i,),
        )
        for i in range(5)
    )
    tensors = tuple(
        PlanTensor(
            name=f"t{i}",
            bytes=32 if i == 2 else 8,
            producer=i,
            uses=() if i == 4 else ((1, 4) if i == 0 else (i + 1,)),
            to_end=i == 4,
        )
        for i in range(5)
    )
    return Problem(name="chain", ops=ops, tensors=tensors, fixed_bytes=0, capacity_bytes=48)
