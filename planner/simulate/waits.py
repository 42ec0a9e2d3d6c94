"""A schedule whose copies run beside the operations, as the hardware has to be told: with its waits.

Engines list copies out and in. A copy out reads its tensor until it is done, and memory of the tensor is
free no sooner. So the schedule that is lowered says before which action its end is waited for: before
the one whose memory that is, or else before the first operation that starts once the copy is done, where
the wait costs nothing (`planner.plan.replay.Timeline.waited`). In the order of that schedule the device
then never holds more than in the simulation.

What comes back also gives up its place on the host (`SwapInDone` in `planner.lower.sequence`). So a
tensor that comes back twice is copied out again, behind the first operation that reads what came back
first.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from planner.plan.problem import Action, ActionKind, Problem
from planner.simulate.simulate import simulate

RUN, OUT, IN, DONE = (
    ActionKind.RUN,
    ActionKind.SWAP_OUT,
    ActionKind.SWAP_IN,
    ActionKind.SWAP_OUT_DONE,
)


def with_waits(
    problem: Problem, actions: Sequence[Action], loads: Set[int] = frozenset()
) -> list[Action]:
    """The schedule with each copy paired and each copy out waited for; as it is where copies do not
    overlap. Waits that it has already are placed anew.

    A tensor of which a copy is on the host in any case (`PlanTensor.host_copy`) has no copy out of its
    own, and none to wait for.

    Args:
        loads: operations that are copies in (`planner.simulate.loads`).
    """
    if not problem.overlap:
        return list(actions)
    pairs = paired(problem, actions)
    line = simulate(problem, pairs, loads).timeline
    assert line is not None
    before: dict[int, list[int]] = {}
    for step, action in enumerate(pairs):
        if action.kind is OUT and not problem.tensors[action.target].host_copy:
            before.setdefault(line.waited[step], []).append(action.target)
    found: list[Action] = []
    for step, action in enumerate(pairs):
        found += (Action(kind=DONE, target=t) for t in before.get(step, ()))
        found.append(action)
    return found


def unpaired(problem: Problem, actions: Sequence[Action], *, beside: bool) -> int | None:
    """A tensor whose copies are not one out, one wait and one back, in turns; None where there is none.

    Args:
        beside: copies run beside the operations; else none is waited for.
    """
    after = {OUT: DONE, DONE: IN, IN: OUT}
    wanted: dict[int, ActionKind] = {}
    for action in actions:
        target = action.target
        if action.kind is RUN or problem.tensors[target].host_copy:
            continue
        if action.kind is not wanted.get(target, OUT) if beside else action.kind is DONE:
            return target
        wanted[target] = after[action.kind]
    return next((t for t, kind in wanted.items() if beside and kind is not OUT), None)


def paired(problem: Problem, actions: Sequence[Action]) -> list[Action]:
    """The schedule without waits, copies in that nothing reads, and copies out that nothing brings back;
    each copy in has a copy out of its own."""
    actions = [a for a in actions if a.kind is not DONE]
    read: set[int] = set()  # tensors whose newest copy is read later
    fetched: set[int] = set()  # tensors whose copy on the host is fetched later
    again: set[int] = set()  # places of copies in behind which the tensor is fetched once more
    kept: list[int] = []
    for step in range(len(actions) - 1, -1, -1):
        action = actions[step]
        target = action.target
        if action.kind is RUN:
            read.difference_update(problem.ops[target].outputs)
            read.update(problem.ops[target].inputs)
        elif action.kind is OUT:
            if target not in fetched:
                continue
            fetched.remove(target)
            read.add(target)
        else:
            if target not in read:
                continue
            read.remove(target)
            if target in fetched and not problem.tensors[target].host_copy:
                again.add(step)
            fetched.add(target)
        kept.append(step)
    found: list[Action] = []
    waiting: set[int] = set()  # tensors that came back, to be copied out again
    for step in reversed(kept):
        action = actions[step]
        taken = _taken(problem, action) & waiting  # no operation may take its buffer first
        found += (Action(kind=OUT, target=t) for t in sorted(taken))
        waiting -= taken
        found.append(action)
        if action.kind is RUN:
            behind = waiting.intersection(problem.ops[action.target].inputs)
            found += (Action(kind=OUT, target=t) for t in sorted(behind))
            waiting -= behind
        elif step in again:
            waiting.add(action.target)
    return found


def _taken(problem: Problem, action: Action) -> set[int]:
    """Tensors whose buffers an action may take for what it makes."""
    if action.kind is not RUN:
        return set()
    return {source for source, _ in problem.ops[action.target].inplace}
