"""Improving a plan part by part never makes it worse, and makes plans fit."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.exact.local_search import Watch, improve_locally
from planner.exact.neighbourhoods import Neighbourhood, Neighbourhoods
from planner.exact.policy import ExactPolicy
from planner.plan.problem import ActionKind, Problem
from planner.plan.stages import MemoryProfile, base_plan, stage_schedule
from planner.search.evaluate import Evaluator
from planner.search.state import SearchSettings
from planner.simulate.simulate import simulate
from tests.graphs import at_capacity, base_actions, decisions_for, problems


@settings(max_examples=25, deadline=None)
@given(data=st.data(), problem=problems(max_ops=14))
def test_never_slower_and_never_unfit(data, problem):
    actions = Evaluator(problem).schedule(data.draw(decisions_for(problem)))
    before = simulate(problem, actions)
    tight = at_capacity(problem, before.peak_bytes)
    found, _ = improve_locally(tight, actions, SearchSettings(limit_s=0.2, seed=1))
    after = simulate(tight, found)
    assert after.peak_bytes <= tight.capacity_bytes
    assert after.time_us <= before.time_us


@settings(max_examples=10, deadline=None)
@given(data=st.data(), problem=problems(max_ops=10))
def test_what_does_not_fit_is_made_to_fit(data, problem):
    known = Evaluator(problem).schedule(data.draw(decisions_for(problem)))
    tight = at_capacity(problem, simulate(problem, known).peak_bytes)
    start = base_actions(tight)
    found, rounds = improve_locally(
        tight,
        start,
        SearchSettings(limit_s=1.0),
        watch=Watch(bound_us=simulate(tight, known).time_us),
    )
    assert simulate(tight, found).peak_bytes <= tight.capacity_bytes
    assert rounds > 0 or found == start


@pytest.mark.parametrize("what", ["allow_recompute", "swaps"])
@settings(max_examples=10, deadline=None)
@given(data=st.data(), problem=problems(max_ops=14))
def test_what_is_forbidden_is_not_used(what, data, problem):
    swaps = what == "swaps"
    problem = problem.without_swaps() if swaps else replace(problem, allow_recompute=False)
    actions = Evaluator(problem).schedule(data.draw(decisions_for(problem)))
    tight = at_capacity(problem, simulate(problem, actions).peak_bytes)
    found, _ = improve_locally(tight, actions, SearchSettings(limit_s=0.2))
    if swaps:
        assert all(a.kind is ActionKind.RUN for a in found)
    else:
        runs = [a.target for a in found if a.kind is ActionKind.RUN]
        assert runs == list(range(len(tight.ops)))


def test_one_worker_finds_the_same_for_the_same_seed():
    problem = layered(30, seed=3)
    rounds = [0]

    def stop() -> bool:
        rounds[0] += 1
        return rounds[0] > 12

    plans = []
    long = SearchSettings(limit_s=60)
    for _ in range(2):
        rounds[0] = 0
        watch = Watch(stop=stop)
        plans.append(improve_locally(problem, base_actions(problem), long, watch=watch)[0])
    assert plans[0] == plans[1]


@pytest.mark.parametrize(
    "policy",
    [
        ExactPolicy(part_runs=2, min_part_runs=1, max_part_runs=2, part_stages=(1,)),
        ExactPolicy(first_price_factor=1e9, price_factor=1e9, max_price=1e9),
        ExactPolicy(first_price_factor=1e-9, price_patience=1, max_price=1e-9),
        ExactPolicy(round_work=1e-9, part_runs=1_000, min_part_runs=1_000),
    ],
)
def test_numbers_far_from_the_default_break_nothing(policy):
    problem = layered(30, seed=3)
    start = base_actions(problem)
    settings = SearchSettings(limit_s=0.5, seed=1)
    found, rounds = improve_locally(problem, start, settings, policy=policy)
    assert rounds > 0
    before = simulate(problem, start).peak_bytes
    assert simulate(problem, found).peak_bytes <= before


def test_a_part_is_no_larger_than_the_policy_says(monkeypatch):
    sizes: list[tuple[int, int]] = []
    choose = Neighbourhoods.choose

    def counting(self, held, kind, size, most_stages, draw):
        sizes.append((size, most_stages))
        return choose(self, held, kind, size, most_stages, draw)

    monkeypatch.setattr(Neighbourhoods, "choose", counting)
    problem = layered(30, seed=3)
    policy = ExactPolicy(part_runs=8, min_part_runs=5, max_part_runs=9, part_stages=(2, 4))
    improve_locally(problem, base_actions(problem), SearchSettings(limit_s=1.0), policy=policy)
    assert sizes[0][0] == 8
    assert {size for size, _ in sizes} <= set(range(5, 10))
    assert {stages for _, stages in sizes} == {2, 4}


@settings(max_examples=30, deadline=None)
@given(data=st.data(), problem=problems(max_ops=14), kind=st.sampled_from(list(Neighbourhood)))
def test_neighbourhoods_free_what_may_be_freed(data, problem, kind):
    actions = Evaluator(problem).schedule(data.draw(decisions_for(problem)))
    peak = MemoryProfile(problem, base_plan()).peak_bytes
    tight = at_capacity(problem, max(1, int(0.7 * peak)))
    held = MemoryProfile(tight, stage_schedule(tight, actions))
    size = data.draw(st.integers(1, 60))
    freed = Neighbourhoods(tight).choose(held, kind, size, 6, random.Random(0))
    assert all(q > m and q < len(tight.ops) for q, m in freed.runs)
    assert all(tight.ops[m].recomputable for _, m in freed.runs)
    assert all(tight.tensors[t].swappable and not tight.tensors[t].to_end for t in freed.tensors)


def layered(count: int, seed: int) -> Problem:
    """Operations that read two of the eight before them and one from afar, at 80% of the peak."""
    from planner.plan.problem import PlanOp, PlanTensor

    draw = random.Random(seed)
    reads = [
        sorted({*(draw.randrange(max(0, i - 8), i) for _ in range(2)), draw.randrange(i)})
        if i
        else []
        for i in range(count)
    ]
    problem = Problem(
        name="layered",
        ops=tuple(
            PlanOp(
                name=f"op{i}",
                duration_us=float(draw.randint(1, 99)),
                inputs=tuple(reads[i]),
                outputs=(i,),
            )
            for i in range(count)
        ),
        tensors=tuple(
            PlanTensor(
                name=f"t{i}",
                bytes=draw.randint(1, 50),
                producer=i,
                uses=tuple(u for u in range(count) if i in reads[u]),
            )
            for i in range(count)
        ),
        fixed_bytes=0,
        capacity_bytes=1,
    )
    peak = simulate(problem, base_actions(problem)).peak_bytes
    return replace(problem, capacity_bytes=int(0.8 * peak))
