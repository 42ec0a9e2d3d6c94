"""The integer programs by stretches, beside the search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from planner.plan.problem import Problem
from planner.search import interval_search
from planner.search.interval_search import IntervalSearch
from planner.search.state import SearchState
from planner.search.stop import Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalPrograms:
    """Starts the programs on a thread, and waits for them for a while.

    They go on beside the engines that follow, until the search is over.

    Attributes:
        wait_gap: they are not waited for where the best plan is farther than that from its bound.
    """

    name: ClassVar[str] = interval_search.NAME
    wait_gap: float = 0.05

    def supports(self, problem: Problem) -> bool:
        """Where nothing runs beside the operations; they cover no copies at all."""
        return IntervalSearch.covers(problem)

    def run(self, state: SearchState, stop: Stop) -> None:
        """Begin around the instants of the LP, and take what is found until `stop`."""
        if state.is_settled or state.intervals is not None:
            return
        state.intervals = IntervalSearch(state.problem, state.instants)
        state.intervals.run_beside(state.began + state.settings.limit_s)
        if state.best is None or state.is_within(self.wait_gap):
            state.intervals.wait(state, stop)
