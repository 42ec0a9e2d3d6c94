"""Simple engines, as a careful engineer would try first: the floor under every other engine.

Swaps by distance are those of Le et al., "TFLMS: Large Model Support in TensorFlow by Graph
Rewriting", arXiv:1807.02037. They decide only the gaps over the fullest operation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from planner import clock
from planner.plan.decisions import Choice, Decisions, Gap
from planner.plan.problem import Problem
from planner.search.engine import Engine, run_engine
from planner.search.eviction import EVICTION_POLICIES, Eviction
from planner.search.improve import Improver
from planner.search.program.cutting_loop import base_op_at, cut
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
class SwapByDistance(Engine):
    """Swaps of the tensors that wait longest, as many as needed."""

    name: ClassVar[str] = "swap-by-distance"

    def supports(self, problem: Problem) -> bool:
        """Tell whether tensors may be copied."""
        return problem.allow_swap

    def run(self, state: SearchState, stop: Stop) -> None:
        """Offer the repaired plans for several numbers of tensors."""
        base, improver = state.evaluator.base, Improver(state.evaluator, stop)
        fullest = base_op_at(base, base.replay.peak_action)
        excess = base.peak_bytes - state.problem.capacity_bytes
        for decisions in distance_plans(state.problem, fullest, excess):
            if improver.out_of_time():
                return
            state.offer(improver.repair(state.evaluator.evaluate(decisions)))


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


def open_gaps(problem: Problem, at: int) -> list[tuple[Gap, int]]:
    """Return (gap, operations that it spans) for the tensors that wait over base operation `at`."""
    found = []
    for t, tensor in enumerate(problem.tensors):
        if tensor.producer >= at or tensor.to_end or not tensor.bytes:
            continue
        g = bisect_left(tensor.uses, at)
        if g == len(tensor.uses) or tensor.uses[g] == at:
            continue
        opened = tensor.uses[g - 1] if g else tensor.producer
        found.append(((t, g), tensor.uses[g] - opened))
    return found


def distance_plans(problem: Problem, at: int, excess_bytes: int) -> Iterator[Decisions]:
    """Yield plans that swap the longest waits over base operation `at`.

    They swap as many as free `excess_bytes` there, half as many again, and all. Plans need not fit.
    """
    if not problem.allow_swap:
        return
    waiting = [
        (gap, span) for gap, span in open_gaps(problem, at) if problem.tensors[gap[0]].swappable
    ]
    waiting.sort(key=lambda item: -item[1])
    freed, needed = 0, 0
    for gap, _ in waiting:
        if freed >= excess_bytes:
            break
        freed += problem.tensors[gap[0]].bytes
        needed += 1
    for count in sorted({needed, needed + needed // 2, len(waiting)}):
        yield Decisions(gaps={gap: Choice.SWAP for gap, _ in waiting[:count]})


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
