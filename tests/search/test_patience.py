"""The longer the wait, the more must be left to gain."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.portfolio.race import Entrant, race
from planner.portfolio.solve import solve
from planner.search.engine import run_engine
from planner.search.engines.simple import Greedy
from planner.search.state import SearchSettings, new_state
from planner.search.stop import NEVER, NotWorthTheWait, Patience
from planner.simulate.simulate import simulate
from tests.graphs import between, problems


def waited(seconds: float, per_s: float) -> Patience:
    return Patience(since=time.monotonic() - seconds, per_s=per_s)


def test_a_gain_is_worth_less_after_a_longer_wait():
    assert waited(1.0, 0.01).is_worth(20.0, 1000.0)
    assert not waited(10.0, 0.01).is_worth(20.0, 1000.0)
    assert not waited(0.0, 0.01).is_worth(0.0, 1000.0)


@settings(max_examples=40, deadline=None)
@given(problem=problems(swaps=False), share=st.floats(0.1, 0.9))
def test_a_search_ends_when_its_gap_is_not_worth_it(problem, share):
    state = new_state(between(problem, share))
    run_engine(Greedy(), state, NEVER)
    state.began = state.improved - 1e6  # it took long to come to this plan
    left_s = NotWorthTheWait(state, waited(0.0, 0.5), began=0.0).left_s
    if state.best is None or problem.base_duration_us == 0:
        assert left_s == float("inf")
    else:
        gap = (state.best.time_us - state.bound_us) / problem.base_duration_us
        assert left_s == pytest.approx(gap / 0.5, abs=0.05)


@settings(max_examples=40, deadline=None)
@given(problem=problems(swaps=False), share=st.floats(0.1, 0.9), took_s=st.floats(0, 100))
def test_a_search_that_finds_nothing_for_a_while_ends(problem, share, took_s):
    """After a tenth of what the gap is worth, or as long as it took to come to the best plan."""
    state = new_state(between(problem, share))
    run_engine(Greedy(), state, NEVER)
    if state.best is None or problem.base_duration_us == 0:
        return
    state.improved = time.monotonic()
    state.began = state.improved - took_s
    gap = (state.best.time_us - state.bound_us) / problem.base_duration_us
    idle_s = max(0.1 * gap / 0.01, took_s)
    left_s = NotWorthTheWait(state, waited(0.0, 0.01), began=0.0).left_s
    assert left_s == pytest.approx(min(gap / 0.01, idle_s), abs=0.05)
    # an engine whose turn began later has as long
    later = NotWorthTheWait(state, waited(0.0, 0.01), began=time.monotonic() + 3.0)
    assert later.left_s == pytest.approx(min(gap / 0.01, 3.0 + idle_s), abs=0.05)


@settings(max_examples=12, deadline=None)
@given(problem=problems(), share=st.floats(0, 1))
def test_no_patience_at_all_still_finds_what_fits(problem, share):
    """What is found in no time, the simple engines' plan, is taken; it is replayed."""
    tight = between(problem, share)
    hasty = solve(tight, SearchSettings(limit_s=5.0, patience=waited(100.0, 1.0)))
    patient = solve(tight, SearchSettings(limit_s=5.0))
    assert (hasty.candidate is None) <= (patient.candidate is None)
    if hasty.candidate is not None:
        replay = simulate(tight, hasty.candidate.actions)
        assert replay.peak_bytes <= tight.capacity_bytes
        assert patient.candidate is not None
        assert patient.candidate.time_us <= hasty.candidate.time_us * (1 + 1e-9)


@settings(max_examples=8, deadline=None)
@given(problem=problems(), share=st.floats(0.2, 0.8))
def test_a_hasty_race_has_a_winner_wherever_a_patient_one_has(problem, share):
    tight = between(problem, share)
    hasty = race([Entrant(problem=tight)] * 4, time_limit_s=4.0, patience=waited(100.0, 1.0))
    patient = race([Entrant(problem=tight)] * 4, time_limit_s=4.0)
    assert sorted(runner.index for runner in hasty) == [0, 1, 2, 3]
    assert hasty[0].rank[0] <= patient[0].rank[0]
