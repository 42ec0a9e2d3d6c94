"""The exact engine as one of the portfolio's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from planner.exact.passes import parted
from planner.exact.policy import ExactPolicy
from planner.plan.problem import Action, Problem
from planner.search.state import SearchState
from planner.search.stop import First, Stop, after
from planner.simulate.simulate import candidate_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CpSat(ExactPolicy):
    """Parts of the best plan by constraint programming, and the whole where it is small.

    Attributes (besides those of `ExactPolicy`):
        max_ops: on larger problems a part takes longer to set up than to solve.
        min_s: with less time left it does not begin.
        repair_s: for plans of the programs beside that do not fit, each time that there are any.
    """

    name: ClassVar[str] = "cp-sat"
    max_ops: int = 5_000
    min_s: float = 1.0
    repair_s: float = 1.0

    def supports(self, problem: Problem) -> bool:
        """Where copies and operations share one stream."""
        return not problem.overlap and len(problem.ops) <= self.max_ops

    def run(self, state: SearchState, stop: Stop) -> None:
        """Offer better plans as they are found, and a bound where the whole was solved. It begins again
        while that finds any."""
        take_from_beside(state, stop, self.repair_s)
        while not state.is_settled and stop.left_s >= self.min_s:
            before = state.best
            self._improve(state, stop)
            if state.best is before or before is None:
                break

    def _improve(self, state: SearchState, stop: Stop) -> None:
        from planner.exact.engine import (  # a second to import
            BOUND_CLASS,
            Bounds,
            Watch,
            solve_exact,
        )

        problem, beside = state.problem, state.intervals
        nearest = None
        if beside is not None:
            nearest = beside.nearest
            if state.best is None:
                beside.stop()  # a plan is worth more than its bound
        shares_cores = beside is not None and beside.is_running and state.best is not None
        workers = state.settings.workers

        def is_over() -> bool:
            take_from_beside(state, stop, self.repair_s)
            return state.is_settled or stop.left_s <= 0

        found = solve_exact(
            problem,
            state.best or nearest or state.evaluator.base,
            replace(
                state.settings,
                limit_s=stop.left_s,
                workers=max(1, (workers or 2) - 1) if shares_cores else workers,
            ),
            bounds=Bounds(
                lower_us=state.bound_us,
                upper_us=state.best.time_us if state.best else float("inf"),
            ),
            watch=Watch(
                stop=is_over,
                on_plan=lambda actions: _offer(state, actions),
            ),
            policy=self,
        )
        if found is not None:
            state.prove(found.bound_us - problem.base_duration_us, BOUND_CLASS)
            state.offer(found.candidate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts(ExactPolicy):
    """Parts of the best plan by constraint programming.

    Attributes (besides those of `ExactPolicy`):
        max_ops, min_s, repair_s: as of `CpSat`.
    """

    name: ClassVar[str] = "parts"
    max_ops: int = 5_000
    min_s: float = 1.0
    repair_s: float = 0.3

    def supports(self, problem: Problem) -> bool:
        """Where copies and operations share one stream."""
        return not problem.overlap and len(problem.ops) <= self.max_ops

    def run(self, state: SearchState, stop: Stop) -> None:
        """Offer each better plan."""
        if state.best is None or state.is_settled or stop.left_s < self.min_s:
            return
        from planner.exact.local_search import Until, improve_locally  # a second to import

        start = parted(state.problem, state.best.actions)

        def is_over() -> bool:
            take_from_beside(state, stop, self.repair_s)
            return state.is_settled or stop.left_s <= 0

        improve_locally(
            start.problem,
            start.actions,
            replace(state.settings, limit_s=stop.left_s, workers=state.settings.workers or 2),
            until=Until(bound_us=state.bound_us, asked=is_over),
            on_plan=lambda actions: _offer(state, start.as_given(actions)),
            policy=self,
        )


def take_from_beside(state: SearchState, stop: Stop, repair_s: float) -> None:
    """Offer what the programs beside have come to.

    Args:
        repair_s: seconds for plans of theirs that do not fit.
    """
    if state.intervals is not None:
        state.intervals.give(state, First((stop, after(repair_s))))


def _offer(state: SearchState, actions: list[Action]) -> None:
    state.offer(candidate_of(state.problem, actions))
