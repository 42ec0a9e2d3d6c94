"""The base of engines."""

from __future__ import annotations

from typing import ClassVar

from planner.plan.problem import Problem
from planner.search.state import SearchState
from planner.search.stop import Stop


class Engine:
    """One way to find plans or to raise the bound; its fields are its parameters.

    Attributes:
        name: identifies it in statistics and in parameter files.
    """

    __slots__ = ()
    name: ClassVar[str]

    def supports(self, problem: Problem) -> bool:
        """Tell whether it can do anything for a problem; most can for every one."""
        return True

    def run(self, state: SearchState, stop: Stop) -> None:
        """Offer plans and bounds to `state` until `stop` ends the turn, or ideas run out."""
        raise NotImplementedError


def run_engine(engine: Engine, state: SearchState, stop: Stop) -> None:
    """Run an engine's turn if it supports the problem, and count its work."""
    if engine.supports(state.problem):
        with state.ledger.turn_of(engine.name):
            engine.run(state, stop)
