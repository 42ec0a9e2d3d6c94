"""The model of a part against all plans of tiny problems, and its hint against the plan."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from planner.exact.local_search import new_solver
from planner.exact.part import PartModel
from planner.plan.problem import Problem
from planner.plan.stages import (
    MemoryProfile,
    Run,
    StageSchedule,
    actions_of,
    added_us,
    base_plan,
    may_swap,
    runs_of,
    stage_schedule,
)
from planner.search.evaluate import Evaluator
from planner.simulate.simulate import simulate
from tests.graphs import at_capacity, decisions_for, problems

ROUNDING = 1e-5
_MAX_PLANS = 600


def runs_to_free(problem: Problem) -> list[Run]:
    """Every operation in every later stage."""
    return [
        (q, m)
        for q in range(len(problem.ops))
        for m in range(q)
        if problem.ops[m].recomputable and problem.allow_recompute
    ]


def tensors_to_free(problem: Problem) -> list[int]:
    return [t for t in range(len(problem.tensors)) if problem.allow_swap and may_swap(problem, t)]


def every_plan(problem: Problem) -> Iterator[StageSchedule]:
    """All sets of runs, and of copies in before their reads."""
    free = runs_to_free(problem)
    assume(2 ** len(free) <= _MAX_PLANS)
    plans = 0
    for chosen in itertools.product((False, True), repeat=len(free)):
        reruns = frozenset(run for run, taken in zip(free, chosen, strict=True) if taken)
        reads = [
            (run, t)
            for run in runs_of(problem, StageSchedule(reruns=reruns, back=frozenset()))
            for t in problem.ops[run[1]].inputs
            if problem.allow_swap and may_swap(problem, t)
        ]
        plans += 2 ** len(reads)
        assume(plans <= _MAX_PLANS)
        for copied in itertools.product((False, True), repeat=len(reads)):
            back = frozenset(read for read, taken in zip(reads, copied, strict=True) if taken)
            yield StageSchedule(reruns=reruns, back=back)


def solved(model: PartModel, **parameters: object) -> tuple[cp_model.CpSolver, int]:
    solver = new_solver(seed=0, time_limit_s=60.0)
    for name, value in parameters.items():
        setattr(solver.parameters, name, value)
    return solver, solver.solve(model.cp)


def best_of_all(
    problem: Problem, held: MemoryProfile, *, price: float | None = None, latest_only: bool = False
) -> tuple[float, StageSchedule]:
    """The model's optimum with everything free: added time and plan."""
    model = PartModel(
        problem, held, runs_to_free(problem), tensors=tensors_to_free(problem), price=price
    )
    if latest_only:
        model.add_latest()
    solver, status = solved(model)
    assert status == cp_model.OPTIMAL
    plan = model.plan_of(solver)
    return added_us(problem, plan), plan


@pytest.mark.parametrize("latest_only", [False, True])
@pytest.mark.parametrize("swaps", [False, True])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_as_good_as_the_best_of_all_plans(swaps, latest_only, data):
    problem = data.draw(problems(max_ops=5, swaps=swaps))
    plans = [(simulate(problem, actions_of(problem, p)), p) for p in every_plan(problem)]
    low = min(replay.peak_bytes for replay, _ in plans)
    high = MemoryProfile(problem, base_plan()).peak_bytes
    tight = at_capacity(problem, low + int(data.draw(st.floats(0, 0.7)) * (high - low)))
    fitting = [(r, p) for r, p in plans if r.peak_bytes <= tight.capacity_bytes]
    start = data.draw(st.sampled_from(fitting))[1]
    added, plan = best_of_all(tight, MemoryProfile(tight, start), latest_only=latest_only)
    replay = simulate(tight, actions_of(tight, plan))
    best = min(r.time_us for r, _ in fitting)
    assert replay.peak_bytes <= tight.capacity_bytes
    assert replay.time_us == pytest.approx(tight.base_duration_us + added)
    assert replay.time_us <= best * (1 + ROUNDING)


@settings(max_examples=20, deadline=None)
@given(data=st.data(), problem=problems(max_ops=10))
def test_fixed_to_its_hint_the_model_gives_the_plan_back(data, problem):
    actions = Evaluator(problem).schedule(data.draw(decisions_for(problem)))
    peak = simulate(problem, actions).peak_bytes
    tight = at_capacity(
        problem, max(peak, MemoryProfile(problem, stage_schedule(problem, actions)).peak_bytes)
    )
    _, plan = best_of_all(tight, MemoryProfile(tight, stage_schedule(tight, actions)))
    held = MemoryProfile(tight, plan)
    runs = runs_to_free(tight)
    free = data.draw(st.sets(st.sampled_from(runs))) if runs else set()
    tensors = data.draw(st.sets(st.sampled_from(tensors_to_free(tight) or [0])))
    price = data.draw(st.sampled_from([None, 0.1, 10.0]))
    model = PartModel(tight, held, free, tensors=tensors & {*tensors_to_free(tight)}, price=price)
    solver, status = solved(model, fix_variables_to_their_hinted_value=True)
    assert status == cp_model.OPTIMAL
    assert model.plan_of(solver) == plan


@settings(max_examples=20, deadline=None)
@given(data=st.data(), problem=problems(max_ops=10))
def test_what_is_not_free_stays(data, problem):
    actions = Evaluator(problem).schedule(data.draw(decisions_for(problem)))
    plan = stage_schedule(problem, actions)
    held = MemoryProfile(problem, plan)
    tight = at_capacity(problem, held.peak_bytes)
    runs = runs_to_free(tight)
    free = data.draw(st.sets(st.sampled_from(runs))) if runs else set()
    model = PartModel(tight, held, free)
    solver, status = solved(model)
    assert status == cp_model.OPTIMAL
    found = model.plan_of(solver)
    assert found.reruns - free == plan.reruns - free
    touched = {t for _, m in free for t in (*tight.ops[m].inputs, *tight.ops[m].outputs)}
    assert {b for b in found.back if b[1] not in touched} == {
        b for b in plan.back if b[1] not in touched
    }
    replay = simulate(tight, actions_of(tight, found))
    assert replay.peak_bytes <= tight.capacity_bytes
    assert added_us(tight, found) <= added_us(tight, plan) + ROUNDING * tight.base_duration_us


@settings(max_examples=25, deadline=None)
@given(data=st.data(), problem=problems(max_ops=5, swaps=False))
def test_a_high_price_fits_what_can_be_fitted(data, problem):
    plans = list(every_plan(problem))
    low = min(MemoryProfile(problem, p).peak_bytes for p in plans)
    tight = at_capacity(problem, low)
    start = data.draw(st.sampled_from(plans))
    added, plan = best_of_all(tight, MemoryProfile(tight, start), price=1e4)
    assert MemoryProfile(tight, plan).excess(low) == 0
    fitting = [p for p in plans if MemoryProfile(tight, p).peak_bytes <= low]
    assert added <= min(added_us(tight, p) for p in fitting) + ROUNDING * tight.base_duration_us


@settings(max_examples=20, deadline=None)
@given(problem=problems(max_ops=10))
def test_a_proven_bound_may_be_stated(problem):
    tight = replace(problem, capacity_bytes=MemoryProfile(problem, base_plan()).peak_bytes)
    model = PartModel(tight, MemoryProfile(tight, base_plan()), runs_to_free(tight))
    model.add_bound(tight.base_duration_us)
    solver, status = solved(model)
    assert status == cp_model.OPTIMAL
    assert model.bound_us(solver) == pytest.approx(tight.base_duration_us)
