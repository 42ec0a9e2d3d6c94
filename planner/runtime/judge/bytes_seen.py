"""Bytes of both models, as a verification sees them, session after session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.graph.model import OpId, TrainingGraph
from planner.plan.planfile import BudgetOf
from planner.results.verification import MemoryCheck, SessionCheck
from planner.runtime.memory import memcheck
from planner.runtime.options import Memory, Opening
from planner.runtime.profile import Run


@dataclass(slots=True, kw_only=True)
class BytesSeen:
    """What was measured of the models "original" and "rewritten", or replayed from their orders.

    Attributes:
        has_swaps: host copies of the rewritten model share the CPU's arena: its bytes are replayed.
        checks: one for each model and set of options.
    """

    graphs: Mapping[str, TrainingGraph]
    has_swaps: bool
    checks: list[MemoryCheck] = field(default_factory=list)

    def add(self, model: str, order: Sequence[OpId], runs: Sequence[Run], opening: Opening) -> None:
        """Add the runs of one session.

        Args:
            order: in which the model ran, or is predicted to.
            opening: of the session.
        """
        graph, options = self.graphs[model], opening.memory
        swaps = self.has_swaps and model == "rewritten"
        if swaps or runs[0][0].requested_in_use is None:
            check = memcheck.replayed(runs[0], graph, order, model=model, options=options)
        else:
            check = memcheck.measured(runs, graph, order, model=model, opening=opening)
        self.checks.append(check)

    def add_pool(self, opened: SessionCheck, order: Sequence[OpId]) -> None:
        """Add what the rewritten model held as `planner.open_session` opens it, where that is in a
        pool."""
        held = opened.held_bytes
        if held is None or self.has_swaps:
            return
        graph = self.graphs["rewritten"]
        self.checks = [
            memcheck.in_pool(check, graph, order, held)
            if (check.model, check.options) == ("rewritten", "recommended")
            else check
            for check in self.checks
        ]

    def over_live(self, budget_bytes: int) -> list[str]:
        """What to say of live bytes over the budget."""
        return [said for c in self.checks for said in memcheck.over_budget(c, budget_bytes)]

    def over_held(self, budget_bytes: int, budget_of: BudgetOf, opened: Memory) -> list[str]:
        """What to say of a session that holds more than the budget, where the budget bounds that.

        Args:
            opened: with which options the rewritten model is to be opened.
        """
        if budget_of == "live":
            return []
        return [said for c in self.checks for said in memcheck.over_held(c, budget_bytes, opened)]

    def notes(self) -> list[str]:
        """What to say of bytes that are not the predicted ones, and of what was not measured."""
        found = [s for c in self.checks for s in memcheck.off_notes(c, self.graphs[c.model])]
        if self.has_swaps:
            found.append(
                "host copies share the CPU's arena: live bytes are replayed from the executed "
                "order, and there is no hard cap to run under"
            )
        return found
