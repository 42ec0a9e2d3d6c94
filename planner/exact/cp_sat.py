"""The exact engine's variants as engines of the portfolio."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from planner.exact.passes import parted
from planner.exact.policy import ExactPolicy
from planner.plan.candidate import Candidate
from planner.plan.problem import Action, Problem
from planner.search.engine import Engine
from planner.search.state import SearchState
from planner.search.stop import Stop
from planner.simulate.simulate import candidate_of


@dataclass(frozen=True, slots=True, kw_only=True)
class _InParts(ExactPolicy, Engine):
    """Base of the engines that solve parts of a plan.

    Attributes (besides those of `ExactPolicy`):
        max_ops: on larger problems a part takes longer to set up than to solve.
        min_s: least time left, in seconds, with which it starts.
    """

    max_ops: int = 5_000
    min_s: float = 1.0

    def supports(self, problem: Problem) -> bool:
        """Tell whether copies and operations share one stream, and the problem is small enough."""
        return not problem.overlap and len(problem.ops) <= self.max_ops

    def _improve_from(
        self,
        plan: Candidate,
        state: SearchState,
        stop: Stop,
        *,
        asked: Callable[[], bool],
        bound_us: float = 0.0,
    ) -> None:
        """Offer each better plan that fits, starting from one that may not.

        `asked` and `bound_us` end it, too.
        """
        from planner.exact.local_search import Watch, improve_locally  # the import takes a second

        start = parted(state.problem, plan.actions)
        improve_locally(
            start.problem,
            start.actions,
            replace(state.settings, limit_s=stop.left_s),
            watch=Watch(
                bound_us=bound_us,
                stop=asked,
                on_plan=lambda actions: _offer(state, start.as_given(actions)),
            ),
            policy=self,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CpSat(_InParts):
    """CP-SAT on parts of the best plan, and on the whole of a small problem."""

    name: ClassVar[str] = "cp-sat"

    def run(self, state: SearchState, stop: Stop) -> None:
        """Offer better plans as they are found, and a bound if the whole was solved.

        It starts again as long as it finds any.
        """
        while not state.is_settled and stop.left_s >= self.min_s:
            before = state.best
            self._improve(state, stop)
            if state.best is before or before is None:
                break

    def _improve(self, state: SearchState, stop: Stop) -> None:
        # the import takes a second
        from planner.exact.engine import BOUND_CLASS, solve_exact
        from planner.exact.local_search import Watch

        problem = state.problem
        found = solve_exact(
            problem,
            state.best or state.evaluator.base,
            replace(state.settings, limit_s=stop.left_s),
            upper_us=state.best.time_us if state.best else float("inf"),
            watch=Watch(
                bound_us=state.bound_us,
                stop=lambda: _is_over(state, stop),
                on_plan=lambda actions: _offer(state, actions),
            ),
            policy=self,
        )
        state.prove(found.bound_us - problem.base_duration_us, BOUND_CLASS)
        state.offer(found.candidate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mend(_InParts):
    """Repair, part by part, of a plan for more memory."""

    name: ClassVar[str] = "mend"

    def run(self, state: SearchState, stop: Stop) -> None:
        """Offer the first plan that fits."""
        if state.near is None or state.best is not None or state.is_settled:
            return
        self._improve_from(
            state.near, state, stop, asked=lambda: state.best is not None or stop.left_s <= 0
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts(_InParts):
    """CP-SAT on parts of the best plan."""

    name: ClassVar[str] = "parts"

    def run(self, state: SearchState, stop: Stop) -> None:
        """Offer each better plan."""
        if state.best is None or state.is_settled or stop.left_s < self.min_s:
            return
        self._improve_from(
            state.best,
            state,
            stop,
            asked=lambda: _is_over(state, stop),
            bound_us=state.bound_us,
        )


def _is_over(state: SearchState, stop: Stop) -> bool:
    return state.is_settled or stop.left_s <= 0


def _offer(state: SearchState, actions: list[Action]) -> None:
    state.offer(candidate_of(state.problem, actions))
