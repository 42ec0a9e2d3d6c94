"""Chains of all the tensors that come back are those of each alone."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.pipeline.record.chains import chains_of
from planner.plan.problem import PlanOp, PlanTensor, Problem
from planner.search.repair import MAX_CLOSURE, closure
from tests.graphs import problems

ACTIONS = 12


@settings(max_examples=150, deadline=None)
@given(problems(), st.data())
def test_each_chain_is_what_the_search_finds(problem: Problem, data: st.DataObject) -> None:
    step = st.integers(0, ACTIONS)
    lives = st.lists(st.tuples(step, step).map(sorted).map(tuple), max_size=3)
    tensors = range(len(problem.tensors))
    copies = {t: data.draw(lives) for t in tensors}
    returns = data.draw(st.lists(st.tuples(st.sampled_from(tensors), step), max_size=8))
    found = dict(chains_of(problem, copies, returns))
    assert found == {i: closure(problem, copies, *back) for i, back in enumerate(returns)}


def test_a_chain_that_is_too_long_ends_where_the_search_ends_it() -> None:
    count = MAX_CLOSURE + 5
    problem = Problem(
        name="chain",
        ops=tuple(
            PlanOp(name=str(i), duration_us=1.0, inputs=(i - 1,) if i else (), outputs=(i,))
            for i in range(count)
        ),
        tensors=tuple(
            PlanTensor(name=str(i), bytes=1, producer=i, uses=(i + 1,) if i + 1 < count else ())
            for i in range(count)
        ),
        fixed_bytes=0,
        capacity_bytes=count,
    )
    copies = {t: [(0, 1)] for t in range(count)}
    ((_, (chain, blocker)),) = chains_of(problem, copies, [(count - 1, 5)])
    assert (chain, blocker) == closure(problem, copies, count - 1, 5)
    assert blocker == count - 1 - len(chain)
