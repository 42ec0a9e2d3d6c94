"""Plans for little memory, planned from the end, and what annealing makes of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from planner.plan.problem import Problem
from planner.search.regression import Regression, RegressionPolicy
from planner.search.second_runs import RunPolicy, anneal_second_runs
from planner.search.state import SearchState
from planner.search.stop import Stop
from planner.simulate.simulate import candidate_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Regress(RunPolicy):
    """Before each operation, what it lacks is made again, whatever the time; then that is annealed.

    Attributes (besides those of `RunPolicy`, whose walk begins at that plan):
        weights, max_sets: as of `RegressionPolicy`.
        max_ops: on larger problems the sets are too large.
    """

    name: ClassVar[str] = "regression"
    first_price: float = 5.0
    patience: float = 1.0
    share: float = 1.0
    weights: tuple[float, ...] = RegressionPolicy().weights
    max_sets: int = RegressionPolicy().max_sets
    max_ops: int = 1_500

    def supports(self, problem: Problem) -> bool:
        """Where nothing is copied."""
        return (
            problem.allow_recompute and not problem.allow_swap and len(problem.ops) <= self.max_ops
        )

    def run(self, state: SearchState, stop: Stop) -> None:
        """Offer the plan, and the annealed one."""
        policy = RegressionPolicy(weights=self.weights, max_sets=self.max_sets)
        actions = Regression(state.problem, policy).actions(stop)
        if actions is None:
            return
        state.offer(candidate_of(state.problem, actions))
        annealed = anneal_second_runs(
            state.problem, stop, start=actions, seed=state.settings.seed, policy=self
        )
        state.offer(candidate_of(state.problem, annealed))
