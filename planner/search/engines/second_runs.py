"""Annealing over second runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from planner.plan.problem import Action, Problem
from planner.search.fast.warm import SECOND_RUNS
from planner.search.second_runs import RunPolicy, anneal_second_runs, anneal_side_by_side
from planner.search.state import SearchState
from planner.search.stop import Stop
from planner.simulate.simulate import candidate_of


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnealRuns(RunPolicy):
    """Simulated annealing over second runs, on every thread.

    Every second thread comes down to the capacity step by step, and each does once its walk has given up
    (`anneal_side_by_side`).

    Attributes (besides those of `RunPolicy`):
        max_ops: on larger problems a change takes too long.
        near_gap: a plan within that of its bound is left to what improves it part by part.
        min_s: with less time left it does not begin.
    """

    name: ClassVar[str] = "anneal-runs"
    max_ops: int = 5_000
    near_gap: float = 0.01
    min_s: float = 0.1

    def supports(self, problem: Problem) -> bool:
        """Where nothing is copied."""
        return _recomputes_only(problem) and len(problem.ops) <= self.max_ops

    def run(self, state: SearchState, stop: Stop) -> None:
        """Offer the plan of each thread."""
        if state.is_settled or state.is_within(self.near_gap) or stop.left_s < self.min_s:
            return
        if not _is_compiled(self, stop):
            return
        threads, seed = state.settings.workers or 2, state.settings.seed
        if state.intervals is not None and state.intervals.is_running and state.best is not None:
            threads = max(1, threads - 1)  # the programs beside need one
        if threads > 1:
            seeds = range(seed, seed + threads)
            found = anneal_side_by_side(state.problem, stop, seeds=seeds, policy=self)
            _offer(state, found, self.name)
            return
        # what comes down step by step follows, where it must
        for policy in (self.at_once(), self, self.after_another()):
            found = anneal_second_runs(state.problem, stop, seed=seed, policy=policy)
            _offer(state, [found], self.name)
            if state.best is not None:
                return

    def come_down(
        self, problem: Problem, stop: Stop, start: Sequence[Action] = ()
    ) -> list[Action] | None:
        """The plan with the least peak that one walk finds, step by step; None where it cannot begin.

        Args:
            start: of a plan without copies; the base order if none are given.
        """
        if stop.left_s < self.min_s or not _is_compiled(self, stop):
            return None
        return anneal_second_runs(problem, stop, start=start, policy=self)


def _is_compiled(policy: RunPolicy, stop: Stop) -> bool:
    """Whether the walk can begin: it is compiled on this machine, or there is time enough for that."""
    return SECOND_RUNS.warm_up_within(stop.left_s, policy.compile_s)


def _recomputes_only(problem: Problem) -> bool:
    return problem.allow_recompute and not problem.allow_swap


def _offer(state: SearchState, plans: Sequence[Sequence[Action]], engine: str) -> None:
    for actions in plans:
        state.offer(candidate_of(state.problem, list(actions)), engine)
