"""Descents from many plans: plans of the problem, never with more peak, and lower than eviction."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.exact.cp_sat import Descend
from planner.exact.descents import descend_from_many
from planner.exact.policy import ExactPolicy
from planner.plan.problem import ActionKind, PlanOp, PlanTensor, Problem
from planner.plan.stages import actions_of, base_plan
from planner.portfolio.min_peak import min_peak
from planner.portfolio.policies import LeastPeakPolicy
from planner.search.decode import Decoder
from planner.search.eviction import EVICTION_POLICIES, Eviction
from planner.search.state import SearchSettings
from planner.simulate.simulate import candidate_of, simulate
from tests.graphs import decisions_for, problems

SHORT = ExactPolicy(spell_s=0.05, max_misses=2)


def layered(ops: int, seed: int) -> Problem:
    """Operations that read what two or three of the fifteen before them made; all is read late again."""
    draw = random.Random(seed)
    inputs = [tuple(draw.sample(range(max(0, m - 15), m), min(m, 2 + m % 2))) for m in range(ops)]
    uses = [tuple(u for u in range(ops) if m in inputs[u]) for m in range(ops)]
    return Problem(
        name="layered",
        ops=tuple(
            PlanOp(name=f"op{m}", duration_us=1.0 + m % 5, inputs=inputs[m], outputs=(m,))
            for m in range(ops)
        ),
        tensors=tuple(
            PlanTensor(name=f"t{m}", bytes=draw.randint(50, 150), producer=m, uses=uses[m])
            for m in range(ops)
        ),
        fixed_bytes=0,
        capacity_bytes=1,
    )


@settings(max_examples=40, deadline=None)
@given(data=st.data(), problem=problems(max_ops=12, swaps=False))
def test_a_plan_of_the_problem_with_no_more_peak(data, problem):
    actions = Decoder(problem).schedule(data.draw(decisions_for(problem)))
    tight = replace(problem, capacity_bytes=1)
    start = candidate_of(tight, actions)
    settings = SearchSettings(limit_s=0.2, workers=2)
    found = descend_from_many(tight, start, settings, policy=SHORT).actions
    runs = [a.target for a in found if a.kind is ActionKind.RUN]
    assert list(dict.fromkeys(runs)) == list(range(len(problem.ops)))
    assert simulate(problem, found).peak_bytes <= simulate(problem, actions).peak_bytes


def test_it_ends_at_the_capacity():
    problem = layered(40, 0)
    base = candidate_of(problem, actions_of(problem, base_plan()))
    roomy = replace(problem, capacity_bytes=int(0.95 * base.peak_bytes))
    found = descend_from_many(roomy, base, SearchSettings(limit_s=60.0, workers=2)).actions
    assert simulate(problem, found).peak_bytes <= roomy.capacity_bytes


def test_it_goes_below_what_eviction_alone_comes_to():
    problem = layered(80, 1)
    evicting = Eviction(problem)
    base = candidate_of(problem, actions_of(problem, base_plan()))
    evicted = base.peak_bytes
    capacity = evicted
    while capacity > 0:
        plans = [evicting.actions(capacity, p, deadline=float("inf")) for p in EVICTION_POLICIES]
        fitting = [plan for plan in plans if plan is not None]
        if not fitting:
            break
        evicted = min(simulate(problem, plan).peak_bytes for plan in fitting)
        capacity = int(0.99 * evicted)
    settings = SearchSettings(limit_s=3.0, workers=2)
    found = descend_from_many(problem, base, settings, policy=Descend(max_misses=3)).actions
    assert simulate(problem, found).peak_bytes < evicted


def test_the_least_peak_is_looked_for_in_parts_too():
    problem = layered(80, 1)
    never = LeastPeakPolicy(min_descents_s=1e9)
    without, _ = min_peak(problem, time_limit_s=1.0, policy=never)
    for limit_s in (4.0, 16.0, 64.0):  # a busy machine takes longer
        found, bound = min_peak(problem, time_limit_s=limit_s)
        if found.peak_bytes < without.peak_bytes:
            break
    assert bound <= found.peak_bytes < without.peak_bytes
    assert simulate(problem, found.actions).peak_bytes == found.peak_bytes
