"""Turn decisions into a schedule, a list of actions (`planner/native/search` does the work)."""

from __future__ import annotations

from collections.abc import Sequence

from planner.plan.decisions import Decisions
from planner.plan.problem import Action, ActionKind, Problem, actions_below
from planner.search.fast.arrays import arrays_of, plan_of, steps_for
from planner.search.fast.core import Core

_KINDS = (ActionKind.RUN, ActionKind.SWAP_OUT, ActionKind.SWAP_IN)


class Decoder:
    """Decoder of decisions on one problem, with the data that does not depend on them."""

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

    def load(self, actions: Sequence[Action]) -> int:
        """Write the actions of any schedule to the steps, waits left out; returns how many."""
        listed = [action for action in actions if action.kind in _KINDS]
        count = len(listed)
        if count > self.core.steps.kind.size:
            self.core.use(steps_for(self.core.arrays, count))
        self.core.steps.kind[:count] = [_KINDS.index(action.kind) for action in listed]
        self.core.steps.target[:count] = [action.target for action in listed]
        return count

    def placed(self, count: int, rounds: int) -> list[Action]:
        """The first `count` actions in the steps, copies listed where they hide beside the operations
        (see `Core.place_and_time`)."""
        self.core.place_and_time(count, rounds)
        return self.actions(count)

    def actions(self, count: int) -> list[Action]:
        """Return the first `count` actions in the steps."""
        kinds = self.core.steps.kind[:count].tolist()
        targets = self.core.steps.target[:count].tolist()
        return [self._actions[k][t] for k, t in zip(kinds, targets, strict=True)]
