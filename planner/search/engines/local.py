"""Small changes to the best plan, thousands of replays a second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from planner.search.engine import Engine, run_engine
from planner.search.improve import Improver
from planner.search.state import SearchState
from planner.search.stop import Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Refine(Engine):
    """Take decisions of the best plan that has some back, and change single ones, while that helps."""

    name: ClassVar[str] = "refine"

    def run(self, state: SearchState, stop: Stop) -> None:
        """Offer the refined plan, under the name of the engine that found the plan."""
        plan = state.changeable
        if plan is not None and not state.is_settled and stop.left_s > 0:
            improver = Improver(state.evaluator, stop)
            refined = improver.polish(improver.prune(plan))
            state.offer(refined, state.engine if plan is state.best else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Anneal(Engine):
    """Simulated annealing from the best plan.

    Attributes:
        replayed_ops_per_s: speed of the compiled replay on a slow core; determines the number of
            iterations.
        min_iterations: fewer iterations find nothing.
    """

    name: ClassVar[str] = "anneal"
    replayed_ops_per_s: float = 6e6
    min_iterations: int = 1000

    def run(self, state: SearchState, stop: Stop) -> None:
        """Offer the annealed plan, refined."""
        ops = len(state.problem.ops) * (4 if state.problem.overlap else 1)
        iterations = int(max(0.0, stop.left_s) * self.replayed_ops_per_s / ops)
        plan = state.changeable
        if plan is None or state.is_settled or iterations < self.min_iterations:
            return
        improver = Improver(state.evaluator, stop)
        found = improver.anneal(plan, iterations=iterations, seed=state.settings.seed)
        if state.offer(found):
            run_engine(Refine(), state, stop)
