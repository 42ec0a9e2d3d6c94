"""The exact engine as one of the portfolio's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from planner.exact.policy import ExactPolicy
from planner.plan.problem import Problem
from planner.search.engines.second_runs import AnnealRuns, Regress
from planner.search.state import SearchState
from planner.search.stop import First, Stop, after

_ANNEALED = (AnnealRuns.name, Regress.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class CpSat(ExactPolicy):
    """Parts of the best plan by constraint programming, and the whole where it is small.

    Attributes (besides those of `ExactPolicy`):
        max_ops: on larger problems a part takes longer to set up than to solve.
        far_gap: from a plan farther than that from its bound, unless it is annealed, parts take longer to
            undo what it does than to make one fit that is about as fast as any, or the base order.
        min_s: with less time left it does not begin.
        repair_s: for plans of the programs beside that do not fit, each time that there are any.
    """

    name: ClassVar[str] = "cp-sat"
    max_ops: int = 5_000
    far_gap: float = 0.05
    min_s: float = 1.0
    repair_s: float = 1.0

    def supports(self, problem: Problem) -> bool:
        """Where copies and operations share one stream."""
        return not problem.overlap and len(problem.ops) <= self.max_ops

    def run(self, state: SearchState, stop: Stop) -> None:
        """Offer an improved plan, and a bound where the whole was solved."""
        from planner.exact.engine import BOUND_CLASS, Bounds, solve_exact  # a second to import

        problem, beside = state.problem, state.intervals

        def take_from_beside() -> None:
            if beside is not None:
                beside.give(state, First((stop, after(self.repair_s))))

        take_from_beside()
        if state.is_settled or stop.left_s < self.min_s:
            return
        nearest = None
        if beside is not None:
            nearest = beside.nearest
            if state.best is None:
                beside.stop()  # a plan is worth more than its bound
        shares_cores = beside is not None and beside.is_running and state.best is not None
        workers = state.settings.workers

        def is_settled() -> bool:
            take_from_beside()
            return state.is_settled

        near = None
        if state.is_within(self.far_gap) or state.engine in _ANNEALED:
            near = state.best
        found = solve_exact(
            problem,
            near or nearest or state.evaluator.base,
            replace(
                state.settings,
                limit_s=stop.left_s,
                workers=max(1, (workers or 2) - 1) if shares_cores else workers,
            ),
            bounds=Bounds(
                lower_us=state.bound_us,
                upper_us=state.best.time_us if state.best else float("inf"),
            ),
            stop=is_settled,
            policy=self,
        )
        if found is not None:
            state.prove(found.bound_us - problem.base_duration_us, BOUND_CLASS)
            state.offer(found.candidate)
