"""The integer programs by stretches, beside the search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from planner.plan.problem import Problem
from planner.search import interval_search
from planner.search.interval_search import IntervalSearch
from planner.search.state import SearchState
from planner.search.stop import NEVER, At, Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalPrograms:
    """Starts the programs on a thread: they go on beside the engines that follow, until the search is
    over.

    Attributes:
        without_plan: share of the time after which none begins as long as nothing fits and a walk was
            begun: then, the walks have all cores.
    """

    name: ClassVar[str] = interval_search.NAME
    without_plan: float = 0.5

    def supports(self, problem: Problem) -> bool:
        """Where nothing runs beside the operations; they cover no copies at all."""
        return IntervalSearch.covers(problem)

    def run(self, state: SearchState, stop: Stop) -> None:
        """Begin around the instants of the LP."""
        if not state.is_settled and state.intervals is None:
            state.intervals = IntervalSearch(state.problem, state.instants)
            limit_s = state.settings.limit_s
            late = _WithoutPlan(state, At(state.began + self.without_plan * limit_s))
            until = late if state.walk is not None else NEVER
            state.intervals.run_beside(state.began + limit_s, until)


@dataclass(frozen=True, slots=True)
class _WithoutPlan:
    """Over where there is no plan when another criterion is."""

    state: SearchState
    stop: Stop

    @property
    def left_s(self) -> float:
        """What that leaves; no end once there is a plan."""
        return self.stop.left_s if self.state.best is None else float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitPrograms:
    """Waits for the programs beside for a while: what they find is better than what would be found
    meanwhile."""

    name: ClassVar[str] = "await-programs"

    def supports(self, problem: Problem) -> bool:
        """Where there are any."""
        return IntervalSearch.covers(problem)

    def run(self, state: SearchState, stop: Stop) -> None:
        """Take what is found until `stop`."""
        if state.intervals is not None:
            state.intervals.wait(state, stop)
