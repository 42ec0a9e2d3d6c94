"""The bound by unmaking: below every plan, above the bound of single operations, and worth its time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.bound.instants import min_peak_bound
from planner.bound.unmaking import unmaking_bound
from planner.order.reorder import peak_of
from planner.plan.problem import Problem
from planner.portfolio.min_peak import min_peak
from planner.portfolio.solve import solve
from planner.search.state import SearchSettings
from reports.solver.build import Builder
from tests.graphs import at_capacity, problems
from tests.portfolio.test_min_peak import least_of_all, small, wide_problems


@st.composite
def converging(draw: st.DrawFn) -> Problem:
    """A random problem whose wide tensors are made into narrow ones, which wait for each other: where the
    bound is often more than a single operation's. Few stay, few are made by what may not run again."""
    builder = Builder()
    narrow: list[int] = []
    for i in range(draw(st.integers(2, 3))):
        reads = draw(st.sets(st.sampled_from(narrow), max_size=2)) if narrow else ()
        wide = builder.op(f"wide{i}", 1.0, sorted(reads), draw(_sizes(8, 12)))
        read = draw(st.sets(st.sampled_from([*wide, *narrow]), min_size=1)) | {wide[0]}
        narrow += builder.op(f"narrow{i}", 1.0, sorted(read), draw(_sizes(0, 5)))[:1]
    builder.op("all", 1.0, narrow, (1,))
    builder.to_end |= draw(st.sets(st.integers(0, 3 * len(builder.sizes)), max_size=3))
    problem = builder.problem("converging")
    ops, tensors = list(problem.ops), list(problem.tensors)
    for i, op in enumerate(ops):
        last = [t for t in op.inputs if t not in builder.to_end]
        inplace = draw(st.sampled_from([None, None, *last]))
        if inplace is not None:
            size = tensors[inplace].bytes
            tensors[op.outputs[0]] = replace(tensors[op.outputs[0]], bytes=size)
        ops[i] = replace(
            op,
            workspace_bytes=draw(st.sampled_from([0, 0, 3])),
            recomputable=draw(st.integers(0, 5)) > 0,
            inplace=() if inplace is None else ((inplace, op.outputs[0]),),
        )
    return replace(problem, ops=tuple(ops), tensors=tuple(tensors))


def _sizes(least: int, most: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(least, most), min_size=1, max_size=2).map(tuple)


tiny = st.one_of(
    problems(max_ops=5, swaps=False).filter(small), wide_problems().filter(small), converging()
)


def all_again(problem: Problem) -> Problem:
    """The problem with every operation one that may run again."""
    return replace(problem, ops=tuple(replace(op, recomputable=True) for op in problem.ops))


def two_branches(*, workspace_bytes: int = 0) -> Problem:
    """Two tensors of 10 bytes are made into 4 bytes each, which the last operation reads."""
    builder = Builder()
    (wide,) = builder.op("wide", 1.0, [], (10,))
    (narrow,) = builder.op("narrow", 1.0, [wide], (4,))
    (other_wide,) = builder.op("other wide", 1.0, [], (10,))
    (other_narrow,) = builder.op("other narrow", 1.0, [other_wide], (4,))
    builder.op("both", 1.0, [narrow, other_narrow], (1,))
    problem = builder.problem("two branches")
    ops = tuple(replace(op, workspace_bytes=workspace_bytes) for op in problem.ops)
    return replace(problem, ops=ops)


def pyramid(height: int) -> Problem:
    """Rows of tensors of 1 byte, each made of its two neighbours in the row before; one at the top."""
    builder = Builder()
    row = [builder.op(f"0.{i}", 1.0, [], (1,))[0] for i in range(height + 1)]
    for level in range(1, height + 1):
        row = [
            builder.op(f"{level}.{i}", 1.0, [row[i], row[i + 1]], (1,))[0]
            for i in range(len(row) - 1)
        ]
    return builder.problem("pyramid")


@settings(max_examples=75, deadline=None)
@given(problem=tiny, again=st.booleans(), max_sets=st.sampled_from([1, 8, 40, 2_000]))
def test_no_schedule_has_a_lower_peak(problem, again, max_sets):
    problem = all_again(problem) if again else problem
    bound, where = unmaking_bound(problem, max_sets=max_sets)
    assert min_peak_bound(problem)[0] <= bound <= least_of_all(problem)
    assert 0 <= where < len(problem.ops)


@settings(max_examples=100, deadline=None)
@given(problem=tiny, share=st.floats(0, 1.2), max_sets=st.sampled_from([8, 2_000]))
def test_a_capacity_that_is_exceeded_is_impossible(problem, share, max_sets):
    capacity = int(share * peak_of(problem, range(len(problem.ops))))
    bound, _ = unmaking_bound(problem, max_sets=max_sets, capacity_bytes=capacity)
    assert min_peak_bound(problem)[0] <= bound <= least_of_all(problem)


@settings(max_examples=25, deadline=None)
@given(problem=problems(swaps=False), again=st.booleans())
def test_no_plan_that_is_found_has_a_lower_peak(problem, again):
    problem = all_again(problem) if again else problem
    bound, _ = unmaking_bound(problem)
    found, proved = min_peak(problem, time_limit_s=0.2)
    assert bound <= found.peak_bytes
    assert proved <= found.peak_bytes


@settings(max_examples=50, deadline=None)
@given(problem=problems())
def test_with_copies_or_without_second_runs_it_is_that_of_single_operations(problem):
    assert unmaking_bound(problem) == min_peak_bound(problem)
    once = replace(problem.without_swaps(), allow_recompute=False)
    assert unmaking_bound(once) == min_peak_bound(once)
    assert unmaking_bound(problem.without_swaps(), max_sets=0) == min_peak_bound(problem)


def test_one_branch_waits_while_the_other_is_made():
    # 4 bytes of one branch beside 10 + 4 of the other, whichever comes last; alone, 10 + 4
    problem = two_branches()
    assert min_peak_bound(problem) == (14, 1)
    assert unmaking_bound(problem) == (18, 4)
    assert least_of_all(problem) == 18
    assert unmaking_bound(two_branches(workspace_bytes=3)) == (21, 4)


def test_what_stays_counts_beside_the_game():
    # an output of 100 bytes, made before all else, by an operation that nothing reads
    problem = two_branches()
    builder = Builder()
    (_,) = builder.op("output", 1.0, [], (100,))
    later = [
        replace(
            op,
            inputs=tuple(t + 1 for t in op.inputs),
            outputs=tuple(t + 1 for t in op.outputs),
        )
        for op in problem.ops
    ]
    output = replace(builder.problem("").tensors[0], to_end=True)
    moved = [
        replace(t, producer=t.producer + 1, uses=tuple(u + 1 for u in t.uses))
        for t in problem.tensors
    ]
    problem = replace(
        problem, ops=(*builder.ops, *later), tensors=(output, *moved), capacity_bytes=1 << 40
    )
    assert unmaking_bound(problem) == (118, 5)
    assert least_of_all(problem) == 118
    # once it may not run again, and is read at the end, it stays as well
    first = replace(problem.ops[0], recomputable=False)
    last = replace(problem.ops[5], inputs=(0, *problem.ops[5].inputs))
    read = replace(output, to_end=False, uses=(5,))
    problem = replace(
        problem,
        ops=(first, *problem.ops[1:5], last),
        tensors=(read, *problem.tensors[1:]),
    )
    assert unmaking_bound(problem) == (118, 5)
    assert least_of_all(problem) == 118


@pytest.mark.parametrize("height", [1, 2, 4, 6])
def test_a_pyramid_takes_as_many_pebbles_as_is_known(height):
    # Cook 1974: height + 2, where a pebble is not slid from what is read to what is made
    assert unmaking_bound(pyramid(height))[0] == height + 2
    assert min_peak_bound(pyramid(height))[0] == 3


def test_a_budget_below_it_is_impossible_and_nothing_is_searched_for():
    problem = two_branches()
    search = SearchSettings(limit_s=20.0)
    below = solve(at_capacity(problem, 17), search)
    assert below.candidate is None
    assert below.is_impossible
    assert not below.engines
    assert not solve(at_capacity(problem, 18), search).is_impossible


@given(height=st.integers(3, 6), spare=st.integers(-3, 3))
@settings(max_examples=20, deadline=None)
def test_with_a_capacity_the_search_ends_as_soon_as_that_is_exceeded(height, spare):
    capacity = height + 2 + spare
    bound, _ = unmaking_bound(pyramid(height), capacity_bytes=capacity)
    assert (bound > capacity) == (spare < 0)
