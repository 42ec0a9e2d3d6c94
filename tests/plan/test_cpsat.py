"""The exact engine against all plans of tiny problems, and never worse than what it is given."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.plan.cpsat import Exact, solve_exact
from planner.plan.execute import Choice, Decisions, Gap
from planner.plan.improve import Candidate, Improver
from planner.plan.problem import ActionKind, Problem
from planner.plan.simulate import simulate
from tests.graphs import at_capacity, decisions_for, problems

ROUNDING = 1e-5
_MOST_PLANS = 2_000


def exact(problem: Problem, incumbent: Candidate) -> Exact:
    found = solve_exact(problem, incumbent, time_limit_s=20.0, seed=1, workers=1)
    assert found is not None, "the incumbent itself is a solution"
    return found


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
    assume(count <= _MOST_PLANS)
    for plan in itertools.product(*options):
        yield Decisions(gaps={gap: choice for gap, choice in plan if choice is not None})


@settings(max_examples=40, deadline=None)
@given(problem=problems(max_ops=6), share=st.floats(0, 1))
def test_as_good_as_the_best_of_all_plans(problem, share):
    improver = Improver(problem, deadline=float("inf"))
    plans = [improver.evaluate(decisions) for decisions in every_plan(problem)]
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


@settings(max_examples=40, deadline=None)
@given(data=st.data(), problem=problems())
def test_never_worse_than_the_incumbent_and_within_the_capacity(data, problem):
    improver = Improver(problem, deadline=float("inf"))
    incumbent = improver.evaluate(data.draw(decisions_for(problem)))
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
    improver = Improver(problem, deadline=float("inf"))
    incumbent = improver.evaluate(data.draw(decisions_for(problem)))
    tight = at_capacity(problem, incumbent.peak_bytes)
    actions = exact(tight, incumbent).candidate.actions
    assert all(a.kind is ActionKind.RUN for a in actions)


@settings(max_examples=20, deadline=None)
@given(data=st.data(), problem=problems())
def test_without_recompute_every_operation_runs_once(data, problem):
    only_swaps = replace(problem, allow_recompute=False)
    improver = Improver(only_swaps, deadline=float("inf"))
    incumbent = improver.evaluate(data.draw(decisions_for(only_swaps)))
    tight = at_capacity(only_swaps, incumbent.peak_bytes)
    runs = [a for a in exact(tight, incumbent).candidate.actions if a.kind is ActionKind.RUN]
    assert [a.target for a in runs] == list(range(len(problem.ops)))
