"""The exact engine against all plans of tiny problems, and never worse than what it is given."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.exact.cp_sat import CpSat
from planner.exact.engine import BOUND_CLASS, Exact, solve_exact
from planner.exact.local_search import Watch
from planner.plan.candidate import Candidate
from planner.plan.decisions import Choice, Decisions, Gap
from planner.plan.problem import ActionKind, Problem
from planner.search.engine import run_engine
from planner.search.engines.simple import Greedy
from planner.search.evaluate import Evaluator
from planner.search.improve import Improver
from planner.search.state import SearchSettings, new_state
from planner.search.stop import after
from planner.simulate.simulate import simulate
from tests.graphs import at_capacity, decisions_for, problems, there_and_back
from tests.pressing import ctrl_c_pressed

ROUNDING = 1e-5
_MAX_PLANS = 2_000


def exact(problem: Problem, incumbent: Candidate) -> Exact:
    return solve_exact(problem, incumbent, SearchSettings(limit_s=20.0, seed=1))


def every_plan(problem: Problem) -> Iterator[Decisions]:
    """Keep, drop or swap in every gap."""
    options: list[list[tuple[Gap, Choice | None]]] = []
    for t, tensor in enumerate(problem.tensors):
        for gap in range(len(tensor.uses)):
            choices: list[Choice | None] = [None]
            if problem.allow_swap and tensor.swappable:
                choices.append(Choice.SWAP)
            if problem.ops[tensor.producer].recomputable and not tensor.to_end:
                choices.append(Choice.DROP)
            options.append([((t, gap), choice) for choice in choices])
    count = 1
    for choices in options:
        count *= len(choices)
    assume(count <= _MAX_PLANS)
    for plan in itertools.product(*options):
        yield Decisions(gaps={gap: choice for gap, choice in plan if choice is not None})


@settings(max_examples=20, deadline=None)
@given(problem=problems(max_ops=6), share=st.floats(0, 1))
def test_as_good_as_the_best_of_all_plans(problem, share):
    evaluator = Evaluator(problem)
    plans = [evaluator.evaluate(decisions) for decisions in every_plan(problem)]
    low = min(plan.peak_bytes for plan in plans)
    high = max(plan.peak_bytes for plan in plans)
    tight = at_capacity(problem, low + int(share * (high - low) / 2))
    fitting = [plan for plan in plans if plan.peak_bytes <= tight.capacity_bytes]
    slowest = max(fitting, key=lambda plan: plan.time_us)
    found = exact(tight, slowest)
    best = min(plan.time_us for plan in fitting)
    assert found.optimal
    assert found.candidate.time_us <= best * (1 + ROUNDING)
    assert found.candidate.peak_bytes <= tight.capacity_bytes


@settings(max_examples=20, deadline=None)
@given(data=st.data(), problem=problems())
def test_never_worse_than_the_incumbent_and_within_the_capacity(data, problem):
    evaluator = Evaluator(problem)
    incumbent = evaluator.evaluate(data.draw(decisions_for(problem)))
    tight = at_capacity(problem, incumbent.peak_bytes)
    found = exact(tight, incumbent)
    replay = simulate(tight, found.candidate.actions)
    assert replay.peak_bytes <= tight.capacity_bytes
    assert replay.time_us == found.candidate.time_us
    assert found.candidate.time_us <= incumbent.time_us * (1 + ROUNDING)
    assert found.bound_us <= found.candidate.time_us * (1 + ROUNDING)


@settings(max_examples=20, deadline=None)
@given(data=st.data(), problem=problems(swaps=False))
def test_what_is_forbidden_is_not_used(data, problem):
    evaluator = Evaluator(problem)
    incumbent = evaluator.evaluate(data.draw(decisions_for(problem)))
    tight = at_capacity(problem, incumbent.peak_bytes)
    actions = exact(tight, incumbent).candidate.actions
    assert all(a.kind is ActionKind.RUN for a in actions)


@settings(max_examples=20, deadline=None)
@given(data=st.data(), problem=problems())
def test_without_recompute_every_operation_runs_once(data, problem):
    only_swaps = replace(problem, allow_recompute=False)
    evaluator = Evaluator(only_swaps)
    incumbent = evaluator.evaluate(data.draw(decisions_for(only_swaps)))
    tight = at_capacity(only_swaps, incumbent.peak_bytes)
    runs = [a for a in exact(tight, incumbent).candidate.actions if a.kind is ActionKind.RUN]
    assert [a.target for a in runs] == list(range(len(problem.ops)))


@pytest.mark.parametrize("count", range(3, 9))
def test_a_start_that_does_not_fit_is_no_worse_than_one_that_does(count: int):
    problem = there_and_back(count).without_swaps()
    base = Evaluator(problem).base
    tight = at_capacity(problem, int(0.75 * base.peak_bytes))
    improver = Improver(Evaluator(tight))
    best = exact(tight, improver.repair(improver.evaluator.base))
    assert best.optimal
    best_us = best.candidate.time_us
    found = solve_exact(
        tight,
        improver.evaluator.base,
        SearchSettings(limit_s=20.0, seed=1),
        upper_us=2 * best_us,
        watch=Watch(bound_us=best_us * (1 - ROUNDING)),
    )
    assert found.candidate.time_us == pytest.approx(best_us)


def test_the_whole_is_solved_up_to_the_size_that_is_given():
    problem = there_and_back(5).without_swaps()
    tight = at_capacity(problem, int(0.75 * Evaluator(problem).base.peak_bytes))
    states = {}
    for engine in (CpSat(), CpSat(whole_ops=9), CpSat(whole_runs=1, at_once_runs=1)):
        state = new_state(tight, SearchSettings(limit_s=3.0, seed=1))
        run_engine(Greedy(), state, after(3.0))
        run_engine(engine, state, after(3.0))
        states[engine] = state
    whole, *parts = states.values()
    assert whole.bound_class == BOUND_CLASS
    assert whole.is_tight
    assert all(state.bound_class != BOUND_CLASS for state in parts)
    assert all(state.best.time_us >= whole.best.time_us * (1 - ROUNDING) for state in parts)


def test_ctrl_c_ends_the_search():
    problem = there_and_back(60)
    improver = Improver(Evaluator(problem))
    base = improver.evaluator.evaluate(Decisions())
    improver = Improver(Evaluator(at_capacity(problem, base.peak_bytes // 2)))
    incumbent = improver.repair(improver.evaluator.evaluate(Decisions()))
    assert improver.evaluator.fits(incumbent)
    with pytest.raises(KeyboardInterrupt), ctrl_c_pressed(0.5):
        solve_exact(improver.problem, incumbent, SearchSettings(limit_s=60.0))
