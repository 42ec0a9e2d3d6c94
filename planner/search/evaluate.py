"""Turn decisions into a plan with its replay, without estimates."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from planner.plan.candidate import Candidate
from planner.plan.decisions import Decisions
from planner.plan.problem import Problem
from planner.search.decode import Decoder
from planner.simulate.simulate import candidate_of

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
        """Tell whether the peak is within the capacity."""
        return candidate.peak_bytes <= self.problem.capacity_bytes
