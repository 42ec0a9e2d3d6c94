"""Plans for little memory, whatever their time: for a first look, and when nothing fits yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from planner import clock
from planner.plan.decisions import Choice, Decisions
from planner.plan.problem import Problem
from planner.search.engine import Engine
from planner.search.eviction import EVICTION_POLICIES, Eviction
from planner.search.state import SearchState
from planner.search.stop import Stop
from planner.simulate.simulate import candidate_of


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
