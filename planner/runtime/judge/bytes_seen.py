"""Bytes of both models over all sessions of a verification."""

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
    """Bytes of the models "original" and "rewritten", measured or replayed from their orders.

    Attributes:
        has_swaps: whether host copies of the rewritten model share the CPU's arena, and its bytes are
            replayed.
        checks: a check for each model and set of options.
    """

    graphs: Mapping[str, TrainingGraph]
    has_swaps: bool
    checks: list[MemoryCheck] = field(default_factory=list)

    def add(self, model: str, order: Sequence[OpId], runs: Sequence[Run], opening: Opening) -> None:
        """Add the runs of one session.

        Args:
            order: the order in which the model ran, or is predicted to run.
            opening: the session's options.
        """
        graph, options = self.graphs[model], opening.memory
        swaps = self.has_swaps and model == "rewritten"
        if swaps or runs[0][0].requested_in_use is None:
            check = memcheck.replayed(runs[0], graph, order, model=model, options=options)
        else:
            check = memcheck.measured(runs, graph, order, model=model, opening=opening)
        self.checks.append(check)

    def add_pool(self, opened: SessionCheck, order: Sequence[OpId]) -> None:
        """Add the bytes of the pool in which `planner.open_session` ran the rewritten model, if it
        did."""
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
        """Return failures where live bytes exceed the budget."""
        return [said for c in self.checks for said in memcheck.over_budget(c, budget_bytes)]

    def over_held(self, budget_bytes: int, budget_of: BudgetOf, opened: Memory) -> list[str]:
        """Return failures where a session holds more than a budget that bounds held bytes.

        Args:
            opened: the options with which the rewritten model is to be opened.
        """
        if budget_of == "live":
            return []
        return [said for c in self.checks for said in memcheck.over_held(c, budget_bytes, opened)]

    def notes(self) -> list[str]:
        """Return notes on bytes that differ from the prediction, and on those that were not measured."""
        found = [s for c in self.checks for s in memcheck.off_notes(c, self.graphs[c.model])]
        if self.has_swaps:
            found.append(
                "host copies share the CPU's arena: live bytes are replayed from the executed "
                "order, and there is no hard cap to run under"
            )
        return found
