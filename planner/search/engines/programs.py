"""Linear and integer programs as engines: plans rounded from them, and bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from planner.plan.problem import Problem
from planner.search.engine import Engine
from planner.search.program import interval_search
from planner.search.program.cutting_loop import cut
from planner.search.program.interval_search import IntervalSearch
from planner.search.state import SearchState
from planner.search.stop import Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class LpRounding(Engine):
    """The cutting loop on the whole problem; it also proves bounds.

    Attributes:
        max_instants: number of instants at which it ends.
        program_share: share of the search's time for each integer program over the same instants.
        program_max_ops: larger problems get none: setting one up has no time limit.
        give_up_gap: it ends after the first instant if the best plan is farther than this from its
            bound: rounding does badly on irregular graphs.
    """

    name: ClassVar[str] = "lp-rounding"
    max_instants: int = 12
    program_share: float = 0.0
    program_max_ops: int = 15_000
    give_up_gap: float = float("inf")

    def run(self, state: SearchState, stop: Stop) -> None:
        """Offer plans and bounds; store the instants in the state."""
        has_programs = len(state.problem.ops) <= self.program_max_ops
        state.instants = cut(
            state,
            stop,
            max_instants=self.max_instants,
            program_s=self.program_share * state.settings.limit_s if has_programs else 0.0,
            give_up_gap=self.give_up_gap,
        )


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
class AwaitPrograms(IntervalPrograms):
    """A wait for the programs, whose plans are better than those found meanwhile."""

    name: ClassVar[str] = "await-programs"

    def run(self, state: SearchState, stop: Stop) -> None:
        """Take the programs' results until `stop`."""
        if state.intervals is not None:
            state.intervals.wait(state, stop)
