"""Small changes to the best plan, thousands of replays a second."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from planner.plan.problem import Problem
from planner.search.engine import run_engine
from planner.search.improve import Improver
from planner.search.second_runs import RunPolicy, anneal_side_by_side
from planner.search.state import SearchState
from planner.search.stop import Stop
from planner.simulate.simulate import candidate_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Refine:
    """Take decisions of the best plan back, and change single ones, while that helps."""

    name: ClassVar[str] = "refine"

    def supports(self, problem: Problem) -> bool:
        """Always."""
        return True

    def run(self, state: SearchState, stop: Stop) -> None:
        """Offer the refined plan, as what found the plan."""
        if state.best is not None and not state.is_settled and stop.left_s > 0:
            improver = Improver(state.evaluator, stop)
            state.offer(improver.polish(improver.prune(state.best)), state.engine)


@dataclass(frozen=True, slots=True, kw_only=True)
class Anneal:
    """Simulated annealing from the best plan.

    Attributes:
        replayed_ops_per_s: what the compiled replay does on a slow core: sets how long it takes.
        min_iterations: fewer find nothing.
    """

    name: ClassVar[str] = "anneal"
    replayed_ops_per_s: float = 6e6
    min_iterations: int = 1000

    def supports(self, problem: Problem) -> bool:
        """Always."""
        return True

    def run(self, state: SearchState, stop: Stop) -> None:
        """Offer the annealed plan, refined."""
        ops = len(state.problem.ops) * (4 if state.problem.overlap else 1)
        iterations = int(max(0.0, stop.left_s) * self.replayed_ops_per_s / ops)
        if state.best is None or state.is_settled or iterations < self.min_iterations:
            return
        improver = Improver(state.evaluator, stop)
        found = improver.anneal(state.best, iterations=iterations, seed=state.settings.seed)
        if state.offer(found):
            run_engine(Refine(), state, stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnealRuns(RunPolicy):
    """Simulated annealing over second runs, a hundred times as many changes a second.

    Attributes (besides those of `RunPolicy`):
        max_ops: on larger problems a change takes too long.
        near_gap: a plan within that of its bound is where annealing begins, at the temperature `warm`;
            else it begins from the base order, `hot`.
        warm: in mean durations of an operation.
        min_s: with less time left it does not begin.
    """

    name: ClassVar[str] = "anneal-runs"
    max_ops: int = 5_000
    near_gap: float = 0.01
    warm: float = 0.1
    min_s: float = 0.1

    def supports(self, problem: Problem) -> bool:
        """Where nothing is copied."""
        return (
            problem.allow_recompute and not problem.allow_swap and len(problem.ops) <= self.max_ops
        )

    def run(self, state: SearchState, stop: Stop) -> None:
        """Offer the plan of each thread."""
        if state.is_settled or stop.left_s < self.min_s:
            return
        near = state.best if state.is_within(self.near_gap) else None
        is_beside = state.intervals is not None and state.intervals.is_running
        shares_cores = is_beside and state.best is not None  # a plan is worth more than its bound
        threads = max(1, (state.settings.workers or 2) - shares_cores)
        seed = state.settings.seed
        found = anneal_side_by_side(
            state.problem,
            stop,
            start=near.actions if near else (),
            seeds=range(seed, seed + threads),
            policy=replace(self, hot=self.warm) if near else self,
        )
        for actions in found:
            state.offer(candidate_of(state.problem, actions))
