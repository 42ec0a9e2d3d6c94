"""Orders derived from an order: updates last, operations early or late, moves that lower the peak."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from planner import clock
from planner.order.lists import Order
from planner.order.reorder import Lives, children_of, parents_of
from planner.plan.problem import Problem

_UPDATE_OUTPUTS = 4  # a new parameter with up to three states

_SCALAR_BYTES = 1024

_MAX_MOVED = 24
"""Number of tensors held at the peak, largest first, for which moves are tried."""

_MAX_PULLED = 200  # one move pulls fewer operations ahead of the peak


def updates_last(problem: Problem, order: Sequence[int]) -> Order:
    """Move the operations that only finish a few outputs behind all others.

    Those are optimizer updates: from a gradient and persistent tensors they make the new parameter
    and its state, which then stay to the end. If run at once, as by `list_schedule`, the new values
    pile up beside the activations; if run last, only the gradients wait.
    """
    outputs = {t: 1 << i for i, t in enumerate(_to_end(problem))}
    readers = children_of(problem)
    reach = [0] * len(problem.ops)
    for v in reversed(order):
        for u in readers[v]:
            reach[v] |= reach[u]
        for t in problem.ops[v].outputs:
            reach[v] |= outputs.get(t, 0)

    def is_private(v: int) -> bool:
        return reach[v].bit_count() <= _UPDATE_OUTPUTS

    deferred: set[int] = set()
    for v in reversed(order):
        made_privately = all(
            is_private(problem.tensors[t].producer) or problem.tensors[t].bytes <= _SCALAR_BYTES
            for t in problem.ops[v].inputs
        )
        if is_private(v) and made_privately and deferred.issuperset(readers[v]):
            deferred.add(v)
    return (*(v for v in order if v not in deferred), *(v for v in order if v in deferred))


def pull_early(problem: Problem, order: Sequence[int], ops: Collection[int]) -> Order:
    """Move each of `ops` right behind the last operation that it reads from.

    For operations that read only a tensor's shape: run late, they would keep the tensor.
    """
    parents = parents_of(problem)
    place = {op: i for i, op in enumerate(order)}
    pulled = sorted(ops, key=place.__getitem__)
    missing = {op: len(parents[op]) for op in pulled}
    followers: dict[int, list[int]] = {}
    for op in pulled:
        for parent in parents[op]:
            followers.setdefault(parent, []).append(op)
    free = (op for op in pulled if not parents[op])
    moved: list[int] = []
    stack = [*free, *(op for op in order if op not in missing)][::-1]
    while stack:
        op = stack.pop()
        moved.append(op)
        ready: list[int] = []
        for follower in followers.get(op, ()):
            missing[follower] -= 1
            if not missing[follower]:
                ready.append(follower)
        stack.extend(reversed(ready))
    return tuple(moved)


def push_late(problem: Problem, order: Sequence[int], ops: Collection[int]) -> Order:
    """Move each of `ops` right before the first operation that reads from it.

    For copies from the host: run early, they would hold tensors that are not needed yet.
    """
    place = {op: i for i, op in enumerate(order)}
    first = dict.fromkeys(ops, len(order))
    for op, parents in enumerate(parents_of(problem)):
        for parent in parents:
            if parent in first:
                first[parent] = min(first[parent], place[op])
    ahead: dict[int, list[int]] = {}
    for op in sorted(ops, key=place.__getitem__):
        ahead.setdefault(first[op], []).append(op)
    moved: list[int] = []
    for i, op in enumerate(order):
        moved.extend(ahead.get(i, ()))
        if op not in first:
            moved.append(op)
    return (*moved, *ahead.get(len(order), ()))


def _to_end(problem: Problem) -> list[int]:
    return [t for t, tensor in enumerate(problem.tensors) if tensor.to_end and tensor.bytes]


def improve_order(
    problem: Problem, order: Sequence[int], *, out_of_time: Callable[[], bool], rounds: int = 200
) -> Order:
    """Lower the peak by local moves, while it falls.

    A move pulls an operation that frees memory before the peak, or pushes one that allocates behind
    it.
    """
    parents = parents_of(problem)
    lives = Lives(problem)
    best = np.array(order, dtype=np.int64)
    best_live = lives.live_bytes(best)
    least = _height(best_live)
    for _ in range(rounds):
        if out_of_time():
            break
        peak = int(best_live.argmax())
        moved = False
        for trial in _moves(lives, parents, best, peak):
            if out_of_time():
                break
            clock.spend(clock.MOVED_S * len(order))
            live = lives.live_bytes(trial)
            if (height := _height(live)) < least:
                best, best_live, least, moved = trial, live, height, True
                break
        if not moved:
            break
    return tuple(best.tolist())


def _height(live: np.ndarray) -> tuple[int, int]:
    """Return the peak, and the number of operations that reach it."""
    peak = live.max()
    return int(peak), int(np.count_nonzero(live == peak))


def _moves(
    lives: Lives, parents: list[list[int]], order: np.ndarray, peak: int
) -> Iterator[np.ndarray]:
    """Yield orders in which one operation, with its ancestors, moves across the peak."""
    problem = lives.problem
    place, birth, last = lives.ranges(order)
    position = place.tolist()
    early, late = order[:peak], order[peak:]
    waiting = np.flatnonzero((birth < peak) & (peak < last) & ~lives.to_end)
    largest = np.lexsort((waiting, lives.bytes[waiting]))[::-1]
    for t in waiting[largest[:_MAX_MOVED]].tolist():
        tensor = problem.tensors[t]
        pulled: set[int] = set()
        stack = [u for u in tensor.uses if position[u] > peak]
        while stack:
            op = stack.pop()
            if op in pulled or position[op] < peak:
                continue
            pulled.add(op)
            stack.extend(p for p in parents[op] if position[p] >= peak)
        if order[peak] not in pulled and len(pulled) < _MAX_PULLED:
            is_pulled = np.zeros(len(order), dtype=bool)
            is_pulled[list(pulled)] = True
            first = is_pulled[late]
            yield np.concatenate([early, late[first], late[~first]])
        if all(position[u] > peak for u in tensor.uses):
            pushed = _push(problem, order, position, tensor.producer, peak)
            if pushed is not None:
                yield pushed


def _push(
    problem: Problem, order: np.ndarray, position: list[int], op: int, peak: int
) -> np.ndarray | None:
    """Move `op` behind the peak, just before its first reader; None if that is impossible."""
    readers = [position[u] for t in problem.ops[op].outputs for u in problem.tensors[t].uses]
    if not readers or min(readers) <= peak:
        return None
    target = min(readers)
    start = position[op]
    return np.concatenate([order[:start], order[start + 1 : target], [op], order[target:]])
