"""The race of base orders: judged by solving each order by itself."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import clock
from planner.bound.instants import min_peak_bound
from planner.order.lists import late_schedule, list_schedule
from planner.order.reorder import peak_of, reorder
from planner.plan.problem import PlanOp, PlanTensor, Problem
from planner.plan.solved import Solved
from planner.portfolio import race as race_module
from planner.portfolio.frontier import solve_orders
from planner.portfolio.race import Entrant, Runner, race, rough_plan
from planner.portfolio.solve import solve
from planner.portfolio.table import POLICY, Policy, RacePolicy
from planner.search.state import SearchSettings
from planner.simulate.simulate import simulate
from tests.graphs import at_capacity, problems

FEW = settings(max_examples=8, deadline=None)
shares = st.floats(0, 1)


def orders_of(problem: Problem, share: float) -> list[Problem]:
    """The problem in several orders, at a capacity between what one needs and the least of one."""
    plain = list(range(len(problem.ops)))
    orders = {tuple(plain), list_schedule(problem, plain), late_schedule(problem, plain)}
    orders.add(list_schedule(problem, plain[::-1], eager=False))
    moved = [reorder(problem, order) for order in sorted(orders)]
    low = min(min_peak_bound(p)[0] for p in moved)
    high = max(peak_of(p, plain) for p in moved)
    return [at_capacity(p, low + int(share * (high - low))) for p in moved]


def entrants(problems: Sequence[Problem], pins_us: Sequence[float] = ()) -> list[Entrant]:
    """The orders before a race."""
    pairs = itertools.zip_longest(problems, pins_us, fillvalue=0.0)
    return [Entrant(problem=problem, pins_us=us) for problem, us in pairs]


@FEW
@given(problem=problems(), share=shares)
def test_every_order_is_ranked_by_what_it_can_do(problem, share):
    moved = orders_of(problem, share)
    runners = race(entrants(moved), time_limit_s=4.0)
    assert sorted(r.index for r in runners) == list(range(len(moved)))
    assert [r.rank for r in runners] == sorted(r.rank for r in runners)
    best_us = min((r.rank[1] for r in runners if r.rank[0] == 0), default=math.inf)
    for runner in runners:
        if runner.solved is None and not runner.is_impossible:
            assert runner.bound_us >= best_us  # the only reason, with time enough
        alone = solve(moved[runner.index], SearchSettings(limit_s=4.0))
        if alone.candidate is not None:
            assert not runner.is_impossible
            assert runner.bound_us <= alone.candidate.time_us * (1 + 1e-6)


@FEW
@given(problem=problems(), share=shares)
def test_the_answer_is_a_plan_in_the_order_that_it_names(problem, share):
    moved = orders_of(problem, share)
    raced = race(entrants(moved), time_limit_s=2.0)[0].solved
    found = solve_orders(moved, SearchSettings(limit_s=5.0))
    index, solved = found.index, found.solved
    if solved.candidate is None:
        assert raced is None or raced.candidate is None
        return
    replay = simulate(moved[index], solved.candidate.actions)
    assert replay.peak_bytes <= moved[index].capacity_bytes
    assert replay.time_us == solved.candidate.time_us
    assert found.bound_us <= solved.candidate.time_us * (1 + 1e-6)
    if raced is not None and raced.candidate is not None:
        assert solved.candidate.time_us <= raced.candidate.time_us


def uneven() -> list[Problem]:
    """A chain there and back in four orders, alike but for their names; recompute alone, at 70%."""
    count = 12
    reads = [[i - 1] if i else [] for i in range(2 * count)]
    for i in range(count, 2 * count):
        reads[i].append(2 * count - 1 - i)
    uses = [tuple(u for u in range(2 * count) if t in reads[u]) for t in range(2 * count)]
    problem = Problem(
        name="there and back",
        ops=tuple(
            PlanOp(name=f"op{i}", duration_us=5.0 + i % 7, inputs=tuple(sorted(r)), outputs=(i,))
            for i, r in enumerate(reads)
        ),
        tensors=tuple(
            PlanTensor(name=f"t{t}", bytes=100 + 37 * (t % 5), producer=t, uses=u)
            for t, u in enumerate(uses)
        ),
        fixed_bytes=0,
        capacity_bytes=1,
    )
    tight = at_capacity(problem, int(0.7 * peak_of(problem, range(2 * count))))
    return [replace(tight, name=f"{tight.name} {i}") for i in range(4)]


def only_greedy(policy: Policy) -> Policy:
    """The policy with one engine, and no time for rough plans in the race but until one is fair."""
    tables = {
        name: tuple(t for t in getattr(policy, name) if t.engine.name == "greedy")
        for name in ("rough", "serial", "other")
    }
    return replace(policy, race=replace(policy.race, rough_until=0.0), **tables)


def test_no_search_is_shorter_than_the_policy_says():
    """But for rough plans, until there is a fair one."""
    moved = uneven()
    assert all(r.solved for r in race(entrants(moved), time_limit_s=4.0))
    patient = replace(POLICY, race=replace(POLICY.race, rough_s=5.0, min_s=5.0))
    raced = race(entrants(moved), time_limit_s=4.0, policy=patient)
    assert [r.index for r in raced if r.solved] == [0]


def test_orders_are_tried_until_there_is_a_fair_plan_though_time_is_out():
    moved = uneven()
    stuck = [  # equal peaks would mean equal orders
        replace(p, allow_recompute=False, fixed_bytes=1 + i, name=f"stuck {i}")
        for i, p in enumerate(moved[:2])
    ]

    def raced(problems: list[Problem], **changed: float) -> list[Runner]:
        policy = replace(POLICY, race=replace(POLICY.race, **changed))
        with clock.counting():
            return race(entrants(problems), time_limit_s=1e-9, policy=policy)

    def tried(problems: list[Problem], **changed: float) -> set[int]:
        return {r.index for r in raced(problems, **changed) if r.solved}

    fair = len(stuck)  # the first order with a plan
    best = raced([*stuck, *moved])[0]
    assert best.solved is not None
    assert best.solved.candidate is not None
    assert fair in tried([*stuck, *moved], tried_orders=1)
    assert fair + 1 not in tried([*stuck, *moved], tried_orders=1)
    moved = [replace(p, fixed_bytes=i) for i, p in enumerate(moved)]
    assert tried(moved, tried_orders=1) == {0}
    assert tried(moved, tried_orders=3) == {0, 1, 2}
    everything = set(range(len(moved)))
    assert tried(moved, tried_orders=1, fair_factor=1.0) == everything
    assert not tried(moved, fair_factor=1.0, overtime_s=1e-9)


def test_a_rough_plan_has_time_for_each_lever_and_operation(monkeypatch: pytest.MonkeyPatch):
    """With both levers each had half of it: no order of a GPT-2 had a plan worth its name."""
    asked: list[tuple[bool, float]] = []

    def noted(problem: Problem, time_limit_s: float, numbers: RacePolicy) -> Solved:
        asked.append((problem.allow_recompute, time_limit_s / len(problem.ops)))
        return rough_plan(problem, 0.05, numbers)

    monkeypatch.setattr(race_module, "rough_plan", noted)
    policy = replace(POLICY, race=replace(POLICY.race, rough_op_s=1.0, overtime_s=1e9))
    alone = uneven()
    both = [replace(p, swap_out_bytes_per_s=1e6, swap_in_bytes_per_s=1e6) for p in alone]
    for orders in (alone, both):
        race(entrants(orders), time_limit_s=1e-9, policy=policy)
    assert {is_recompute for is_recompute, _ in asked} == {True, False}
    assert min(op_s for _, op_s in asked) >= 1.0


def test_orders_that_were_raced_keep_their_rough_plans(monkeypatch: pytest.MonkeyPatch):
    """The time goes to the others, and few tried orders count over both races."""
    made: list[Problem] = []

    def noted(problem: Problem, *rest: Any) -> Solved:
        made.append(problem)
        return rough_plan(problem, *rest)

    monkeypatch.setattr(race_module, "rough_plan", noted)
    moved = [replace(p, fixed_bytes=i) for i, p in enumerate(uneven())]
    policy = replace(POLICY, race=replace(POLICY.race, tried_orders=2))
    with clock.counting():
        first = race(entrants(moved), time_limit_s=1e-9, policy=policy)
        rough = {r.index: r.rough for r in first if r.rough is not None}
        assert set(rough) == {0, 1}
        assert made == moved[:2]
        known = [replace(e, rough=rough.get(i)) for i, e in enumerate(entrants(moved))]
        then = race(known, time_limit_s=4.0, policy=policy)
    assert made == moved
    kept = {r.index: r.rough for r in then}
    assert all(kept[index] is plan for index, plan in rough.items())
    assert all(plan is not None for plan in kept.values())


def test_what_was_proved_by_a_rough_plan_holds_in_the_next_race():
    moved = uneven()
    plain = race(entrants(moved), time_limit_s=4.0)
    rough = {r.index: r.rough for r in plain}
    first = rough[0]
    assert first is not None
    known = [replace(e, rough=rough[i]) for i, e in enumerate(entrants(moved))]
    known[0] = replace(known[0], rough=replace(first, candidate=None, is_impossible=True))
    (again,) = (r for r in race(known, time_limit_s=4.0) if r.index == 0)
    assert again.is_impossible


def test_orders_without_time_are_said_not_to_be_reached():
    moved = [replace(p, fixed_bytes=i) for i, p in enumerate(uneven())]
    policy = replace(POLICY, race=replace(POLICY.race, tried_orders=2))
    with clock.counting():
        short = race(entrants(moved), time_limit_s=1e-9, policy=policy)
        long = race(entrants(moved), time_limit_s=60.0)
    assert {r.index for r in short if not r.is_reached} == set(range(2, len(moved)))
    assert all(r.is_reached for r in long)


def test_the_searches_are_those_of_the_policy():
    moved, policy = uneven(), only_greedy(POLICY)
    settings = SearchSettings(limit_s=4.0)
    raced = race(entrants(moved), time_limit_s=4.0, policy=policy)
    found = [r.solved for r in raced if r.solved]
    found.append(solve_orders(moved, settings, policy=policy).solved)
    assert len(found) > 1
    for solved in found:
        assert {engine.name for engine in solved.engines} == {"greedy"}
    found = solve_orders(moved, settings).solved
    assert {engine.name for engine in found.engines} > {"greedy"}


@FEW
@given(problem=problems(), share=shares)
def test_a_search_that_goes_on_is_no_worse(problem, share):
    problem = orders_of(problem, share)[0]
    first = solve(problem, SearchSettings(limit_s=2.0, thorough=False))
    then = solve(problem, SearchSettings(limit_s=0.0), start=first)
    assert (then.candidate is None) == (first.candidate is None)
    assert then.bound_us >= first.bound_us
    assert then.least.peak_bytes <= first.least.peak_bytes
    if first.candidate is not None and then.candidate is not None:
        assert then.candidate.time_us <= first.candidate.time_us
        assert then.engine


@FEW
@given(problem=problems(), share=shares, data=st.data())
def test_what_pins_an_order_counts_in_the_ranking(problem, share, data):
    moved = orders_of(problem, share)
    pins_us = [data.draw(st.floats(0, 5)) for _ in moved]
    runners = race(entrants(moved, pins_us), time_limit_s=0.5)
    assert sorted(r.index for r in runners) == list(range(len(moved)))
    found = [r for r in runners if r.solved is not None and r.solved.candidate is not None]
    times_us = [r.solved.candidate.time_us + pins_us[r.index] for r in found]
    assert times_us == sorted(times_us)
    assert all(r.pins_us == pins_us[r.index] for r in runners)
