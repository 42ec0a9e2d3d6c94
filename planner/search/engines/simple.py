"""Simple engines, as a careful engineer would try first: the floor under every other engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from planner.plan.decisions import Decisions
from planner.plan.problem import Problem
from planner.search.engine import run_engine
from planner.search.improve import Improver
from planner.search.program.cutting_loop import CuttingLoop, base_op_at
from planner.search.simple import distance_plans
from planner.search.state import SearchState, new_state
from planner.search.stop import Stop

_PRUNED = 200
"""Number of operations up to which a greedy plan is pruned, which is quick there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Greedy:
    """Greedy repair: drop or swap the tensors that are cheapest per byte until the plan fits.

    Attributes:
        max_slowdown: a plan is given up if it takes this multiple of the base order's time.
    """

    name: ClassVar[str] = "greedy"
    max_slowdown: float = float("inf")

    def supports(self, problem: Problem) -> bool:
        """Return True: every problem."""
        return True

    def run(self, state: SearchState, stop: Stop) -> None:
        """Offer the repaired base order; in a small graph, also without its needless decisions."""
        most_us = self.max_slowdown * state.problem.base_duration_us
        improver = Improver(state.evaluator, stop)
        repaired = improver.repair(state.evaluator.base, most_us=most_us)
        state.offer(repaired)
        if state.evaluator.fits(repaired) and len(state.problem.ops) <= _PRUNED:
            state.offer(improver.prune(repaired))


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapByDistance:
    """Swaps of the tensors that wait longest, as many as needed."""

    name: ClassVar[str] = "swap-by-distance"

    def supports(self, problem: Problem) -> bool:
        """Tell whether tensors may be copied."""
        return problem.allow_swap

    def run(self, state: SearchState, stop: Stop) -> None:
        """Offer the repaired plans for several numbers of tensors."""
        excess = state.evaluator.base.peak_bytes - state.problem.capacity_bytes
        _offer_repaired(state, stop, distance_plans(state.problem, _fullest(state), excess))


@dataclass(frozen=True, slots=True, kw_only=True)
class OneLever:
    """Plans with one lever only; they are plans of the problem too, and are found sooner."""

    name: ClassVar[str] = "one-lever"

    def supports(self, problem: Problem) -> bool:
        """Tell whether both levers are allowed."""
        return problem.allow_recompute and problem.allow_swap

    def run(self, state: SearchState, stop: Stop) -> None:
        """Offer the greedy plan, and that of the LP with one instant, for each lever alone."""
        problem = state.problem
        for only in (problem.without_swaps(), replace(problem, allow_recompute=False)):
            part = new_state(only, state.settings)
            run_engine(Greedy(), part, stop)
            CuttingLoop(max_instants=1).run(part, stop)
            for found in (part.best, part.least):
                if found is not None and found.decisions is not None:
                    state.offer(state.evaluator.evaluate(found.decisions))


def _fullest(state: SearchState) -> int:
    base = state.evaluator.base
    return base_op_at(base, base.replay.peak_action)


def _offer_repaired(state: SearchState, stop: Stop, plans: Iterator[Decisions]) -> None:
    improver = Improver(state.evaluator, stop)
    for decisions in plans:
        if improver.out_of_time():
            return
        state.offer(improver.repair(state.evaluator.evaluate(decisions)))
