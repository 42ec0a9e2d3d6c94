"""The integer programs over intervals, beside the search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from planner.plan.problem import Problem
from planner.search.engine import Engine
from planner.search.program import interval_search
from planner.search.program.interval_search import IntervalSearch
from planner.search.state import SearchState
from planner.search.stop import Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalPrograms(Engine):
    """Start of the programs on a thread, beside the later engines, until the search is over."""

    name: ClassVar[str] = interval_search.NAME

    def supports(self, problem: Problem) -> bool:
        """Tell whether the programs cover the problem: no overlap, and no copies at all."""
        return IntervalSearch.covers(problem)

    def run(self, state: SearchState, stop: Stop) -> None:
        """Start the programs around the instants of the LP."""
        if not state.is_settled and state.intervals is None:
            state.intervals = IntervalSearch(state.problem, state.instants)
            state.intervals.run_beside(state.began + state.settings.limit_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitPrograms(Engine):
    """A wait for the programs, whose plans are better than those found meanwhile."""

    name: ClassVar[str] = "await-programs"

    def supports(self, problem: Problem) -> bool:
        """Tell whether the programs cover the problem."""
        return IntervalSearch.covers(problem)

    def run(self, state: SearchState, stop: Stop) -> None:
        """Take the programs' results until `stop`."""
        if state.intervals is not None:
            state.intervals.wait(state, stop)
