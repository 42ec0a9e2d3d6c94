"""Base orders: order alone is free memory.

Each candidate is a topological order of a problem's operations.
Any of them can be run by ONNX Runtime under default options (`planner.lower.realize`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np

from planner.plan.problem import OpIndex, PlanTensor, Problem

Order = tuple[int, ...]
"""A permutation of operation indices."""


_UPDATE_OUTPUTS = 4  # a new parameter with up to three states
_SCALAR_BYTES = 1024


def parents_of(problem: Problem) -> list[list[int]]:
    """Operations that each operation must follow."""
    return [sorted({problem.tensors[t].producer for t in op.inputs}) for op in problem.ops]


def reorder(problem: Problem, order: Sequence[int]) -> Problem:
    """The same problem with its operations in another topological order; tensors keep their index."""
    position = [OpIndex(0)] * len(order)
    for place, op in enumerate(order):
        position[op] = OpIndex(place)

    def move(tensor: PlanTensor) -> PlanTensor:
        return PlanTensor(
            name=tensor.name,
            bytes=tensor.bytes,
            producer=position[tensor.producer],
            uses=tuple(sorted([position[u] for u in tensor.uses])),
            to_end=tensor.to_end,
            swappable=tensor.swappable,
            host_copy=tensor.host_copy,
        )

    return replace(
        problem,
        ops=tuple(problem.ops[op] for op in order),
        tensors=tuple(move(t) for t in problem.tensors),
    )


def peak_of(problem: Problem, order: Sequence[int]) -> int:
    """Peak of the operations run once, in this order."""
    return int(_Lives(problem).live_bytes(order).max())


class _Lives:
    """Live bytes of any order of one problem, each operation run once: what the simulator says of
    the reordered problem, without building it."""

    def __init__(self, problem: Problem) -> None:
        tensors = problem.tensors
        self.problem = problem
        self.bytes = np.array([t.bytes for t in tensors], dtype=np.int64)
        self.producer = np.array([t.producer for t in tensors], dtype=np.int64)
        self.to_end = np.array([t.to_end for t in tensors], dtype=bool)
        self.workspace = np.array([op.workspace_bytes for op in problem.ops], dtype=np.int64)
        # uses of all tensors in one array; a tensor without any counts its producer as one
        uses = [t.uses or (t.producer,) for t in tensors]
        self.uses = np.fromiter((u for us in uses for u in us), dtype=np.int64)
        self.starts = np.cumsum([0, *(len(us) for us in uses[:-1])]) if uses else np.zeros(0, int)
        self.inplace = [(v, op.inplace) for v, op in enumerate(problem.ops) if op.inplace]

    def live_bytes(self, order: Sequence[int]) -> np.ndarray:
        """int64 [operations], by place in the order."""
        steps = len(order)
        place = np.empty(steps, dtype=np.int64)
        at = np.asarray(order, dtype=np.int64)
        place[at] = np.arange(steps)
        birth = place[self.producer]
        end = np.maximum(np.maximum.reduceat(place[self.uses], self.starts), birth) + 1
        end[self.to_end] = steps
        for v, pairs in self.inplace:
            taken: set[int] = set()
            for source, target in pairs:
                dies = end[source] == place[v] + 1 and not self.to_end[source]
                if dies and birth[source] < place[v] and target not in taken:
                    end[source] -= 1
                    taken.add(target)
        delta = np.zeros(steps + 1, dtype=np.int64)
        np.add.at(delta, birth, self.bytes)
        np.add.at(delta, end, -self.bytes)
        return np.cumsum(delta)[:steps] + self.problem.fixed_bytes + self.workspace[at]


def list_schedule(problem: Problem, priority: Sequence[float], *, eager: bool = True) -> Order:
    """List scheduling: of the operations that are ready, run one that frees at least as much as it
    allocates, if there is any (`eager`), else the one of least `priority`.

    With the file's order as priority this runs each weight gradient as soon as it can be, which
    frees the incoming gradients that ONNX Runtime's default order keeps to the end.
    """
    return _ListScheduler(problem).run(priority, eager=eager)


def late_schedule(problem: Problem, priority: Sequence[float]) -> Order:
    """List scheduling from the end: of the operations whose readers have all been placed, place one
    before which the device holds no more than behind it, if there is any, else the one of most
    `priority`.

    This puts each optimizer update as late as it can be: its gradient waits, which is smaller than
    the new values.
    """
    parents = parents_of(problem)
    waiting_for = [0] * len(parents)
    for ps in parents:
        for p in ps:
            waiting_for[p] += 1
    live = {t for t, tensor in enumerate(problem.tensors) if tensor.to_end}
    size = [t.bytes for t in problem.tensors]

    def growth(v: int) -> int:
        op = problem.ops[v]
        return sum(size[t] for t in op.inputs if t not in live) - sum(size[t] for t in op.outputs)

    ready = {v for v, count in enumerate(waiting_for) if not count}
    shrinking = [(growth(v), -priority[v], v) for v in ready]
    heapq.heapify(shrinking)
    last = [(-priority[v], v) for v in ready]
    heapq.heapify(last)
    placed: list[int] = []
    while ready:
        v = -1
        while shrinking:
            grown, rank, u = shrinking[0]
            if u not in ready:
                heapq.heappop(shrinking)
            elif (now := growth(u)) != grown:
                heapq.heapreplace(shrinking, (now, rank, u))
            else:
                v = u if grown <= 0 else -1
                break
        if v < 0:
            while last[0][1] not in ready:
                heapq.heappop(last)
            v = last[0][1]
        ready.discard(v)
        placed.append(v)
        op = problem.ops[v]
        live.difference_update(op.outputs)
        new = [t for t in op.inputs if t not in live]
        live.update(new)
        touched: set[int] = {u for t in new for u in problem.tensors[t].uses if u in ready}
        for p in parents[v]:
            waiting_for[p] -= 1
            if not waiting_for[p]:
                ready.add(p)
                heapq.heappush(last, (-priority[p], p))
                touched.add(p)
        for u in touched:
            heapq.heappush(shrinking, (growth(u), -priority[u], u))
    return tuple(reversed(placed))


def updates_last(problem: Problem, order: Sequence[int]) -> Order:
    """The same order with the operations that only finish a few outputs moved behind all others.

    Those are optimizer updates: from a gradient and persistent tensors they make the new parameter
    and its state, which then stay to the end. Run at once, as `list_schedule` would, the new values
    pile up beside the activations; run last, only the gradients wait.
    """
    outputs = {t: 1 << i for i, t in enumerate(_to_end(problem))}
    readers: list[list[int]] = [[] for _ in problem.ops]
    for v, ps in enumerate(parents_of(problem)):
        for p in ps:
            readers[p].append(v)
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
    """The same order with each of `ops` right behind the last operation that it reads from.

    For operations that read no more than a tensor's shape: run late, they would keep it.
    """
    followers: dict[int, list[int]] = {}
    parents = parents_of(problem)
    place = {op: i for i, op in enumerate(order)}
    free = []
    for op in sorted(ops, key=place.__getitem__):
        if parents[op]:
            followers.setdefault(max(parents[op], key=place.__getitem__), []).append(op)
        else:
            free.append(op)
    moved: list[int] = []
    stack = [op for op in reversed([*free, *(op for op in order if op not in ops)])]
    while stack:
        op = stack.pop()
        moved.append(op)
        stack.extend(reversed(followers.get(op, ())))
    return tuple(moved)


def push_late(problem: Problem, order: Sequence[int], ops: Collection[int]) -> Order:
    """The same order with each of `ops` right before the first operation that reads from it.

    For copies from the host: run early, they would hold what is not needed yet.
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


class _ListScheduler:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.parents = parents_of(problem)
        self.children: list[list[int]] = [[] for _ in problem.ops]
        for v, ps in enumerate(self.parents):
            for p in ps:
                self.children[p].append(v)

    def run(self, priority: Sequence[float], *, eager: bool) -> Order:
        problem = self.problem
        missing = [len(p) for p in self.parents]
        readers = [len(t.uses) for t in problem.tensors]
        ready = [v for v, count in enumerate(missing) if not count]
        heap = [(priority[v], v) for v in ready]
        heapq.heapify(heap)
        waiting = set(ready)
        order: list[int] = []

        def growth(v: int) -> int:
            op = problem.ops[v]
            grown = sum(problem.tensors[t].bytes for t in op.outputs)
            for t in op.inputs:
                tensor = problem.tensors[t]
                if readers[t] == 1 and not tensor.to_end:
                    grown -= tensor.bytes
            return grown

        shrinking: list[tuple[int, float, int]] = []
        if eager:
            shrinking = [(growth(v), priority[v], v) for v in ready]
            heapq.heapify(shrinking)
        while waiting:
            v = -1
            while shrinking:
                grown, rank, u = shrinking[0]
                if u not in waiting:
                    heapq.heappop(shrinking)
                    continue
                now = growth(u)
                if now != grown:
                    heapq.heapreplace(shrinking, (now, rank, u))
                    continue
                if grown <= 0:
                    v = u
                break
            if v < 0:
                while heap[0][1] not in waiting:
                    heapq.heappop(heap)
                v = heap[0][1]
            waiting.discard(v)
            order.append(v)
            touched: set[int] = set()
            for t in problem.ops[v].inputs:
                readers[t] -= 1
                if readers[t] == 1:
                    touched.update(u for u in problem.tensors[t].uses if u in waiting)
            for child in self.children[v]:
                missing[child] -= 1
                if not missing[child]:
                    waiting.add(child)
                    heapq.heappush(heap, (priority[child], child))
                    touched.add(child)
            if eager:
                for u in touched:
                    heapq.heappush(shrinking, (growth(u), priority[u], u))
        return tuple(order)


def improve_order(
    problem: Problem, order: Sequence[int], *, out_of_time: Callable[[], bool], rounds: int = 200
) -> Order:
    """Local moves: pull an operation that frees memory before the peak, or push one that allocates
    behind it, while the peak falls."""
    parents = parents_of(problem)
    best = list(order)
    lives = _Lives(problem)
    best_live = lives.live_bytes(best)
    for _ in range(rounds):
        if out_of_time():
            break
        peak = int(best_live.argmax())
        moved = False
        for trial in _moves(problem, parents, best, peak):
            if out_of_time():
                break
            live = lives.live_bytes(trial)
            if (int(live.max()), int((live == live.max()).sum())) < (
                int(best_live.max()),
                int((best_live == best_live.max()).sum()),
            ):
                best, best_live, moved = trial, live, True
                break
        if not moved:
            break
    return tuple(best)


def _moves(
    problem: Problem, parents: list[list[int]], order: list[int], peak: int
) -> list[list[int]]:
    """Orders in which one operation, with what it needs, moves across the peak."""
    position = {op: i for i, op in enumerate(order)}
    at_peak = order[peak]
    moves: list[list[int]] = []
    alive: list[tuple[int, int]] = []
    for t, tensor in enumerate(problem.tensors):
        last = max((position[u] for u in tensor.uses), default=-1)
        if position[tensor.producer] < peak < last and not tensor.to_end:
            alive.append((tensor.bytes, t))
    for _, t in sorted(alive, reverse=True)[:24]:
        tensor = problem.tensors[t]
        later = sorted(position[u] for u in tensor.uses if position[u] > peak)
        pulled: set[int] = set()
        stack = [order[i] for i in later]
        while stack:
            op = stack.pop()
            if op in pulled or position[op] < peak:
                continue
            pulled.add(op)
            stack.extend(p for p in parents[op] if position[p] >= peak)
        if at_peak not in pulled and len(pulled) < 200:
            front = [op for op in order[peak:] if op in pulled]
            rest = [op for op in order[peak:] if op not in pulled]
            moves.append([*order[:peak], *front, *rest])
        if all(position[u] > peak for u in tensor.uses):
            pushed = _push(problem, order, position, tensor.producer, peak)
            if pushed is not None:
                moves.append(pushed)
    return moves


def _push(
    problem: Problem, order: list[int], position: dict[int, int], op: int, peak: int
) -> list[int] | None:
    """Move `op` behind the peak, just before its first reader."""
    readers = [position[u] for t in problem.ops[op].outputs for u in problem.tensors[t].uses]
    if not readers or min(readers) <= peak:
        return None
    target = min(readers)
    start = position[op]
    return [*order[:start], *order[start + 1 : target], op, *order[target:]]
