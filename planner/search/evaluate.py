"""From decisions to a plan with its replay; nothing is estimated."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from planner.plan.candidate import Candidate
from planner.plan.decisions import Decisions
from planner.plan.problem import Action, Problem
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
        actions = self._listed(self.decoder.schedule(decisions))
        return replace(candidate_of(self.problem, actions), decisions=decisions)

    def again(self, found: Candidate) -> Candidate:
        """A plan of another search: of other capacity, or of copies that do not overlap, where it takes
        no more time here."""
        if found.decisions is not None:
            return self.evaluate(found.decisions)
        as_it_is = candidate_of(self.problem, found.actions)
        placed = candidate_of(self.problem, self._listed(found.actions))
        return min(as_it_is, placed, key=lambda plan: (not self.fits(plan), plan.time_us))

    def _listed(self, actions: list[Action]) -> list[Action]:
        """The actions with copies where they hide, if they run beside the operations."""
        is_beside = self.decoder.core.arrays.overlap
        return self.decoder.placed(actions, _PLACEMENTS) if is_beside else actions

    def fits(self, candidate: Candidate) -> bool:
        """Whether the peak is within the capacity."""
        return candidate.peak_bytes <= self.problem.capacity_bytes
