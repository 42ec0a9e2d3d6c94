"""Turn decisions into a plan with its replay, without estimates."""

from __future__ import annotations

from functools import cached_property

from planner.plan.candidate import Candidate
from planner.plan.decisions import Decisions
from planner.plan.problem import Problem
from planner.search.decode import Decoder
from planner.simulate.simulate import simulate

_PLACEMENTS = 3
"""Rounds of listing copies at places where they hide, each from the times of the previous one."""


class Evaluator:
    """Evaluation of decisions on one problem, with the data that does not depend on them.

    Attributes:
        problem: the problem of the decisions.
        decoder: of the problem.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.decoder = Decoder(problem)

    @cached_property
    def base(self) -> Candidate:
        """The plan that keeps everything."""
        return self.evaluate(Decisions())

    def evaluate(self, decisions: Decisions) -> Candidate:
        """Replay decisions; copies beside the operations are listed at places where they hide."""
        problem, decoder = self.problem, self.decoder
        actions = decoder.schedule(decisions)
        if decoder.core.arrays.overlap:
            decoder.core.place_and_time(len(actions), _PLACEMENTS)
            actions = decoder.actions(len(actions))
        return Candidate(decisions=decisions, actions=actions, replay=simulate(problem, actions))

    def fits(self, candidate: Candidate) -> bool:
        """Tell whether the peak is within the capacity."""
        return candidate.peak_bytes <= self.problem.capacity_bytes
