"""Simple plans: valid, and no better than what the portfolio returns."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.plan.decisions import Choice
from planner.plan.problem import PlanOp, PlanTensor, Problem
from planner.portfolio.solve import solve
from planner.search.engines.simple import distance_plans, open_gaps
from planner.search.evaluate import Evaluator
from planner.search.state import SearchSettings
from planner.simulate.simulate import simulate
from tests.graphs import at_capacity, problems


def training_chain(layers: int) -> Problem:
    """`layers` forward operations, then as many backward, each reading its forward input."""
    count = 2 * layers
    inputs = [() if i == 0 else (i - 1,) for i in range(layers)]
    inputs += [(i - 1, count - 1 - i) for i in range(layers, count)]
    uses: list[list[int]] = [[] for _ in range(count)]
    for op, reads in enumerate(inputs):
        for t in set(reads):
            uses[t].append(op)
    return Problem(
        name="chain",
        ops=tuple(
            PlanOp(name=f"op{i}", duration_us=1.0, inputs=tuple(sorted(set(r))), outputs=(i,))
            for i, r in enumerate(inputs)
        ),
        tensors=tuple(
            PlanTensor(name=f"t{i}", bytes=10, producer=i, uses=tuple(uses[i]))
            for i in range(count)
        ),
        fixed_bytes=0,
        capacity_bytes=1 << 40,
        swap_out_bytes_per_s=1e7,
        swap_in_bytes_per_s=1e7,
    )


def test_the_longest_waits_are_swapped_first():
    problem = training_chain(8)
    first = next(distance_plans(problem, 8, excess_bytes=30))
    assert sorted(first.gaps) == [(0, 1), (1, 1), (2, 1)]
    assert set(first.gaps.values()) == {Choice.SWAP}


@settings(max_examples=60, deadline=None)
@given(data=st.data(), problem=problems())
def test_simple_plans_are_valid_and_decide_what_waits(data, problem):
    at = data.draw(st.integers(0, len(problem.ops) - 1))
    waiting = {gap for gap, _ in open_gaps(problem, at)}
    evaluator = Evaluator(problem)
    plans = distance_plans(problem, at, 10)
    for decisions in plans:
        assert set(decisions.gaps) <= waiting
        simulate(problem, evaluator.evaluate(decisions).actions)


@settings(max_examples=15, deadline=None)
@given(problem=problems(), share=st.floats(0.5, 0.95), overlap=st.booleans())
def test_no_simple_plan_beats_the_portfolio(problem, share, overlap):
    base = Evaluator(problem).base
    problem = replace(at_capacity(problem, int(base.peak_bytes * share)), overlap=overlap)
    evaluator = Evaluator(problem)
    at = min(base.replay.peak_action, len(problem.ops) - 1)
    plans = distance_plans(problem, at, 10)
    fitting = [c.time_us for d in plans if evaluator.fits(c := evaluator.evaluate(d))]
    if not fitting:
        return
    found = solve(problem, SearchSettings(limit_s=2.0)).candidate
    assert found is not None
    assert found.time_us <= min(fitting) * (1 + 1e-9)
