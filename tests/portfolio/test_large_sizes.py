"""Bytes past 2^53, where a float no longer counts them one by one."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings

from planner.bound.instants import min_peak_bound
from planner.exact.engine import solve_exact
from planner.order.reorder import peak_of
from planner.plan.problem import OpIndex, PlanOp, PlanTensor, Problem, TensorIndex
from planner.portfolio.solve import solve
from planner.search.evaluate import Evaluator
from planner.search.improve import Improver
from planner.search.state import SearchSettings
from tests.graphs import problems

SCALE = (1 << 50) + 1


def scaled(problem: Problem) -> Problem:
    """The same problem with every size `SCALE` times as large."""
    return replace(
        problem,
        fixed_bytes=problem.fixed_bytes * SCALE,
        capacity_bytes=problem.capacity_bytes * SCALE,
        ops=tuple(replace(o, workspace_bytes=o.workspace_bytes * SCALE) for o in problem.ops),
        tensors=tuple(replace(t, bytes=t.bytes * SCALE) for t in problem.tensors),
    )


@settings(max_examples=50, deadline=None)
@given(problem=problems())
def test_peaks_and_bounds_are_exact(problem: Problem):
    problem = replace(problem, capacity_bytes=1 << 10)
    large = scaled(problem)
    everything = range(len(problem.ops))
    assert peak_of(large, everything) == SCALE * peak_of(problem, everything)
    assert min_peak_bound(large)[0] == SCALE * min_peak_bound(problem)[0]


def chain(length: int, *, overlap: bool) -> Problem:
    """A chain there and back again: the values made first are needed last."""
    ops, tensors = [], []
    for i in range(2 * length):
        back = () if i < length else (TensorIndex(2 * length - 1 - i),)
        before = () if i == 0 else (TensorIndex(i - 1),)
        inputs = tuple(dict.fromkeys((*before, *back)))
        ops.append(PlanOp(name=f"op{i}", duration_us=1.0, inputs=inputs, outputs=(TensorIndex(i),)))
        uses = [i + 1] if i + 1 < 2 * length else []
        uses += [2 * length - 1 - i] if i < length and 2 * length - 1 - i != i + 1 else []
        tensors.append(
            PlanTensor(
                name=f"t{i}",
                bytes=8,
                producer=OpIndex(i),
                uses=tuple(OpIndex(u) for u in sorted(uses)),
            )
        )
    return Problem(
        name="chain",
        ops=tuple(ops),
        tensors=tuple(tensors),
        fixed_bytes=0,
        capacity_bytes=8 * (length - 2),
        swap_out_bytes_per_s=1e9,
        swap_in_bytes_per_s=1e9,
        overlap=overlap,
    )


def test_a_plan_keeps_to_its_capacity_to_the_byte():
    problem = scaled(chain(6, overlap=False))
    solved = solve(problem, SearchSettings(limit_s=2))
    assert solved.candidate is not None
    peak = solved.candidate.replay.peak_bytes
    assert peak <= problem.capacity_bytes
    assert peak % SCALE == 0
    less = solve(replace(problem, capacity_bytes=peak - 1), SearchSettings(limit_s=2))
    assert less.candidate is None or less.candidate.replay.peak_bytes < peak


def test_the_exact_search_survives_copies_of_a_million_million_steps():
    """Their cost, as a share of the step, once did not fit 64 bits."""
    slow = replace(scaled(chain(6, overlap=False)), swap_in_bytes_per_s=10.0)
    improver = Improver(Evaluator(slow))
    found = solve_exact(slow, improver.repair(improver.evaluator.base), SearchSettings(limit_s=2))
    assert found.candidate.replay.peak_bytes <= slow.capacity_bytes
