"""Plans rounded from the LP over instants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from planner.search.engine import Engine
from planner.search.program.cutting_loop import CuttingLoop
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
        loop = CuttingLoop(
            max_instants=self.max_instants,
            program_s=self.program_share * state.settings.limit_s if has_programs else 0.0,
            give_up_gap=self.give_up_gap,
        )
        state.instants = loop.run(state, stop)
