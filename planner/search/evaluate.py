"""From decisions to a plan with its replay; nothing is estimated."""

from __future__ import annotations

from functools import cached_property

from planner.plan.candidate import Candidate
from planner.plan.decisions import Decisions
from planner.plan.problem import Problem
from planner.search.decode import Decoder
from planner.simulate.simulate import simulate

_PLACEMENTS = 3
"""Rounds of listing copies where they hide, each from the times of the one before."""


class Evaluator:
    """Decodes and replays decisions on one problem; holds what does not depend on them.

    Attributes:
        problem: whose decisions these are.
        decoder: of the problem.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.decoder = Decoder(problem)

    @cached_property
    def base(self) -> Candidate:
        """Everything kept."""
        return self.evaluate(Decisions())

    def evaluate(self, decisions: Decisions) -> Candidate:
        """Decode and replay; copies beside the operations are listed where they hide."""
        problem, decoder = self.problem, self.decoder
        actions = decoder.schedule(decisions)
        if decoder.core.arrays.overlap:
            decoder.core.place_and_time(len(actions), _PLACEMENTS)
            actions = decoder.actions(len(actions))
        return Candidate(decisions=decisions, actions=actions, replay=simulate(problem, actions))

    def fits(self, candidate: Candidate) -> bool:
        """Whether the peak is within the capacity."""
        return candidate.peak_bytes <= self.problem.capacity_bytes
