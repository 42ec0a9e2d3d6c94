"""The exact engine: improve a plan part by part, then solve the whole problem if it is small.

The parts are those of `planner.exact.local_search`. The whole is one `PartModel` that frees, in
every stage, every run that a better plan may contain: a run whose own time, together with that of
the runs without which it is useless, is at most the time that the incumbent adds.

An optimum of it is an optimum over all schedules that first run the operations in this order and,
between two of these, run others again in this order, each at most once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from ortools.sat.python import cp_model

from planner import clock
from planner.exact.local_search import (
    SOLVED,
    UNWATCHED,
    Watch,
    improve_locally,
    new_solver,
    run_solver,
)
from planner.exact.part import PartModel
from planner.exact.passes import parted
from planner.exact.policy import EXACT, ExactPolicy
from planner.plan.candidate import Candidate
from planner.plan.problem import Action, Problem
from planner.plan.stages import (
    MemoryProfile,
    Run,
    StageSchedule,
    actions_of,
    latest,
    may_swap,
    stage_schedule,
)
from planner.search.state import SearchSettings
from planner.simulate.simulate import candidate_of, simulate

BOUND_CLASS = (
    "schedules that first run the operations in this base order, and between two of these run "
    "others again in this order, each at most once"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """The result of the exact engine.

    Attributes:
        candidate: the best plan found; if none fits, the one with the least peak.
        optimal: no schedule that the module's model covers takes less time.
        bound_us: no such schedule takes less time than this; the base duration if the whole was not
            solved.
    """

    candidate: Candidate
    optimal: bool
    bound_us: float


def solve_exact(
    problem: Problem,
    incumbent: Candidate,
    settings: SearchSettings,
    *,
    upper_us: float = float("inf"),
    watch: Watch = UNWATCHED,
    policy: ExactPolicy = EXACT,
) -> Exact:
    """Improve `incumbent`, a plan whose copies and operations share one stream.

    Args:
        upper_us: time of a known plan: if the incumbent does not fit, only plans that take no more are
            searched for.
        watch: its bound is one on every plan (from `planner.bound.lp`).
        policy: shares of the time, and sizes of parts and of the whole.
    """
    start = parted(problem, incumbent.actions)

    def on_plan(actions: list[Action]) -> None:
        watch.on_plan(start.as_given(actions))

    found = _solve_in_parts(
        start.problem,
        start.actions,
        settings,
        upper_us=upper_us,
        watch=replace(watch, on_plan=on_plan),
        policy=policy,
    )
    candidate = candidate_of(problem, start.as_given(found.candidate.actions))
    return replace(found, candidate=candidate)


def _solve_in_parts(
    problem: Problem,
    actions: list[Action],
    settings: SearchSettings,
    *,
    upper_us: float,
    watch: Watch,
    policy: ExactPolicy,
) -> Exact:
    """Run `solve_exact` with stages of one pass."""
    deadline = clock.now() + settings.limit_s

    def improve(share: float) -> None:
        nonlocal actions
        limits = replace(settings, limit_s=share * (deadline - clock.now()))
        actions, _ = improve_locally(problem, actions, limits, watch=watch, policy=policy)

    whole = _whole(problem, actions, upper_us, policy)
    if whole is not None and len(whole) > policy.at_once_runs:
        fits = simulate(problem, actions).peak_bytes <= problem.capacity_bytes
        improve(policy.parts_share if fits else policy.fit_share)
        whole = _whole(problem, actions, upper_us, policy)
    if whole is None or len(whole) > policy.whole_runs:
        improve(1.0)
        whole = None
    if whole is None or watch.stop():
        return _exact(problem, actions)
    left = max(policy.whole_s, deadline - clock.now())
    solver = new_solver(seed=settings.seed, time_limit_s=left)
    return _with_whole(problem, actions, whole, watch.bound_us, solver)


def _exact(problem: Problem, actions: Sequence[Action]) -> Exact:
    """Return a plan without any proof."""
    return Exact(
        candidate=candidate_of(problem, list(actions)),
        optimal=False,
        bound_us=problem.base_duration_us,
    )


def _with_whole(
    problem: Problem,
    actions: Sequence[Action],
    whole: set[Run],
    lower_bound_us: float,
    solver: cp_model.CpSolver,
) -> Exact:
    """Solve the whole, and return the plan or the solver's, whichever is better."""
    given = _exact(problem, actions)
    fits = given.candidate.peak_bytes <= problem.capacity_bytes
    if fits and given.candidate.time_us <= lower_bound_us * (1 + 1e-9):
        return given
    plan = stage_schedule(problem, actions)
    found = solve_whole(problem, plan, whole, lower_bound_us=lower_bound_us, solver=solver)
    if found is None:
        return given
    plan, optimal, bound_us = found
    best = _exact(problem, actions_of(problem, plan)).candidate
    is_better = not fits or best.time_us <= given.candidate.time_us
    if best.peak_bytes > problem.capacity_bytes or not is_better:
        best = given.candidate
    return Exact(candidate=best, optimal=optimal, bound_us=bound_us)


def _whole(
    problem: Problem, actions: Sequence[Action], upper_bound_us: float, policy: ExactPolicy
) -> set[Run] | None:
    if len(problem.ops) > policy.whole_ops:
        return None
    replay = simulate(problem, actions)
    if replay.peak_bytes <= problem.capacity_bytes:
        upper_bound_us = min(upper_bound_us, replay.time_us)
    return whole_of(problem, upper_bound_us - problem.base_duration_us)


def whole_of(problem: Problem, budget_us: float) -> set[Run]:
    """Return every run that a plan adding at most `budget_us` to the base order may contain.

    A run serves a base operation, or another such run, and all of these together are within the
    budget.
    """
    count = len(problem.ops)
    runs: set[Run] = set()
    if not problem.allow_recompute:
        return runs
    least_us: list[npt.NDArray[np.float64]] = [np.empty(0)] * count
    for m in range(
        count - 1, -1, -1
    ):  # least_us[m][q]: m in stage q, and the runs that make it useful
        op = problem.ops[m]
        needed = np.full(count, np.inf)
        if op.recomputable:
            uses = {u for t in op.outputs for u in problem.tensors[t].uses}
            for u in uses:
                np.minimum(needed, least_us[u], out=needed)
            needed[: max(uses, default=-1) + 1] = 0.0
            needed += op.duration_us
            within = np.flatnonzero(needed[m + 1 :] <= budget_us * (1 + 1e-9)) + m + 1
            runs.update((q, m) for q in within.tolist())
        least_us[m] = needed
    return runs


def solve_whole(
    problem: Problem,
    plan: StageSchedule,
    runs: set[Run],
    *,
    lower_bound_us: float,
    solver: cp_model.CpSolver,
) -> tuple[StageSchedule, bool, float] | None:
    """Solve with `runs` free, and every tensor that may be swapped.

    Returns the plan, whether it is optimal, and a bound in microseconds; None if nothing was found
    in time.
    """
    plan = latest(problem, plan)
    swapped = [t for t in range(len(problem.tensors)) if may_swap(problem, t)]
    model = PartModel(
        problem,
        MemoryProfile(problem, plan),
        runs | plan.reruns,
        tensors=swapped if problem.allow_swap else (),
    )
    model.add_bound(lower_bound_us)
    model.add_latest()
    status = run_solver(solver, model.cp)
    if status not in SOLVED:
        return None
    return model.plan_of(solver), status == cp_model.OPTIMAL, model.bound_us(solver)
