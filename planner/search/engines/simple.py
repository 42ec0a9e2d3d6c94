"""Simple engines, as a careful engineer would try first: the floor under every other engine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from planner import clock
from planner.plan.decisions import Choice, Decisions
from planner.plan.problem import Problem
from planner.search.engine import Engine, run_engine
from planner.search.eviction import EVICTION_POLICIES, Eviction
from planner.search.improve import Improver
from planner.search.program.cutting_loop import cut
from planner.search.state import SearchState, new_state
from planner.search.stop import Stop
from planner.simulate.simulate import candidate_of

_PRUNED = 200
"""Number of operations up to which a greedy plan is pruned, which is quick there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Greedy(Engine):
    """Greedy repair: drop or swap the tensors that are cheapest per byte until the plan fits.

    Attributes:
        max_slowdown: a plan is given up if it takes this multiple of the base order's time.
    """

    name: ClassVar[str] = "greedy"
    max_slowdown: float = float("inf")

    def run(self, state: SearchState, stop: Stop) -> None:
        """Offer the repaired base order; in a small graph, also without its needless decisions."""
        most_us = self.max_slowdown * state.problem.base_duration_us
        improver = Improver(state.evaluator, stop)
        repaired = improver.repair(state.evaluator.base, most_us=most_us)
        state.offer(repaired)
        if state.evaluator.fits(repaired) and len(state.problem.ops) <= _PRUNED:
            state.offer(improver.prune(repaired))


@dataclass(frozen=True, slots=True, kw_only=True)
class OneLever(Engine):
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
            cut(part, stop, max_instants=1)
            for found in (part.best, part.least):
                if found is not None and found.decisions is not None:
                    state.offer(state.evaluator.evaluate(found.decisions))


@dataclass(frozen=True, slots=True, kw_only=True)
class EverythingSwapped(Engine):
    """The plan that copies each tensor out once it is made, and in for every use."""

    name: ClassVar[str] = "everything-swapped"

    def supports(self, problem: Problem) -> bool:
        """Tell whether tensors may be copied."""
        return problem.allow_swap

    def run(self, state: SearchState, stop: Stop) -> None:
        """Offer the plan."""
        state.offer(state.evaluator.evaluate(everything_swapped(state.problem)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict(Engine):
    """Plans that run the base order within the capacity, and drop tensors that are in the way."""

    name: ClassVar[str] = "eviction"

    def supports(self, problem: Problem) -> bool:
        """Tell whether copies are forbidden; with them, swapping everything takes less memory."""
        return not problem.allow_swap

    def run(self, state: SearchState, stop: Stop) -> None:
        """Offer each policy's plan."""
        evicting = Eviction(state.problem)
        for policy in EVICTION_POLICIES:
            deadline = clock.now() + stop.left_s
            actions = evicting.actions(state.problem.capacity_bytes, policy, deadline=deadline)
            if actions is not None:
                state.offer(candidate_of(state.problem, actions))


def everything_swapped(problem: Problem) -> Decisions:
    """Return the decisions to copy each tensor out once it is made, and in for every use."""
    return Decisions(
        gaps={
            (t, gap): Choice.SWAP
            for t, tensor in enumerate(problem.tensors)
            if tensor.swappable and not tensor.to_end
            for gap in range(len(tensor.uses))
        }
    )
