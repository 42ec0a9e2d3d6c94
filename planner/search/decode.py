"""From decisions to a schedule, as a list of actions (`planner.search.fast.schedule` does the work)."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from planner.plan.decisions import Decisions
from planner.plan.problem import Action, ActionKind, Problem, actions_below
from planner.search.fast.arrays import arrays_of, plan_of, work_for
from planner.search.fast.schedule import schedule

_KINDS = (ActionKind.RUN, ActionKind.SWAP_OUT, ActionKind.SWAP_IN)


class Decoder:
    """Executes decisions on one problem; holds what does not depend on them."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.arrays = arrays_of(problem)
        self.work = work_for(self.arrays)
        self.overlap = problem.overlap and problem.allow_swap
        self.host = np.zeros(len(problem.tensors))
        self.uses = [t.uses for t in problem.tensors]
        most = max(len(problem.ops), len(problem.tensors))
        self._actions = [actions_below(kind, most) for kind in _KINDS]

    def gap_at(self, tensor: int, op: int) -> int:
        """Index of the gap of `tensor` that is open just before base operation `op`."""
        return bisect_left(self.uses[tensor], op)

    def schedule(self, decisions: Decisions) -> list[Action]:
        """The actions of a plan, copies just in time. Any set of decisions gives a valid schedule:
        what a recompute reads and that cannot be brought back is kept for it, beyond its last base
        use."""
        count = schedule(self.arrays, plan_of(self.arrays, decisions), self.work)
        while count < 0:  # an extravagant plan: make room for it
            bigger = work_for(self.arrays, steps=4 * self.work.kind.size)
            self.work = bigger
            count = schedule(self.arrays, plan_of(self.arrays, decisions), self.work)
        return self.actions(count)

    def actions(self, count: int) -> list[Action]:
        """The first `count` actions in the scratch."""
        kinds = self.work.kind[:count].tolist()
        targets = self.work.target[:count].tolist()
        return [self._actions[k][t] for k, t in zip(kinds, targets, strict=True)]
