"""Improve a plan part by part: free some runs, solve for them, keep better plans.

Each round solves a `PartModel` of a few hundred free runs (large neighbourhood search; Shaw, "Using
Constraint Programming and Local Search Methods to Solve Vehicle Routing Problems", CP 1998). Kinds
of neighbourhoods that helped more often per unit of work are drawn more often; parts grow while
they are solved to optimality and shrink otherwise.

A plan that does not fit is improved at a price for each byte above the capacity. The price rises
each round, so that cheap relief comes first.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

from planner import clock
from planner.exact.neighbourhoods import Neighbourhood, Neighbourhoods
from planner.exact.part import PartModel
from planner.exact.policy import EXACT, ExactPolicy
from planner.plan.problem import Action, Problem
from planner.plan.stages import (
    MemoryProfile,
    StageSchedule,
    actions_of,
    added_us,
    base_plan,
    stage_schedule,
)
from planner.processes.interrupt import interruptibly
from planner.search.state import SearchSettings
from planner.simulate.simulate import simulate

SOLVED = (cp_model.OPTIMAL, cp_model.FEASIBLE)


def new_solver(*, seed: int, time_limit_s: float) -> cp_model.CpSolver:
    """Make a solver, of one thread, for models whose LP relaxation proves them.

    The solver's own handler of Ctrl-C is off: it would end the search and carry on with its result.
    """
    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.linearization_level = 2
    parameters.random_seed = seed
    parameters.num_workers = 1
    if clock.is_counted():
        parameters.max_deterministic_time = time_limit_s / clock.SOLVER_S
    if (seconds := clock.machine_s(time_limit_s)) < math.inf:
        parameters.max_time_in_seconds = seconds
    parameters.catch_sigint_signal = False
    return solver


def run_solver(solver: cp_model.CpSolver, model: cp_model.CpModel) -> cp_model.CpSolverStatus:
    """Solve a model, count the work, and return the status; Ctrl-C ends it at once."""
    status = interruptibly(lambda: solver.solve(model), stop=solver.stop_search)
    clock.spend(clock.SOLVER_S * solver.response_proto.deterministic_time)
    return status


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Conditions that end a search, besides the time limit, and the receiver of its plans.

    Attributes:
        bound_us: a plan that fits takes no more time than this.
        stop: asked between rounds whether to end.
        on_plan: called with each better plan that fits.
    """

    bound_us: float = 0.0
    stop: Callable[[], bool] = lambda: False
    on_plan: Callable[[list[Action]], None] = lambda _: None


UNWATCHED = Watch()


def improve_locally(
    problem: Problem,
    actions: Sequence[Action],
    settings: SearchSettings,
    *,
    watch: Watch = UNWATCHED,
    policy: ExactPolicy = EXACT,
) -> tuple[list[Action], int]:
    """Improve a schedule whose base operations run in base order, on one stream.

    A schedule that does not fit is first made to fit; `actions` may simply run every operation
    once. The plans found depend only on the seed, but the time limit decides the number of rounds.

    Args:
        policy: sizes of parts, and prices.

    Returns:
        The best schedule, `actions` unless one is better, and the number of rounds. One that fits is
        better than one that does not, then less excess, then less time.
    """
    best = list(actions)
    replay = simulate(problem, best)
    if problem.overlap or not (problem.allow_recompute or problem.allow_swap):
        return best, 0
    if MemoryProfile(problem, base_plan()).peak_bytes <= problem.capacity_bytes:
        return actions_of(problem, base_plan()), 0
    search = _LocalSearch(problem, stage_schedule(problem, actions), settings.seed, policy)
    search.run(clock.now() + settings.limit_s, watch)
    found = actions_of(problem, search.plan)
    after = simulate(problem, found)
    fits = replay.peak_bytes <= problem.capacity_bytes
    if after.peak_bytes > problem.capacity_bytes:
        better = not fits and after.peak_bytes < replay.peak_bytes
    else:
        better = not fits or after.time_us < replay.time_us
    return (found if better else best), search.rounds


@dataclass(slots=True)
class _Part:
    """A neighbourhood being solved."""

    kind: Neighbourhood
    model: PartModel
    solver: cp_model.CpSolver


class _LocalSearch:
    def __init__(
        self, problem: Problem, plan: StageSchedule, seed: int, policy: ExactPolicy
    ) -> None:
        self.problem = problem
        self.policy = policy
        self.draw = random.Random(seed)
        self.neighbourhoods = Neighbourhoods(problem)
        self._set(MemoryProfile(problem, plan))
        capacity = problem.capacity_bytes
        self.price = policy.first_price_factor * capacity / max(1, self.excess)
        self.size = dict.fromkeys(Neighbourhood, float(policy.part_runs))
        self.gain = dict.fromkeys(Neighbourhood, 1.0)
        self.work = dict.fromkeys(Neighbourhood, 0.1 * policy.round_work)
        self.rounds = self.idle = 0

    @property
    def plan(self) -> StageSchedule:
        """The best plan."""
        return self.held.plan

    def _set(self, held: MemoryProfile) -> None:
        self.held = held
        self.added_us = added_us(self.problem, held.plan)
        self.excess = held.excess(self.problem.capacity_bytes)

    def _merit(self, excess: int, added: float) -> tuple[float, float]:
        """Return the sort key of a plan; less is better. A plan that fits beats all that do not."""
        if not self.excess:
            return (float(excess), added)
        base = self.problem.base_duration_us or 1.0
        if not excess:
            return (0.0, added)
        return (1.0, added / base + self.price * excess / self.problem.capacity_bytes)

    def run(self, deadline: float, watch: Watch) -> None:
        """Run rounds until the deadline, or until `watch` ends them."""
        base_us, fastest_us = self.problem.base_duration_us, watch.bound_us * (1 + 1e-9)
        while self.excess or base_us + self.added_us > fastest_us:
            if watch.stop() or clock.now() >= deadline:
                return
            part = self._part(deadline)
            if part is None:
                return
            status = run_solver(part.solver, part.model.cp)
            self.rounds += 1
            if self._take(part, status) and not self.excess:
                watch.on_plan(actions_of(self.problem, self.plan))

    def _part(self, deadline: float) -> _Part | None:
        """Build the next neighbourhood's model; None if nothing can be freed."""
        for _ in range(20):
            kind = self.draw.choices(
                list(Neighbourhood), [self.gain[k] / self.work[k] for k in Neighbourhood]
            )[0]
            stages = self.draw.choice(self.policy.part_stages)
            free = self.neighbourhoods.choose(
                self.held, kind, int(self.size[kind]), stages, self.draw
            )
            if len(free):
                break
        else:
            return None
        clock.spend(clock.PART_S)
        price = self.price if self.excess else None
        model = PartModel(self.problem, self.held, free.runs, tensors=free.tensors, price=price)
        solver = new_solver(
            seed=self.draw.randrange(1 << 30),
            time_limit_s=max(0.05, deadline - clock.now()),
        )
        solver.parameters.cp_model_presolve = (
            False  # presolving takes longer than solving such a model
        )
        solver.parameters.max_deterministic_time = self.policy.round_work
        return _Part(kind, model, solver)

    def _take(self, part: _Part, status: cp_model.CpSolverStatus) -> bool:
        """Take over a round's result if it is no worse; return whether it is better."""
        kind, policy = part.kind, self.policy
        optimal = status == cp_model.OPTIMAL
        improved = status in SOLVED and self._take_plan(part.model.plan_of(part.solver))
        used = part.solver.response_proto.deterministic_time
        if not optimal:
            self.size[kind] = max(0.75 * self.size[kind], policy.min_part_runs)
        elif used < policy.round_work / 3:
            self.size[kind] = min(1.15 * self.size[kind], policy.max_part_runs)
        self.gain[kind] = max(0.1, 0.85 * self.gain[kind] + 0.15 * improved)
        self.work[kind] = max(0.1 * policy.round_work, 0.85 * self.work[kind] + 0.15 * used)
        self.idle = 0 if improved else self.idle + 1
        if self.excess:
            rise = policy.price_factor if self.idle < policy.price_patience else 2.0
            self.price = min(rise * self.price, policy.max_price)
            self.idle %= policy.price_patience
        return improved

    def _take_plan(self, plan: StageSchedule) -> bool:
        if plan == self.plan:
            return False
        held = MemoryProfile(self.problem, plan)
        excess = held.excess(self.problem.capacity_bytes)
        added = added_us(self.problem, plan)
        now = self._merit(self.excess, self.added_us)
        then = self._merit(excess, added)
        if then > now:
            return False
        self._set(held)
        return then < now
