"""The published methods: valid plans, and the same optimum as planner's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.bound.instants import min_peak_bound
from planner.plan.problem import Action, PlanOp, PlanTensor, Problem
from planner.portfolio.solve import solve
from planner.search.state import SearchSettings
from planner.simulate.simulate import simulate
from reports.solver.baselines.checkmate_ilp import solve_checkmate
from reports.solver.baselines.moccasin_cp import solve_moccasin
from reports.solver.baselines.outcome import Outcome
from reports.solver.build import base_actions
from reports.solver.synthetic import irregular
from tests.graphs import at_capacity, between, problems

ROUNDING = 1e-5
FEW = settings(max_examples=15, deadline=None)
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


def confirm(problem: Problem, found: Outcome) -> None:
    """The plan does what the model says."""
    assert found.actions is not None
    replay = simulate(problem, found.actions)
    assert found.fits
    assert replay.peak_bytes <= problem.capacity_bytes
    assert replay.time_us == pytest.approx(found.time_us)
    if found.bound_us is not None:
        assert found.bound_us <= replay.time_us * (1 + ROUNDING)


def beyond_stages(actions: Sequence[Action]) -> bool:
    """Whether operations run again or out of order between two first runs: Checkmate's stages, in
    which each operation runs at most once and in the given order, exclude both."""
    first: set[int] = set()
    latest = -1
    for action in actions:
        if action.target <= latest:
            return True
        latest = action.target
        if action.target not in first:
            first.add(action.target)
            latest = -1
    return False


@FEW
@given(problem=problems(max_ops=9, swaps=False), share=shares)
def test_planner_and_checkmate_find_the_same_optimum(problem: Problem, share: float):
    problem = between(as_checkmate_has_it(problem), share)
    theirs = solve_checkmate(problem, time_limit_s=20.0)
    ours = solve(problem, SearchSettings(limit_s=5.0, seed=1)).candidate
    if theirs.actions is None:
        assert ours is None or beyond_stages(ours.actions)
        return
    confirm(problem, theirs)
    assert theirs.optimal
    assume(ours is not None)  # planner may miss a plan at the least capacity
    assert ours is not None
    assert theirs.replay is not None
    best = theirs.replay.time_us
    assert ours.time_us <= best * (1 + ROUNDING)
    assert ours.time_us >= best * (1 - ROUNDING) or beyond_stages(ours.actions)


def test_a_program_that_presolve_calls_infeasible_is_solved_without_it():
    ends = [(1, (8,)), (5, (5,)), (6, (6,)), (7, (7,)), (8, (8,)), (9, ())]
    passing = [(2, (2,)), (3, (3,)), (4, (4,))]
    uses = {0: tuple(range(1, 8)), **dict(ends), **dict(passing)}
    kept = {i for i, _ in ends}
    inputs = [(), (0,), *((0, i) for i in range(2, 8)), (1, 8)]
    outputs = [(0,), (1, 2), *((i + 1,) for i in range(2, 9))]
    problem = Problem(
        name="a chain beside one tensor",
        ops=tuple(
            PlanOp(
                name=f"op{k}",
                duration_us=1.0,
                inputs=inputs[k],
                outputs=outputs[k],
                workspace_bytes=3 if k in (5, 7) else 0,
                recomputable=k == 0,
            )
            for k in range(9)
        ),
        tensors=tuple(
            PlanTensor(
                name=f"t{i}",
                bytes=1 if i else 6,
                producer=next(k for k in range(9) if i in outputs[k]),
                uses=uses[i],
                to_end=i in kept,
                swappable=False,
            )
            for i in range(10)
        ),
        fixed_bytes=5,
        capacity_bytes=19,
    )
    found = solve_checkmate(problem, time_limit_s=20.0)
    confirm(problem, found)
    assert found.optimal


@pytest.mark.parametrize("seed", range(2))
def test_moccasin_finds_valid_plans_no_better_than_checkmate(seed: int):
    problem = irregular(16, seed=seed)
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
    problem = irregular(16, seed=0)
    for found in (
        solve_checkmate(problem, time_limit_s=20.0),
        solve_moccasin(problem, time_limit_s=20.0),
    ):
        confirm(problem, found)
        assert found.actions == tuple(base_actions(problem))
        assert found.optimal


def test_below_the_bound_no_plan_is_claimed():
    problem = irregular(10, seed=0)
    problem = at_capacity(problem, min_peak_bound(problem)[0] - 1)
    for found in (
        solve_checkmate(problem, time_limit_s=20.0),
        solve_moccasin(problem, time_limit_s=20.0),
    ):
        assert found.actions is None
        assert not found.fits
        assert not found.optimal


def test_what_may_not_run_again_does_not():
    problem = irregular(16, seed=1)
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
    problem = irregular(16, seed=2)
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
    problem = irregular(8, seed=0)
    ops = (problem.ops[0], replace(problem.ops[1], **change), *problem.ops[2:])
    with pytest.raises(ValueError, match="knows"):
        solve_moccasin(replace(problem, ops=ops), time_limit_s=1.0)
    if "inplace" in change:
        with pytest.raises(ValueError, match="in place"):
            solve_checkmate(replace(problem, ops=ops), time_limit_s=1.0)
