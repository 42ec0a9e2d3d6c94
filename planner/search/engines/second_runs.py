"""Annealing over second runs, and plans for little memory that are annealed where nothing fits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar

from planner.plan.problem import Action, Problem
from planner.search.fast.warm import SECOND_RUNS
from planner.search.regression import Regression, RegressionPolicy
from planner.search.second_runs import RunPolicy, anneal_second_runs, anneal_side_by_side
from planner.search.state import SearchState
from planner.search.stop import First, Stop, Until
from planner.search.walk_beside import WalkBeside
from planner.simulate.simulate import candidate_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Regress(RunPolicy):
    """Before each operation, what it lacks is made again, whatever the time; then that is annealed.

    Attributes (besides those of `RunPolicy`, whose walk begins at that plan):
        weights, max_sets, last_sets: as of `RegressionPolicy`.
        max_ops: on larger problems the sets are too large.
    """

    name: ClassVar[str] = "regression"
    first_price: float = 5.0
    patience: float = 1.0
    share: float = 0.6
    weights: tuple[float, ...] = RegressionPolicy().weights
    max_sets: int = RegressionPolicy().max_sets
    last_sets: int = RegressionPolicy().last_sets
    max_ops: int = 300

    def supports(self, problem: Problem) -> bool:
        """Where nothing is copied."""
        return _recomputes_only(problem) and len(problem.ops) <= self.max_ops

    def run(self, state: SearchState, stop: Stop) -> None:
        """Offer the annealed plan."""
        if not _is_compiled(self, stop):
            return
        actions = self.plan(state.problem, state.settings.seed, stop)
        if actions is not None:
            _offer(state, [actions], self.name)

    def plan(self, problem: Problem, seed: int, stop: Stop) -> list[Action] | None:
        """An annealed plan that fits; None where none was found before `stop`."""
        policy = RegressionPolicy(
            weights=self.weights, max_sets=self.max_sets, last_sets=self.last_sets
        )
        actions = Regression(problem, policy, stop).actions()
        if actions is None or stop.left_s <= 0:
            return actions
        return anneal_second_runs(problem, stop, start=actions, seed=seed, policy=self.at_once())


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginRuns(RunPolicy):
    """Begins the walk that comes down on a thread, while the engines before `AnnealRuns` use another.

    Attributes (besides those of `RunPolicy`):
        max_ops: as of `AnnealRuns`.
    """

    name: ClassVar[str] = "begin-runs"
    max_ops: int = 5_000

    def supports(self, problem: Problem) -> bool:
        """Where nothing is copied, and no plan for little memory is annealed instead."""
        is_small = Regress().supports(problem)
        return _recomputes_only(problem) and not is_small and len(problem.ops) <= self.max_ops

    def run(self, state: SearchState, stop: Stop) -> None:
        """Begin; the walk ends with the turn, or once something else fits."""
        if state.is_settled or state.walk is not None or (state.settings.workers or 2) < 2:
            return
        problem, seed = state.problem, state.settings.seed + WalkBeside.NUMBER

        def walk(until: Stop, on_fit: Callable[[], None]) -> list[Action]:
            if not _is_compiled(self, until):
                return list(state.evaluator.base.actions)
            return anneal_second_runs(problem, until, seed=seed, policy=self, on_fit=on_fit)

        state.walk = WalkBeside(walk, stop, _OtherFits(state))


@dataclass(frozen=True, slots=True)
class _OtherFits:
    """Ends the walk beside a search that has a plan, as long as the walk has none."""

    state: SearchState

    @property
    def left_s(self) -> float:
        """Nothing once that is so."""
        walk = self.state.walk
        is_over = self.state.best is not None and walk is not None and not walk.fits
        return 0.0 if is_over else float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnealRuns(RunPolicy):
    """Simulated annealing over second runs, on every thread.

    Every second thread comes down to the capacity step by step, and each does once its walk has given up
    (`anneal_side_by_side`). Where nothing fits in a small problem, one of the two plans for little memory
    instead, as `Regress` does, until another fits.

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
        threads = state.settings.workers or 2
        regress = Regress()
        if state.best is None and threads > 1 and regress.supports(state.problem):
            self._beside(regress, state, stop)
            return
        if state.intervals is not None and state.intervals.is_running and state.best is not None:
            threads = max(1, threads - 1)  # the programs beside need one
        seed = state.settings.seed
        if threads > 1:
            begun = state.walk
            if begun is not None and state.best is None:
                stop = begun.turn  # beyond its own: engines behind it find less where nothing fits
            elif begun is not None and not begun.fits:
                begun = None  # it has ended
            seeds = range(seed, seed + threads)
            found = anneal_side_by_side(state.problem, stop, seeds=seeds, policy=self, begun=begun)
            _offer(state, found, self.name)
            state.walk = None
            return
        give_walk(state, until_it_ends=True)
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

    def _beside(self, regress: Regress, state: SearchState, stop: Stop) -> None:
        """Anneal from the base order, and beside it from a plan for little memory."""
        problem, seed, policy = state.problem, state.settings.seed, self.at_once()
        fits = threading.Event()
        until_fits = First((stop, Until(fits)))
        with ThreadPoolExecutor(max_workers=2) as pool:
            beside = pool.submit(regress.plan, problem, seed, until_fits)
            try:
                found = anneal_second_runs(problem, stop, seed=seed, policy=policy, on_fit=fits.set)
                other = beside.result()
            except BaseException:  # Ctrl-C does not wait for the time that it has
                fits.set()
                raise
        _offer(state, [found], self.name)
        if other is not None:
            _offer(state, [other], regress.name)


def give_walk(state: SearchState, *, until_it_ends: bool = False) -> None:
    """Offer what the walk beside the search has come to, where one was begun.

    Args:
        until_it_ends: and fits; else it ends now.
    """
    walk = state.walk
    if walk is None:
        return
    if not (until_it_ends and walk.fits):
        walk.stop()
    with state.ledger.turn_of(AnnealRuns.name):
        _offer(state, [walk.result()], AnnealRuns.name)
    state.walk = None  # not before: on Ctrl-C the search tells it to end


def _is_compiled(policy: RunPolicy, stop: Stop) -> bool:
    """Whether the walk can begin: it is compiled on this machine, or there is time enough for that."""
    return SECOND_RUNS.warm_up_within(stop.left_s, policy.compile_s)


def _recomputes_only(problem: Problem) -> bool:
    return problem.allow_recompute and not problem.allow_swap


def _offer(state: SearchState, plans: Sequence[Sequence[Action]], engine: str) -> None:
    for actions in plans:
        state.offer(candidate_of(state.problem, list(actions)), engine)
