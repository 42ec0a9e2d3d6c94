"""Second runs, changed one by one: the bytes kept up to date are those that the simulator counts."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.plan.problem import Problem
from planner.plan.stages import StageSchedule, actions_of
from planner.processes.compiled import Compilation
from planner.search.engine import run_engine
from planner.search.engines import second_runs as engines
from planner.search.fast.second_runs import (
    Runs,
    actions_of_keys,
    base_runs,
    change,
    graph_of,
)
from planner.search.second_runs import RunPolicy, anneal_second_runs, anneal_side_by_side
from planner.search.state import SearchSettings, new_state
from planner.search.stop import NEVER, At, after
from planner.simulate.simulate import simulate
from reports.solver.build import Builder
from reports.solver.synthetic import irregular
from tests.graphs import base_actions, between, problems

_RUN = st.tuples(st.integers(0, 40), st.integers(0, 11))


def figures(runs: Runs) -> tuple[object, ...]:
    """All of a schedule, without the room behind it."""
    count = int(runs.total[0])
    lists = [runs.key[:count], runs.live[:count], runs.gap[:count], runs.times]
    when = [runs.when[m, :k].tolist() for m, k in enumerate(runs.times)]
    return (*(x.tolist() for x in lists), when, int(runs.over[0]), round(float(runs.time[0]), 6))


@settings(max_examples=60, deadline=None)
@given(
    problem=problems(),
    passes=st.integers(1, 3),
    share=st.floats(0.0, 1.0),
    drawn=st.lists(_RUN, max_size=40),
)
def test_every_set_of_second_runs_is_a_schedule_with_these_bytes(problem, passes, share, drawn):
    problem = between(problem.without_swaps(), share)
    ops = len(problem.ops)
    graph = graph_of(problem, passes=passes)
    runs = base_runs(problem, graph, max_runs=4 * ops, max_times=4)
    for when, m in drawn:
        change(graph, runs, when, m % ops)
    count = int(runs.total[0])
    replay = simulate(problem, actions_of_keys(problem, runs.key[:count]))
    assert replay.live_bytes.tolist() == runs.live[:count].tolist()
    assert replay.time_us == pytest.approx(runs.time[0])
    over = np.maximum(replay.live_bytes - problem.capacity_bytes, 0).sum()
    assert over == runs.over[0]
    assert sorted(runs.key[:count].tolist()) == runs.key[:count].tolist()


@settings(max_examples=30, deadline=None)
@given(problem=problems(), passes=st.integers(1, 3), drawn=st.lists(_RUN, max_size=20, unique=True))
def test_changes_taken_back_leave_nothing(problem, passes, drawn):
    problem = between(problem.without_swaps(), 0.5)
    ops = len(problem.ops)
    graph = graph_of(problem, passes=passes)
    runs = base_runs(problem, graph, max_runs=2 * ops, max_times=3)
    before = figures(runs)
    done = [(when, m % ops) for when, m in drawn if change(graph, runs, when, m % ops)]
    for when, m in reversed(done):
        assert change(graph, runs, when, m)
    assert figures(runs) == before


@settings(max_examples=20, deadline=None)
@given(problem=problems(), share=st.floats(0.0, 1.0), seed=st.integers(0, 3))
def test_annealing_ends_no_farther_from_the_capacity_than_it_began(problem, share, seed):
    problem = between(problem.without_swaps(), share)
    policy = RunPolicy(moves=50, slice_moves=100, passes=1 + seed % 2).at_once()
    found = anneal_second_runs(problem, NEVER, seed=seed, policy=policy)
    replay = simulate(problem, found)
    over = [
        int(np.maximum(r.live_bytes - problem.capacity_bytes, 0).sum())
        for r in (replay, simulate(problem, base_actions(problem)))
    ]
    assert over[0] <= over[1]
    again = anneal_second_runs(problem, NEVER, start=found, seed=seed, policy=policy)
    if not over[0] and policy.passes == 1:
        after = simulate(problem, again)
        assert after.peak_bytes <= problem.capacity_bytes
        assert after.time_us <= replay.time_us * (1 + 1e-9)


@settings(max_examples=20, deadline=None)
@given(problem=problems(), share=st.floats(0.0, 1.0), seed=st.integers(0, 3))
def test_a_walk_that_comes_down_step_by_step_ends_no_higher_than_it_began(problem, share, seed):
    problem = between(problem.without_swaps(), share)
    policy = RunPolicy(moves=50, slice_moves=100, passes=1 + seed % 2)
    found = anneal_second_runs(problem, NEVER, seed=seed, policy=policy)
    peak_bytes = simulate(problem, base_actions(problem)).peak_bytes
    assert simulate(problem, found).peak_bytes <= peak_bytes


def wide(operations: int) -> Problem:
    """A random graph in which far more is read across each operation than by it."""
    draw = random.Random(0)
    reads = [
        {max(0, i - 1 - int(draw.random() ** 2 * min(i, operations // 2))) for _ in range(3)} - {i}
        for i in range(operations)
    ]
    builder = Builder()
    for i, read in enumerate(reads):
        builder.op(f"op{i}", draw.randint(1, 9), sorted(read), [draw.randint(1, 20) * 64])
    return builder.problem("wide").without_swaps()


def least_us(problem: Problem) -> float:
    """The least time of any set of second runs that fits, by trying them all; infinite for none."""
    runs = [
        (q, m)
        for m, op in enumerate(problem.ops)
        if op.recomputable and not any(problem.tensors[t].to_end for t in op.outputs)
        for q in range(m + 1, len(problem.ops))
    ]
    best = float("inf")
    for size in range(5):
        for chosen in itertools.combinations(runs, size):
            plan = StageSchedule(reruns=frozenset(chosen), back=frozenset())
            replay = simulate(problem, actions_of(problem, plan))
            if replay.peak_bytes <= problem.capacity_bytes:
                best = min(best, replay.time_us)
    return best


@pytest.mark.parametrize("seed", range(6))
def test_on_tiny_graphs_annealing_finds_the_least(seed):
    problem = between(irregular(6, seed=seed), 0.5)
    found = anneal_second_runs(problem, NEVER, policy=RunPolicy(moves=3_000).at_once())
    replay = simulate(problem, found)
    least = least_us(problem)
    if least < float("inf"):
        assert replay.peak_bytes <= problem.capacity_bytes
        assert replay.time_us <= least * (1 + 1e-9)


def test_annealing_makes_a_tight_irregular_graph_fit():
    problem = between(irregular(60), 0.6)
    assert simulate(problem, base_actions(problem)).peak_bytes > problem.capacity_bytes
    found = anneal_second_runs(problem, NEVER, policy=RunPolicy(moves=1_000))
    assert simulate(problem, found).peak_bytes <= problem.capacity_bytes


def test_seeds_give_plans_of_their_own_and_the_same_ones_again():
    problem = between(irregular(40), 0.8)
    policy = RunPolicy(moves=200)
    one, two = anneal_side_by_side(problem, NEVER, seeds=(1, 2), policy=policy)
    assert one == anneal_second_runs(problem, NEVER, seed=1, policy=policy.at_once())
    assert two == anneal_second_runs(problem, NEVER, seed=2, policy=policy)
    assert all(
        simulate(problem, found).peak_bytes <= problem.capacity_bytes for found in (one, two)
    )


def test_where_a_walk_gives_up_another_comes_down():
    problem = replace(wide(40), capacity_bytes=1)
    policy = RunPolicy(moves=100)
    walks = anneal_side_by_side(problem, NEVER, seeds=(1, 2), policy=policy)
    hotter = policy.after_another()
    down = anneal_second_runs(problem, NEVER, seed=2, policy=policy)
    assert walks == [
        anneal_second_runs(problem, NEVER, seed=1, policy=policy.at_once()),
        anneal_second_runs(problem, NEVER, seed=3, policy=hotter),
        down,
        anneal_second_runs(problem, NEVER, start=down, seed=4, policy=hotter),
    ]


def test_who_comes_down_on_another_thread_ends_once_one_fits():
    """The first walk gives up at once, and what follows it, far too hot, would go on for hours."""
    problem = between(irregular(60), 0.6)
    policy = RunPolicy(moves=1_000, more=10**6, hotter=1e9, patience=1.0)
    brief = replace(policy, moves=1, slice_moves=1, step=1.0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RunPolicy, "at_once", lambda _: brief)
        found = anneal_side_by_side(problem, NEVER, seeds=(1, 2), policy=policy)
    assert simulate(problem, found[-1]).peak_bytes <= problem.capacity_bytes


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 9), most=st.integers(1, 3))
def test_until_one_fits_there_are_only_so_many_runs(seed, most):
    problem = replace(wide(30), capacity_bytes=1)
    policy = RunPolicy(moves=300, down_runs=most, down_hot=1000.0)
    found = anneal_second_runs(problem, NEVER, seed=seed, policy=policy)
    assert len(found) <= max(2, most) * len(problem.ops)


def test_annealing_that_is_stopped_before_it_begins_leaves_the_start():
    problem = between(irregular(40), 0.5)
    assert anneal_second_runs(problem, At(0.0)) == base_actions(problem)


def test_what_may_not_run_again_does_not():
    problem = between(irregular(40), 0.5)
    fixed = replace(problem, ops=tuple(replace(op, recomputable=False) for op in problem.ops))
    found = anneal_second_runs(fixed, NEVER, policy=RunPolicy(moves=100))
    assert found == base_actions(problem)


@numba.njit(cache=True)
def _never_called(x):
    return x


@pytest.mark.parametrize(("left_s", "is_compiled"), [(5.0, False), (60.0, True)])
def test_a_short_search_does_not_wait_for_a_compiler(left_s, is_compiled, monkeypatch):
    begun = []
    compilation = Compilation(lambda: begun.append(True), lambda: (_never_called,))
    monkeypatch.setattr(compilation, "begin", lambda: None)
    monkeypatch.setattr(engines, "SECOND_RUNS", compilation)
    problem = between(irregular(50), 0.5)
    state = new_state(problem, SearchSettings(limit_s=60.0, workers=1))
    run_engine(engines.AnnealRuns(moves=20), state, after(left_s))
    assert bool(begun) == is_compiled
    assert (state.least.peak_bytes < state.evaluator.base.peak_bytes) == is_compiled
