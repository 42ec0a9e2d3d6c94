"""From decisions to a plan with its replay; nothing is estimated."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from planner.plan.candidate import Candidate
from planner.plan.decisions import Decisions
from planner.plan.problem import Problem
from planner.search.decode import Decoder
from planner.simulate.simulate import candidate_of

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
        actions = self.decoder.schedule(decisions)
        if self._is_beside:
            actions = self.decoder.placed(len(actions), _PLACEMENTS)
        return replace(candidate_of(self.problem, actions), decisions=decisions)

    def again(self, found: Candidate) -> Candidate:
        """A plan of another search: of other capacity, or of copies that do not overlap, where it takes
        no more time here."""
        if found.decisions is not None:
            return self.evaluate(found.decisions)
        as_it_is = candidate_of(self.problem, found.actions)
        if not self._is_beside:
            return as_it_is
        listed = self.decoder.placed(self.decoder.load(found.actions), _PLACEMENTS)
        placed = candidate_of(self.problem, listed)
        return min(as_it_is, placed, key=lambda plan: (not self.fits(plan), plan.time_us))

    @property
    def _is_beside(self) -> bool:
        """Whether copies run beside the operations."""
        return self.decoder.core.arrays.overlap

    def fits(self, candidate: Candidate) -> bool:
        """Whether the peak is within the capacity."""
        return candidate.peak_bytes <= self.problem.capacity_bytes
