"""Turn decisions into a plan with its replay, without estimates (`planner/native/search` decodes)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from planner.plan.candidate import Candidate
from planner.plan.decisions import Decisions
from planner.plan.problem import Action, ActionKind, Problem, actions_below
from planner.search.fast.arrays import arrays_of, plan_of, steps_for
from planner.search.fast.core import Core
from planner.simulate.simulate import candidate_of

_KINDS = (ActionKind.RUN, ActionKind.SWAP_OUT, ActionKind.SWAP_IN)


_PLACEMENTS = 3
"""Rounds of listing copies at places where they hide, each from the times of the previous one."""


class Evaluator:
    """Evaluation of decisions on one problem, with the data that does not depend on them."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.core = Core(arrays_of(problem))
        most = max(len(problem.ops), len(problem.tensors))
        self._actions = [actions_below(kind, most) for kind in _KINDS]

    def schedule(self, decisions: Decisions) -> list[Action]:
        """Return the actions of a plan, with copies just in time.

        Any set of decisions gives a valid schedule: an input of a recompute that cannot be brought
        back is kept for it, beyond its last base use.
        """
        core = self.core
        count = core.schedule(plan_of(core.arrays, decisions))
        while count < 0:  # a plan with very many actions needs more room
            core.use(steps_for(core.arrays, 4 * core.steps.kind.size))
            count = core.schedule(plan_of(core.arrays, decisions))
        return self.actions(count)

    def actions(self, count: int) -> list[Action]:
        """Return the first `count` actions in the steps."""
        kinds = self.core.steps.kind[:count].tolist()
        targets = self.core.steps.target[:count].tolist()
        return [self._actions[k][t] for k, t in zip(kinds, targets, strict=True)]

    @cached_property
    def base(self) -> Candidate:
        """The plan that keeps everything."""
        return self.evaluate(Decisions())

    def evaluate(self, decisions: Decisions) -> Candidate:
        """Replay decisions; copies beside the operations are listed at places where they hide."""
        actions = self.schedule(decisions)
        if self.core.arrays.overlap:
            actions = self._placed(len(actions))
        return replace(candidate_of(self.problem, actions), decisions=decisions)

    def again(self, found: Candidate) -> Candidate:
        """A plan of another search: of other capacity, or of copies that do not overlap, where it takes
        no more time here."""
        if found.decisions is not None:
            return self.evaluate(found.decisions)
        as_it_is = candidate_of(self.problem, found.actions)
        if not self.core.arrays.overlap:
            return as_it_is
        placed = candidate_of(self.problem, self._placed(self._load(found.actions)))
        return min(as_it_is, placed, key=lambda plan: (not self.fits(plan), plan.time_us))

    def fits(self, candidate: Candidate) -> bool:
        """Tell whether the peak is within the capacity."""
        return candidate.peak_bytes <= self.problem.capacity_bytes

    def _load(self, actions: Sequence[Action]) -> int:
        """Write the actions of any schedule to the steps, waits left out; returns how many."""
        listed = [action for action in actions if action.kind in _KINDS]
        count = len(listed)
        if count > self.core.steps.kind.size:
            self.core.use(steps_for(self.core.arrays, count))
        self.core.steps.kind[:count] = [_KINDS.index(action.kind) for action in listed]
        self.core.steps.target[:count] = [action.target for action in listed]
        return count

    def _placed(self, count: int) -> list[Action]:
        """Return the first `count` actions in the steps, copies listed where they hide."""
        self.core.place_and_time(count, _PLACEMENTS)
        return self.actions(count)
