"""Chains of recomputes that bring tensors back, and when tensors are on the device."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.plan.problem import PlanOp, PlanTensor, Problem
from planner.search.repair import MAX_CLOSURE, Stays, closure
from tests.graphs import problems

ACTIONS = 12
step = st.integers(0, ACTIONS)


@settings(max_examples=150, deadline=None)
@given(problem=problems(), data=st.data())
def test_a_chain_has_what_is_missing_and_no_more(problem: Problem, data: st.DataObject) -> None:
    tensors = range(len(problem.tensors))
    lives = st.lists(st.tuples(st.sampled_from(tensors), step, step), max_size=3 * len(tensors))
    copies = [(t, min(a, b), max(a, b)) for t, a, b in data.draw(lives)]
    tensor, at = data.draw(st.sampled_from(tensors)), data.draw(step)
    there = {t for t, birth, end in copies if birth < at < end} - {tensor}
    stays = Stays(copies)
    assert {t for t in tensors if t != tensor and stays.cover(t, at)} == there

    found, blocker = closure(problem, stays, tensor, at)
    assert len(set(found)) == len(found)
    assert problem.tensors[tensor].producer in (*found, blocker)
    assert all(problem.ops[op].recomputable for op in found)
    assert blocker is None or not problem.ops[blocker].recomputable
    needed = {t for op in found for t in problem.ops[op].inputs} - there
    made = {problem.tensors[t].producer for t in needed}
    if blocker is None:  # closed: what is missing is made, and made for something
        assert made <= {*found}
    assert {*found} <= made | {problem.tensors[tensor].producer}
    took_us = sum(problem.ops[op].duration_us for op in found)
    if blocker is None and took_us:
        assert closure(problem, stays, tensor, at, math.nextafter(took_us, 0))[1] is not None


def test_a_chain_that_is_too_long_is_blocked() -> None:
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
    chain, blocker = closure(problem, Stays((t, 0, 1) for t in range(count)), count - 1, 5)
    assert chain == list(range(count - 1, count - 1 - len(chain), -1))
    assert len(chain) == MAX_CLOSURE + 1 and blocker == count - 1 - len(chain)
