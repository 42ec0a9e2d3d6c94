"""The integer programs by stretches, beside the search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from planner.plan.problem import Problem
from planner.search.program import interval_search
from planner.search.program.interval_search import IntervalSearch
from planner.search.state import SearchState
from planner.search.stop import Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalPrograms:
    """Starts the programs on a thread: they go on beside the engines that follow, until the search is
    over."""

    name: ClassVar[str] = interval_search.NAME

    def supports(self, problem: Problem) -> bool:
        """Where nothing runs beside the operations; they cover no copies at all."""
        return IntervalSearch.covers(problem)

    def run(self, state: SearchState, stop: Stop) -> None:
        """Begin around the instants of the LP."""
        if not state.is_settled and state.intervals is None:
            state.intervals = IntervalSearch(state.problem, state.instants)
            state.intervals.run_beside(state.began + state.settings.limit_s)


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
