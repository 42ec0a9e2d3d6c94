"""Engines keep the protocol: what they offer is replayed, and what they prove holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.exact.cp_sat import CpSat
from planner.plan.problem import OpIndex, PlanOp, PlanTensor, Problem, TensorIndex
from planner.portfolio.table import POLICY
from planner.search.engine import Engine, run_engine
from planner.search.engines.simple import Greedy
from planner.search.state import NearBound, SearchSettings, WhenSettled, new_state
from planner.search.stop import NEVER, At, First, after
from planner.simulate.simulate import simulate
from tests.graphs import between, problems

_EASY = Problem(
    name="easy",
    ops=(PlanOp(name="op", duration_us=1.0, inputs=(), outputs=(TensorIndex(0),)),),
    tensors=(PlanTensor(name="t", bytes=8, producer=OpIndex(0), uses=()),),
    fixed_bytes=0,
    capacity_bytes=8,
    swap_out_bytes_per_s=1e6,
    swap_in_bytes_per_s=1e6,
)

ENGINES = {turn.engine.name: turn.engine for turn in (*POLICY.rough, *POLICY.serial, *POLICY.other)}


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
@settings(max_examples=15, deadline=None)
@given(problem=problems(), share=st.floats(0, 1))
def test_what_an_engine_leaves_behind_is_so(engine: Engine, problem: Problem, share: float):
    tight = between(problem, share)
    state = new_state(tight, SearchSettings(limit_s=0.5))
    run_engine(Greedy(), state, after(0.5))  # some engines start from a plan
    run_engine(engine, state, after(0.5))
    assert simulate(tight, state.least.actions).peak_bytes == state.least.peak_bytes
    assert not (state.is_impossible and state.best is not None)
    if state.best is not None:
        replay = simulate(tight, state.best.actions)
        assert replay.peak_bytes <= tight.capacity_bytes
        assert replay.time_us == state.best.time_us >= state.bound_us * (1 - 1e-9)
        assert state.engine in ENGINES
    told = {line.name: line for line in state.ledger.statistics()}
    assert engine.supports(tight) == (engine.name in told) or engine.name == "greedy"
    assert sum(line.improvements for line in told.values()) >= (state.best is not None)
    raised = sum(line.bound_raised_us for line in told.values())
    assert raised == pytest.approx(state.bound_extra_us)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
@settings(max_examples=5, deadline=None)
@given(problem=problems())
def test_an_engine_that_is_stopped_before_it_begins_finds_little(engine: Engine, problem: Problem):
    state = new_state(between(problem, 0.5), SearchSettings(limit_s=0.0))
    run_engine(engine, state, At(0.0))
    assert state.best is None or state.evaluator.fits(state.best)


def test_the_first_criterion_ends_a_search():
    assert First((after(5.0), after(50.0))).left_s == pytest.approx(5.0, abs=0.5)
    assert First((NEVER, At(0.0))).left_s < 0
    state = new_state(_EASY)
    assert WhenSettled(state).left_s == float("inf")
    assert NearBound(state, 3.0).left_s == float("inf")
    state.offer(state.evaluator.base, "order")  # fits, and the bound is that it adds nothing
    assert WhenSettled(state).left_s == 0.0
    assert NearBound(state, 3.0).left_s == pytest.approx(3.0, abs=0.5)


def test_a_question_changes_nothing():
    state = new_state(_EASY)
    before = (state.best, state.bound_extra_us, state.near_since, state.ledger.statistics())
    _ = (state.is_tight, state.is_settled, state.is_within(0.5), WhenSettled(state).left_s)
    assert (state.best, state.bound_extra_us, state.near_since, state.ledger.statistics()) == before


def test_the_exact_engine_leaves_overlap_to_others():
    assert CpSat().supports(_EASY)
    assert not CpSat().supports(replace(_EASY, overlap=True))
