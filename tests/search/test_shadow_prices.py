"""Prices of the LP over instants: the bound at another capacity is never below what they foretell."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.bound.column_generation import ColumnGeneration
from planner.bound.lp import InstantLp
from planner.plan.problem import PlanOp, PlanTensor, Problem
from planner.search.program.shadow_prices import shadow_prices
from planner.simulate.simulate import simulate
from tests.graphs import at_capacity, base_actions, between, problems


def value(problem: Problem, capacity: int, model=InstantLp):
    """The LP over all instants at a capacity."""
    relaxed = model(at_capacity(problem, capacity))
    for p in range(len(problem.ops)):
        relaxed.add(p)
    solution = relaxed.solve(time_limit_s=30)
    assert solution is not None
    return solution


SHARES = st.floats(min_value=0.0, max_value=1.0)


def foretold_holds(problem: Problem, share: float, model) -> None:
    """The prices are a subgradient of the LP's value, which is convex in the capacity."""
    capacity = between(problem, share).capacity_bytes
    here = value(problem, capacity, model)
    assume(here.feasible and here.price_us)
    worth = sum(here.price_us.values())
    assert min(here.price_us.values()) >= 0
    for other in (0.0, share / 2, (1 + share) / 2, 1.0):
        there_bytes = between(problem, other).capacity_bytes
        there = value(problem, there_bytes, model)
        if there.feasible:
            foretold = here.bound_us + worth * (capacity - there_bytes)
            assert there.extra_us >= foretold - 1e-4 * problem.base_duration_us


@settings(max_examples=40, deadline=None)
@given(problem=problems(), share=SHARES)
def test_no_bound_is_below_what_the_prices_foretell(problem, share):
    foretold_holds(problem, share, InstantLp)


@settings(max_examples=40, deadline=None)
@given(problem=problems(swaps=False), share=SHARES)
def test_minimum_cuts_find_prices_that_hold_too(problem, share):
    foretold_holds(problem, share, ColumnGeneration)


def two_layers(capacity: int) -> Problem:
    """x and y are made, z is large, then y and x are read: at z one of x and y must go."""
    ops = (
        PlanOp(name="x", duration_us=8.0, inputs=(), outputs=(0,)),
        PlanOp(name="y", duration_us=2.0, inputs=(), outputs=(1,)),
        PlanOp(name="z", duration_us=1.0, inputs=(), outputs=(2,)),
        PlanOp(name="end", duration_us=1.0, inputs=(0, 1, 2), outputs=(3,)),
    )
    tensors = (
        PlanTensor(name="x", bytes=4, producer=0, uses=(3,)),
        PlanTensor(name="y", bytes=4, producer=1, uses=(3,)),
        PlanTensor(name="z", bytes=2, producer=2, uses=(3,)),
        PlanTensor(name="out", bytes=1, producer=3, uses=(), to_end=True),
    )
    return Problem(name="two", ops=ops, tensors=tensors, fixed_bytes=0, capacity_bytes=capacity)


def test_a_byte_is_worth_what_it_saves():
    roomy = shadow_prices(two_layers(11), time_limit_s=10)
    assert roomy is not None and roomy.bound_extra_us == 0 and not roomy.us_per_byte
    # nothing fits where the last operation itself does not
    assert shadow_prices(two_layers(10), time_limit_s=10) is None


def wide_end(capacity: int) -> Problem:
    """Like `two_layers`, but x and y are read one after the other and z, the largest, before."""
    ops = (
        PlanOp(name="x", duration_us=8.0, inputs=(), outputs=(0,)),
        PlanOp(name="y", duration_us=2.0, inputs=(), outputs=(1,)),
        PlanOp(name="z", duration_us=1.0, inputs=(), outputs=(2,)),
        PlanOp(name="y read", duration_us=1.0, inputs=(1, 2), outputs=(3,)),
        PlanOp(name="x read", duration_us=1.0, inputs=(0, 3), outputs=(4,)),
    )
    tensors = (
        PlanTensor(name="x", bytes=4, producer=0, uses=(4,)),
        PlanTensor(name="y", bytes=4, producer=1, uses=(3,)),
        PlanTensor(name="z", bytes=8, producer=2, uses=(3,)),
        PlanTensor(name="read", bytes=1, producer=3, uses=(4,)),
        PlanTensor(name="out", bytes=1, producer=4, uses=(), to_end=True),
    )
    return Problem(name="wide", ops=ops, tensors=tensors, fixed_bytes=0, capacity_bytes=capacity)


def test_the_price_is_at_the_cut_that_binds():
    # y read holds y, z and its result: 13; with x beside them 17
    assert simulate(wide_end(17), base_actions(wide_end(17))).peak_bytes == 17
    found = shadow_prices(wide_end(15), time_limit_s=10)
    assert found is not None
    # two of the four bytes of x must go: half of its 8 us, 2 us for each byte
    assert found.bound_extra_us == pytest.approx(4.0)
    assert {p: x for p, x in found.us_per_byte.items() if x} == {3: pytest.approx(2.0)}
    assert found.between(0, 4) == pytest.approx(2.0)  # x is held over it
    assert found.between(1, 3) == 0.0  # y is read there: held anyway
