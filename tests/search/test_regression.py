"""Planned from the end: what is found fits, and on tiny graphs it is found where there is any."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.plan.problem import Problem
from planner.search.engine import run_engine
from planner.search.engines.second_runs import Regress
from planner.search.regression import Regression, RegressionPolicy
from planner.search.state import new_state
from planner.search.stop import NEVER, At
from planner.simulate.simulate import simulate
from reports.solver.synthetic import irregular
from tests.graphs import between, problems


@settings(max_examples=60, deadline=None)
@given(problem=problems(), share=st.floats(0.0, 1.0))
def test_what_is_found_fits_and_first_runs_in_base_order(problem, share):
    problem = between(problem.without_swaps(), share)
    found = Regression(problem).actions()
    if found is None:
        return
    assert simulate(problem, found).peak_bytes <= problem.capacity_bytes
    first = list(dict.fromkeys(action.target for action in found))
    assert first == list(range(len(problem.ops)))


def is_possible(problem: Problem) -> bool:
    """Whether any order of runs makes everything, by all sets that may ever be on the device."""
    size = [problem.tensors[op.outputs[0]].bytes for op in problem.ops]
    reads = [frozenset(problem.tensors[t].producer for t in op.inputs) for op in problem.ops]
    seen = {frozenset[int]()}
    made: set[int] = set()
    stack = list(seen)
    while stack:
        there = stack.pop()
        after = [there - {m} for m in there]
        for m, read in enumerate(reads):
            if read <= there and sum(size[k] for k in there | {m}) <= problem.capacity_bytes:
                made.add(m)
                after.append(there | {m})
        stack += set(after) - seen
        seen.update(after)
    return len(made) == len(size)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.2, 0.4])
@pytest.mark.parametrize("seed", range(6))
def test_on_tiny_graphs_a_plan_is_found_where_there_is_any(seed, share):
    problem = between(irregular(9, seed=seed), share)
    possible = is_possible(problem)
    for weights in ((10.0,), ()):  # with no weights, all is made from nothing
        policy = RegressionPolicy(weights=weights, max_sets=1 << 12)
        found = Regression(problem, policy).actions()
        assert (found is not None) == possible


def test_the_engine_offers_what_it_finds_and_what_annealing_makes_of_it():
    problem = between(irregular(40), 0.2)
    state = new_state(problem)
    run_engine(Regress(moves=200), state, NEVER)
    assert state.best is not None
    assert state.engine == "regression"
    (line,) = state.ledger.statistics()
    assert line.offers == 1
    plain = simulate(problem, Regression(problem).actions() or ())
    assert state.best.time_us <= plain.time_us


def test_a_search_that_is_over_finds_nothing():
    assert Regression(between(irregular(40), 0.2), stop=At(0.0)).actions() is None


def test_where_nothing_may_run_again_there_is_nothing_to_plan():
    problem = between(irregular(20), 0.9)
    assert Regression(replace(problem, allow_recompute=False)).actions() is None
