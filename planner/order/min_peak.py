"""The order in which what no plan can go below (`planner.bound.instants`) is least.

The cost of an operation, what is held as it first runs, depends on the set of the
operations before it, not on their order, and only grows with it. The order whose dearest operation is
cheapest then comes from the end: of the operations that no other left must follow, the cheapest goes
last (Lawler, "Optimal Sequencing of a Single Machine Subject to Precedence Constraints", Management
Science 19, 1973; his argument needs no more than that).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from planner.plan.problem import Problem


def min_peak_order(problem: Problem, prefer: Sequence[int]) -> tuple[list[int], int]:
    """The order in which `min_peak_bound` is least, and that bound: no plan in any order has a
    peak below it.

    Indices into `problem.ops`, in O((operations + tensors) · log operations).

    Args:
        prefer: an order; where there is a choice, what comes later in it stays later.
    """
    tensors, ops = problem.tensors, problem.ops
    rank = {op: i for i, op in enumerate(prefer)}
    made = [sum(tensors[t].bytes for t in op.outputs if tensors[t].to_end) for op in ops]
    own = []  # bytes that an operation holds besides the graph outputs before it and its own
    for op in ops:
        held = op.workspace_bytes
        held += sum(tensors[t].bytes for t in (*op.inputs, *op.outputs) if not tensors[t].to_end)
        own.append(held - sum(tensors[t].bytes for t in {target for _, target in op.inplace}))
    bound, _ = _from_the_end(problem, own, made, rank, limit=-1)
    _, order = _from_the_end(problem, own, made, rank, limit=bound)
    return order, bound


def _from_the_end(
    problem: Problem, own: Sequence[int], made: Sequence[int], rank: dict[int, int], *, limit: int
) -> tuple[int, list[int]]:
    """(largest bytes held, order): of the operations that may be last, that of the highest rank whose
    cost is within `limit`, or the cheapest."""
    ops, tensors = problem.ops, problem.tensors
    waiting = [len({u for t in op.outputs for u in tensors[t].uses}) for op in ops]
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
