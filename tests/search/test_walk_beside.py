"""A walk begun beside other engines: joined by the others, ended by a plan, never left running."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from planner.plan.problem import Problem
from planner.portfolio.solve import solve
from planner.portfolio.table import POLICY, Turn, When
from planner.search.engine import run_engine
from planner.search.engines.second_runs import AnnealRuns, BeginRuns, give_walk
from planner.search.second_runs import RunPolicy, anneal_second_runs, anneal_side_by_side
from planner.search.state import SearchSettings, SearchState, new_state
from planner.search.stop import NEVER, Until, after
from planner.search.walk_beside import FirstToFit, WalkBeside
from planner.simulate.simulate import candidate_of, simulate
from reports.solver.synthetic import irregular
from tests.graphs import between
from tests.pressing import ctrl_c_pressed

_LONG = RunPolicy(moves=10**9, patience=1.0)
_NEVER_FITS = replace(irregular(320), capacity_bytes=1)


def begun(problem: Problem, policy: RunPolicy, seed: int = 1) -> WalkBeside:
    def walk(stop, on_fit):
        return anneal_second_runs(problem, stop, seed=seed, policy=policy, on_fit=on_fit)

    return WalkBeside(walk, NEVER, NEVER)


def large(share: float, *, limit_s: float = 60.0) -> SearchState:
    """Too large for plans for little memory."""
    return new_state(between(irregular(320), share), SearchSettings(limit_s=limit_s, workers=2))


def test_what_was_begun_is_the_second_walk_and_the_first_comes_down_beside_it():
    problem = replace(irregular(40), capacity_bytes=1)
    policy = RunPolicy(moves=20)
    down = begun(problem, policy)
    walks = anneal_side_by_side(problem, NEVER, seeds=(0, 1), policy=policy, begun=down)
    second, hotter = down.result(), policy.after_another()
    assert walks == [
        anneal_second_runs(problem, NEVER, seed=2, policy=hotter),
        second,
        anneal_second_runs(problem, NEVER, start=second, seed=3, policy=hotter),
    ]
    assert second == anneal_second_runs(problem, NEVER, seed=1, policy=policy)


def test_once_what_was_begun_fits_the_first_walk_aims_at_the_capacity_at_once():
    problem = between(irregular(60), 0.8)
    policy = RunPolicy(moves=300)
    down = begun(problem, policy)
    fitted = down.result()
    assert down.fits
    walks = anneal_side_by_side(problem, NEVER, seeds=(0, 1), policy=policy, begun=down)
    assert walks == [anneal_second_runs(problem, NEVER, policy=policy.at_once()), fitted]


def test_of_several_walks_one_is_the_first_to_fit():
    first = FirstToFit()
    assert first.winner is None
    for number in (3, 1):
        first.tell(number)
    assert first.winner == 3


def test_the_walk_goes_on_beside_the_engines_that_follow_and_is_offered_in_the_end():
    state = large(0.8)
    run_engine(BeginRuns(), state, NEVER)
    assert state.walk is not None
    state.walk.result()
    assert state.walk.fits and state.best is None
    give_walk(state)
    assert state.walk is None and state.best is not None and state.engine == AnnealRuns.name
    replay = simulate(state.problem, state.best.actions)
    assert replay.peak_bytes <= state.problem.capacity_bytes


def test_a_walk_without_a_plan_ends_once_another_engine_has_one():
    state = large(0.2)
    plan = anneal_second_runs(state.problem, NEVER, policy=RunPolicy(moves=300))
    # far too hot, and down by a byte at a time
    hot = BeginRuns(moves=10**9, patience=1.0, down_hot=1e9, down_price=1e-9, step=1e-9)
    run_engine(hot, state, NEVER)
    walk = state.walk
    assert walk is not None
    state.offer(candidate_of(state.problem, plan), "another")
    walk.result()
    assert not walk.fits
    run_engine(AnnealRuns(moves=20), state, NEVER)  # of no use to it
    assert state.best is not None


def test_where_nothing_fits_all_walks_go_on_until_the_turn_of_the_first_is_over():
    over = threading.Event()
    state = large(0.0)
    begin, anneal = (engine(moves=10**9, patience=1.0) for engine in (BeginRuns, AnnealRuns))
    run_engine(begin, state, Until(over))
    threading.Timer(0.5, over.set).start()
    before = time.monotonic()
    run_engine(anneal, state, after(0.2))
    assert over.is_set() and time.monotonic() - before >= 0.4
    assert state.walk is None and state.least.peak_bytes < state.evaluator.base.peak_bytes


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_no_walk_outlives_a_search(error, monkeypatch):
    walks: list[WalkBeside] = []

    def run(engine: AnnealRuns, state: SearchState, stop) -> None:
        assert state.walk is not None
        walks.append(state.walk)
        if error is not None:
            raise error

    monkeypatch.setattr(AnnealRuns, "run", run)
    begin = BeginRuns(moves=10**9, patience=1.0)
    turns = (
        Turn(engine=begin, until=1.0, when=When.NOTHING_FITS),
        Turn(engine=AnnealRuns(), until=1.0),
    )
    policy = replace(POLICY, serial=turns, unmaking_sets=0)
    settings = SearchSettings(limit_s=600.0, workers=2)
    problem = large(0.05).problem
    if error is None:
        found = solve(problem, settings, policy=policy)
        assert [line.name for line in found.engines] == ["begin-runs", "anneal-runs"]
        assert [line.offers for line in found.engines] == [0, 1]
    else:
        with pytest.raises(error):
            solve(problem, settings, policy=policy)
    (walk,) = walks
    walk.result()  # it was told to end: no test may wait for all of its moves


@pytest.mark.parametrize("is_begun", [False, True])
def test_ctrl_c_ends_all_walks_at_once(is_begun):
    down = begun(_NEVER_FITS, _LONG) if is_begun else None
    with pytest.raises(KeyboardInterrupt), ctrl_c_pressed():
        anneal_side_by_side(_NEVER_FITS, NEVER, seeds=(0, 1), policy=_LONG, begun=down)


def test_ctrl_c_ends_a_plan_for_little_memory_at_once():
    state = new_state(
        replace(irregular(280), capacity_bytes=1), SearchSettings(limit_s=600.0, workers=2)
    )
    with pytest.raises(KeyboardInterrupt), ctrl_c_pressed():
        run_engine(AnnealRuns(moves=10**9, patience=2.0), state, NEVER)


def test_a_walk_that_is_waited_for_on_ctrl_c_can_still_be_told_to_end():
    state = large(0.8)
    run_engine(BeginRuns(moves=10**9, patience=1.0, share=1.0), state, NEVER)
    walk = state.walk
    assert walk is not None
    while not walk.fits:
        time.sleep(0.01)
    with pytest.raises(KeyboardInterrupt), ctrl_c_pressed():
        give_walk(state, until_it_ends=True)
    assert state.walk is walk
    walk.stop()
    walk.result()


def test_one_thread_begins_none():
    state = new_state(_NEVER_FITS, SearchSettings(limit_s=60.0, workers=1))
    run_engine(BeginRuns(), state, NEVER)
    assert state.walk is None


def test_small_problems_have_something_better():
    assert BeginRuns().supports(_NEVER_FITS)
    assert not BeginRuns().supports(irregular(60))


def test_a_walk_that_was_told_to_ends():
    walk = begun(_NEVER_FITS, _LONG)
    walk.stop()
    assert not walk.fits
    assert simulate(_NEVER_FITS, walk.result()).peak_bytes
