"""Plans rounded from the LP over instants, and from variants of it that leave some slack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from planner.bound.instants import articulation_tensors
from planner.plan.problem import Problem
from planner.search.cutting_loop import CuttingLoop, base_op_at
from planner.search.state import SearchState
from planner.search.stop import Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class LpRounding:
    """The cutting loop on the problem as it is: the one that proves.

    Attributes:
        max_instants: after which it ends.
        program_share: of the search's time, for each integer program over the same instants.
        give_up_gap: it ends after the first instant if the best plan is farther than that from its
            bound: rounding does badly on irregular graphs.
    """

    name: ClassVar[str] = "lp-rounding"
    max_instants: int = 12
    program_share: float = 0.0
    give_up_gap: float = float("inf")

    def supports(self, problem: Problem) -> bool:
        """Always."""
        return True

    def run(self, state: SearchState, stop: Stop) -> None:
        """Offer plans and bounds; leave the instants in the state."""
        loop = CuttingLoop(
            max_instants=self.max_instants,
            program_s=self.program_share * state.settings.limit_s,
            give_up_gap=self.give_up_gap,
        )
        state.instants = loop.run(state, stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoreInstants(LpRounding):
    """The cutting loop to its end, where it was given up."""

    name: ClassVar[str] = "more-instants"
    max_instants: int = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Corners:
    """The loop on corners of the LP, by simplex: few tensors are partly resident.

    Attributes:
        max_ops: on larger problems simplex takes longer than it is worth.
        max_instants: after which it ends.
    """

    name: ClassVar[str] = "corners"
    max_ops: int = 15_000
    max_instants: int = 2

    def supports(self, problem: Problem) -> bool:
        """Where copies run beside the operations: elsewhere minimum cuts are corners themselves."""
        return problem.overlap and len(problem.ops) <= self.max_ops

    def run(self, state: SearchState, stop: Stop) -> None:
        """Offer plans."""
        CuttingLoop(by_simplex=True, max_instants=self.max_instants).run(state, stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowerCopies:
    """The loop as if the copies were slower: what is planned so has slack for queueing.

    Attributes:
        bandwidths: shares of the bandwidth, in turn.
        max_instants: after which each loop ends.
    """

    name: ClassVar[str] = "slower-copies"
    bandwidths: tuple[float, ...] = (0.95, 0.85, 0.7, 0.55, 0.4, 0.25)
    max_instants: int = 3

    def supports(self, problem: Problem) -> bool:
        """Where copies run beside the operations."""
        return problem.overlap

    def run(self, state: SearchState, stop: Stop) -> None:
        """Offer plans."""
        for scale in self.bandwidths:
            if state.is_settled or stop.left_s <= 0:
                return
            CuttingLoop(bandwidth_scale=scale, max_instants=self.max_instants).run(state, stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guards:
    """The loop with every k-th articulation tensor kept resident, for several k.

    At low budgets chains of cheap operations otherwise cascade back to the start of the graph.

    Attributes:
        strides: the k, in turn.
        max_instants: after which each loop ends.
        program_share: of the search's time, for each integer program.
    """

    name: ClassVar[str] = "guards"
    strides: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    max_instants: int = 8
    program_share: float = 0.045

    def supports(self, problem: Problem) -> bool:
        """Where operations may run again."""
        return problem.allow_recompute

    def run(self, state: SearchState, stop: Stop) -> None:
        """Offer plans."""
        base = state.evaluator.base
        end = base_op_at(base, base.replay.peak_action)
        points = articulation_tensors(state.problem, end)
        tried: set[frozenset[int]] = set()
        for stride in self.strides:
            guards = frozenset(points[stride - 1 :: stride])
            if state.is_settled or stop.left_s <= 0:
                return
            if not guards or guards in tried:
                continue
            tried.add(guards)
            loop = CuttingLoop(
                guards=guards,
                max_instants=self.max_instants,
                program_s=self.program_share * state.settings.limit_s,
            )
            loop.run(state, stop)
