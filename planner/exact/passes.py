"""Several passes of recomputes between two base operations, for models that allow one.

A stage runs its recomputes by index, each once. An annealed plan, or one made for little memory,
may run them in another order, or one of them twice; run by index, it would hold more. An operation
that does nothing and takes no time therefore goes between two passes, and each pass becomes a
stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.plan.problem import Action, ActionKind, OpIndex, PlanOp, Problem

_PAUSE = PlanOp(name="", duration_us=0.0, inputs=(), outputs=(), recomputable=False)


@dataclass(frozen=True, slots=True)
class Parted:
    """A plan whose passes are separate stages.

    Attributes:
        problem: the given problem, with an operation that does nothing before each pass but the
            first of a stage.
        actions: the plan, as one of `problem`.
        place: index in `problem` of each given operation.
    """

    problem: Problem
    actions: list[Action]
    place: tuple[OpIndex, ...]

    def as_given(self, actions: Sequence[Action]) -> list[Action]:
        """Convert a plan of `problem` to one of the given problem."""
        own: dict[int, int] = {place: m for m, place in enumerate(self.place)}
        return [
            replace(action, target=own[action.target]) if action.kind is ActionKind.RUN else action
            for action in actions
            if action.kind is not ActionKind.RUN or action.target in own
        ]


def parted(problem: Problem, actions: Sequence[Action]) -> Parted:
    """Split a plan, and its problem, at its passes; unchanged if first runs are not in base order."""
    place: list[OpIndex] = []
    ops: list[PlanOp] = []
    found: list[Action] = []
    waiting: list[Action] = []  # since the last first run
    seen: set[int] = set()
    for action in actions:
        waiting.append(action)
        m = action.target
        if action.kind is not ActionKind.RUN or m in seen:
            continue
        if m != len(place):
            return Parted(problem, list(actions), tuple(map(OpIndex, range(len(problem.ops)))))
        seen.add(m)
        last = -1
        for one in waiting[:-1]:
            if one.kind is not ActionKind.RUN:
                found.append(one)
                continue
            if one.target <= last:
                found.append(Action(kind=ActionKind.RUN, target=len(ops)))
                ops.append(_PAUSE)
            last = one.target
            found.append(replace(one, target=place[one.target]))
        found.append(replace(action, target=len(ops)))
        place.append(OpIndex(len(ops)))
        ops.append(problem.ops[m])
        waiting = []
    tensors = tuple(t.moved(place) for t in problem.tensors)
    found += [
        replace(one, target=place[one.target]) if one.kind is ActionKind.RUN else one
        for one in waiting
    ]
    return Parted(replace(problem, ops=tuple(ops), tensors=tensors), found, tuple(place))
