"""The linear program over instants as an engine: plans rounded from it, and bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from planner.search.engine import Engine
from planner.search.program.cutting_loop import cut
from planner.search.state import SearchState
from planner.search.stop import Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class LpRounding(Engine):
    """The cutting loop on the whole problem; it also proves bounds.

    Attributes:
        max_instants: number of instants at which it ends.
        give_up_gap: it ends after the first instant if the best plan is farther than this from its
            bound: rounding does badly on irregular graphs.
    """

    name: ClassVar[str] = "lp-rounding"
    max_instants: int = 12
    give_up_gap: float = float("inf")

    def run(self, state: SearchState, stop: Stop) -> None:
        """Offer plans and bounds."""
        cut(state, stop, max_instants=self.max_instants, give_up_gap=self.give_up_gap)
