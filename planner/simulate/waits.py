"""Add the waits to a schedule whose copies run beside the operations, for the hardware.

Engines list copies out and in. A copy out reads its tensor until it is done, and the tensor's
memory is free no sooner. The lowered schedule therefore says before which action the end of each
copy out is waited for: before the action that needs the memory, or else before the first operation
that starts once the copy is done, where the wait costs nothing
(`planner.plan.candidate.Timeline.waited`). In the order of that schedule the device never holds more
than in the simulation. Stores get the same waits, at the latest at the very end.

A tensor that comes back also gives up its slot on the host (`SwapInDone` in
`planner.lower.sequence`). A tensor that comes back twice is therefore copied out again, behind the
first operation that reads it after its first return.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.plan.problem import NO_PAGING, Action, ActionKind, Paging, Problem
from planner.simulate.simulate import simulate

RUN, OUT, IN, DONE = (
    ActionKind.RUN,
    ActionKind.SWAP_OUT,
    ActionKind.SWAP_IN,
    ActionKind.SWAP_OUT_DONE,
)


def with_waits(
    problem: Problem, actions: Sequence[Action], paging: Paging = NO_PAGING
) -> list[Action]:
    """Pair each copy, and add a wait for each copy out; existing waits are placed anew.

    The schedule stays as it is if copies do not overlap. A tensor with a copy on the host in any
    case (`PlanTensor.host_copy`) has no copy out, and no wait but that for a store.

    Args:
        paging: operations that are copies.
    """
    if not problem.overlap:
        return list(actions)
    pairs = paired(problem, actions, paging)
    line = simulate(problem, pairs, paging).timeline
    assert line is not None
    stored, begun = paging.stored(problem), set[int]()
    before: dict[int, list[int]] = {}
    for step, action in enumerate(pairs):
        target = _copied_out(problem, action, paging)
        if target is None or target in begun:
            continue
        if target in stored:
            begun.add(target)
        elif problem.tensors[target].host_copy:
            continue
        place = line.waited[step] if line.waited[step] >= 0 else len(pairs)
        before.setdefault(place, []).append(target)
    found: list[Action] = []
    for step in range(len(pairs) + 1):
        found += (Action(kind=DONE, target=t) for t in before.get(step, ()))
        found += pairs[step : step + 1]
    return found


def _copied_out(problem: Problem, action: Action, paging: Paging) -> int | None:
    """Return the tensor that an action copies out, as a swap or as a store; None for other actions."""
    if action.kind is RUN:
        return problem.ops[action.target].inputs[0] if action.target in paging.stores else None
    return action.target if action.kind is OUT else None


def unpaired(
    problem: Problem, actions: Sequence[Action], paging: Paging, *, beside: bool
) -> int | None:
    """Find a tensor whose copies are not one out, one wait and one back, in turns; None if there is none.

    A stored tensor has one wait, before which nothing comes back.

    Args:
        beside: copies run beside the operations; otherwise none has a wait.
    """
    waits = {action.target for action in actions if action.kind is DONE}
    stored = paging.stored(problem).keys() & waits
    if not beside:
        return min(waits, default=None)
    for odd in waits - stored:
        if problem.tensors[odd].host_copy:
            return odd
    after = {OUT: DONE, DONE: IN, IN: OUT}
    wanted: dict[int, ActionKind] = {}
    for action in actions:
        copied = _copied_out(problem, action, paging)
        target = action.target if copied is None else copied
        kind = action.kind if copied is None else OUT
        if kind is RUN or (problem.tensors[target].host_copy and target not in stored):
            continue
        expected = wanted.get(target, OUT)
        if target in stored and kind is OUT and expected is not OUT:
            continue  # the same copy
        if kind is not expected:
            return target
        wanted[target] = IN if target in stored and kind is IN else after[kind]
    ends = {t: IN if t in stored else OUT for t in wanted}
    return next((t for t, kind in wanted.items() if kind is not ends[t]), None)


def paired(problem: Problem, actions: Sequence[Action], paging: Paging = NO_PAGING) -> list[Action]:
    """Remove waits, copies in without a reader, and copies out that nothing brings back.

    Each copy in gets its own copy out. A store that a copy out has begun reads nothing more.
    """
    actions = [a for a in actions if a.kind is not DONE]
    begun = _begun(problem, actions, paging)
    read: set[int] = set()  # tensors whose newest copy has a later reader
    fetched: set[int] = set()  # tensors whose copy on the host is fetched later
    again: set[int] = set()  # places of copies in after which the tensor is fetched once more
    kept: list[int] = []
    for step in range(len(actions) - 1, -1, -1):
        action = actions[step]
        target = action.target
        if action.kind is RUN:
            read.difference_update(problem.ops[target].outputs)
            (fetched if target in begun else read).update(problem.ops[target].inputs)
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


def _begun(problem: Problem, actions: Sequence[Action], paging: Paging) -> set[int]:
    """Return the stores whose copy an earlier copy out makes."""
    out: set[int] = set()
    found: set[int] = set()
    for action in actions:
        if action.kind is OUT:
            out.add(action.target)
        elif action.kind is RUN and action.target in paging.stores:
            found |= {action.target} if problem.ops[action.target].inputs[0] in out else set()
    return found


def _taken(problem: Problem, action: Action) -> set[int]:
    """Return the tensors whose buffers an action may take for its outputs."""
    if action.kind is not RUN:
        return set()
    return {source for source, _ in problem.ops[action.target].inplace}
