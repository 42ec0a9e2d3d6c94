"""The published methods: valid plans, and the same optimum as planner's exact engine."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.plan.cpsat import solve_exact
from planner.plan.cuts import least_peak_bound
from planner.plan.execute import Decisions
from planner.plan.improve import Improver
from planner.plan.problem import PlanOp, PlanTensor, Problem
from planner.plan.simulate import simulate
from reports.solver.baselines.checkmate_ilp import solve_checkmate
from reports.solver.baselines.moccasin_cp import solve_moccasin
from reports.solver.baselines.outcome import Outcome
from reports.solver.build import Builder, base_actions, base_peak
from tests.graphs import at_capacity, problems

ROUNDING = 1e-5
FEW = settings(max_examples=25, deadline=None)
shares = st.floats(0, 1)


def as_checkmate_has_it(problem: Problem) -> Problem:
    """Nothing in place; what makes an output runs once."""

    def stays(op: PlanOp) -> bool:
        return any(problem.tensors[t].to_end for t in op.outputs)

    ops = (
        replace(op, inplace=(), recomputable=op.recomputable and not stays(op))
        for op in problem.ops
    )
    return replace(problem, ops=tuple(ops))


def between(problem: Problem, share: float) -> Problem:
    low, high = least_peak_bound(problem)[0], base_peak(problem)
    return at_capacity(problem, low + int(share * (high - low)))


def confirm(problem: Problem, found: Outcome) -> None:
    """The plan does what the model says."""
    assert found.actions is not None
    replay = simulate(problem, found.actions)
    assert found.fits
    assert replay.peak_bytes <= problem.capacity_bytes
    assert replay.time_us == pytest.approx(found.time_us)
    if found.bound_us is not None:
        assert found.bound_us <= replay.time_us * (1 + ROUNDING)


@FEW
@given(problem=problems(max_ops=9, swaps=False), share=shares)
def test_checkmate_and_the_exact_engine_find_the_same_optimum(problem: Problem, share: float):
    problem = between(as_checkmate_has_it(problem), share)
    found = solve_checkmate(problem, time_limit_s=20.0)
    improver = Improver(problem, deadline=float("inf"))
    incumbent = improver.repair(improver.evaluate(Decisions()))
    if found.actions is None:
        assert not improver.fits(incumbent)
        return
    confirm(problem, found)
    assume(improver.fits(incumbent))
    exact = solve_exact(problem, incumbent, time_limit_s=20.0, seed=1, workers=1)
    assert exact is not None
    assert found.optimal
    assert exact.optimal
    assert exact.candidate.time_us == pytest.approx(found.time_us, rel=ROUNDING)


def dag(seed: int, count: int) -> Problem:
    """A random graph, forward and back, one tensor an operation, whole durations."""
    draw = random.Random(seed)
    builder = Builder()
    for i in range(count):
        reads = {i - 1} if i else set()
        if i > count // 2:
            reads.add(count - 1 - i)
        elif i > 2 and draw.random() < 0.4:
            reads.add(draw.randrange(i - 1))
        builder.op(f"op{i}", draw.randint(1, 9), sorted(reads), (draw.randint(1, 20),))
    return builder.problem("random")


@pytest.mark.parametrize("seed", range(4))
def test_moccasin_finds_valid_plans_no_better_than_checkmate(seed: int):
    problem = dag(seed, 16)
    problem = between(problem, 0.5)
    checkmate = solve_checkmate(problem, time_limit_s=60.0)
    moccasin = solve_moccasin(problem, time_limit_s=60.0)
    confirm(problem, checkmate)
    confirm(problem, moccasin)
    assert checkmate.optimal
    assert moccasin.optimal
    assert checkmate.time_us is not None
    assert moccasin.time_us is not None
    # two intervals a node are a part of what stages allow
    assert moccasin.time_us >= checkmate.time_us * (1 - ROUNDING)
    assert moccasin.time_us > problem.base_duration_us


def test_at_the_base_peak_nothing_is_added():
    problem = dag(0, 16)
    for found in (
        solve_checkmate(problem, time_limit_s=20.0),
        solve_moccasin(problem, time_limit_s=20.0),
    ):
        confirm(problem, found)
        assert found.actions == tuple(base_actions(problem))
        assert found.optimal


def test_below_the_bound_no_plan_is_claimed():
    problem = dag(0, 16)
    problem = at_capacity(problem, least_peak_bound(problem)[0] - 1)
    for found in (
        solve_checkmate(problem, time_limit_s=20.0),
        solve_moccasin(problem, time_limit_s=20.0),
    ):
        assert found.actions is None
        assert not found.fits
        assert not found.optimal


def test_what_may_not_run_again_does_not():
    problem = dag(1, 16)
    problem = replace(
        problem, ops=tuple(replace(op, recomputable=i != 3) for i, op in enumerate(problem.ops))
    )
    problem = between(problem, 0.7)
    for found in (
        solve_checkmate(problem, time_limit_s=20.0),
        solve_moccasin(problem, time_limit_s=20.0),
    ):
        confirm(problem, found)  # the simulator refuses a second run of these


def test_outputs_stay():
    problem = dag(2, 16)
    tensors: list[PlanTensor] = list(problem.tensors)
    tensors[4] = replace(tensors[4], to_end=True)
    problem = between(replace(problem, tensors=tuple(tensors)), 0.7)
    for found in (
        solve_checkmate(problem, time_limit_s=20.0),
        solve_moccasin(problem, time_limit_s=20.0),
    ):
        confirm(problem, found)


@pytest.mark.parametrize("change", [{"workspace_bytes": 8}, {"inplace": ((0, 1),)}])
def test_what_the_models_do_not_know_is_refused(change):
    problem = dag(0, 8)
    ops = (problem.ops[0], replace(problem.ops[1], **change), *problem.ops[2:])
    with pytest.raises(ValueError, match="knows"):
        solve_moccasin(replace(problem, ops=ops), time_limit_s=1.0)
    if "inplace" in change:
        with pytest.raises(ValueError, match="in place"):
            solve_checkmate(replace(problem, ops=ops), time_limit_s=1.0)
