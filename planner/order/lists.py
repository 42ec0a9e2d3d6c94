"""List schedules, and the order of the lowest bound, as base orders: a better order costs no time.

Each candidate is a topological order of a problem's operations. ONNX Runtime can run any of them
under default options (`planner.lower.order.realize`).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from planner.order.reorder import children_of, parents_of
from planner.plan.problem import Problem

Order = tuple[int, ...]
"""A permutation of operation indices."""


def list_schedule(problem: Problem, priority: Sequence[float], *, eager: bool = True) -> Order:
    """Schedule by list: run a ready operation that frees at least as much as it allocates, if `eager`.

    Without such an operation, or without `eager`, run the one of least `priority`. With the file's
    order as priority this runs each weight gradient as soon as possible, which frees the incoming
    gradients that ONNX Runtime's default order keeps to the end.
    """
    children, missing = children_of(problem), [len(ps) for ps in parents_of(problem)]
    readers = [len(t.uses) for t in problem.tensors]
    ready = [v for v, count in enumerate(missing) if not count]
    heap = [(priority[v], v) for v in ready]
    heapq.heapify(heap)
    waiting = set(ready)
    order: list[int] = []

    def growth(v: int) -> int:
        return _growth(problem, v, readers)

    shrinking: list[tuple[int, float, int]] = []
    if eager:
        shrinking = [(growth(v), priority[v], v) for v in ready]
        heapq.heapify(shrinking)

    def shrinks() -> int:
        while shrinking:
            grown, rank, u = shrinking[0]
            if u not in waiting:
                heapq.heappop(shrinking)
            elif (now := growth(u)) != grown:
                heapq.heapreplace(shrinking, (now, rank, u))
            else:
                return u if grown <= 0 else -1
        return -1

    while waiting:
        v = shrinks()
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
        for child in children[v]:
            missing[child] -= 1
            if not missing[child]:
                waiting.add(child)
                heapq.heappush(heap, (priority[child], child))
                touched.add(child)
        if eager:
            for u in touched:
                heapq.heappush(shrinking, (growth(u), priority[u], u))
    return tuple(order)


def _growth(problem: Problem, v: int, readers: Sequence[int]) -> int:
    """Return the bytes that an operation allocates less those that it frees.

    Args:
        readers: by tensor, the operations that still have to read it.
    """
    op, tensors = problem.ops[v], problem.tensors
    freed = (tensors[t] for t in op.inputs if readers[t] == 1)
    grown = sum(tensors[t].bytes for t in op.outputs)
    return grown - sum(tensor.bytes for tensor in freed if not tensor.to_end)


def late_schedule(problem: Problem, priority: Sequence[float]) -> Order:
    """Build a list schedule from the last operation to the first.

    Of the operations whose readers have all been placed, the next one is that which saves most before
    it, as long as the device then holds no more before it than after it; otherwise the one of greatest
    `priority`. Optimizer updates come as late as possible: until then their gradients are held, which
    are smaller than the updated values.
    """
    parents = parents_of(problem)
    waiting_for = [len(children) for children in children_of(problem)]
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
        # growth only falls while an operation is ready: its outdated entries come after it was placed
        while shrinking[0][-1] not in ready:
            heapq.heappop(shrinking)
        while last[0][-1] not in ready:
            heapq.heappop(last)
        v = shrinking[0][-1] if shrinking[0][0] <= 0 else last[0][-1]
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


def min_peak_order(
    problem: Problem, prefer: Sequence[int], *, within: int = 0
) -> tuple[list[int], int]:
    """Return the order with the lowest `min_peak_bound`, and that bound: no plan has a lower peak.

    The bound holds for plans in any order. The order has indices into `problem.ops`. Takes
    O((operations + tensors) · log operations).

    The cost of an operation, the bytes held as it first runs, depends on the set of operations before
    it, not on their order, and only grows with it. The order whose dearest operation is cheapest is
    therefore built from the end: of the operations that no other remaining one must follow, the
    cheapest goes last (Lawler, "Optimal Sequencing of a Single Machine Subject to Precedence
    Constraints", Management Science 19, 1973; his argument needs no more than that).

    Args:
        prefer: an order; ties are broken in favour of it: later operations stay later.
        within: bytes that are as good as fewer: the order leaves `prefer` only where an operation
            holds more, and its own bound is this at most, or the lowest.
    """
    tensors, ops = problem.tensors, problem.ops
    rank = {op: i for i, op in enumerate(prefer)}
    made = [sum(tensors[t].bytes for t in op.outputs if tensors[t].to_end) for op in ops]
    own = []  # bytes that an operation holds besides graph outputs, its own and earlier ones
    for op in ops:
        held = op.workspace_bytes
        held += sum(tensors[t].bytes for t in (*op.inputs, *op.outputs) if not tensors[t].to_end)
        own.append(held - sum(tensors[t].bytes for t in {target for _, target in op.inplace}))
    bound, _ = _from_the_end(problem, own, made, rank, limit=-1)
    _, order = _from_the_end(problem, own, made, rank, limit=max(bound, within))
    return order, bound


def _from_the_end(
    problem: Problem, own: Sequence[int], made: Sequence[int], rank: dict[int, int], *, limit: int
) -> tuple[int, list[int]]:
    """Return the largest bytes held, and the order, built from the end.

    Of the operations that may be last, it takes the one of the highest rank whose cost is within
    `limit`, or the cheapest.
    """
    ops, tensors = problem.ops, problem.tensors
    waiting = [len(children) for children in children_of(problem)]
    stay = problem.fixed_bytes + sum(made)
    dear = [(own[m], -rank[m], m) for m in range(len(ops)) if not waiting[m]]
    heapq.heapify(dear)
    within: list[tuple[int, int]] = []
    most = problem.fixed_bytes
    order: list[int] = []
    while dear or within:
        while dear and stay + dear[0][0] <= limit:
            _, place, m = heapq.heappop(dear)
            heapq.heappush(within, (place, m))
        m = heapq.heappop(within)[1] if within else heapq.heappop(dear)[2]
        order.append(m)
        most = max(most, stay + own[m])
        stay -= made[m]
        for maker in {tensors[t].producer for t in ops[m].inputs}:
            waiting[maker] -= 1
            if not waiting[maker]:
                heapq.heappush(dear, (own[maker], -rank[maker], maker))
    return most, order[::-1]
