"""The order with the lowest bound on the peak (`planner.bound.instants`).

The cost of an operation, the bytes held as it first runs, depends on the set of operations before
it, not on their order, and only grows with it. The order whose dearest operation is cheapest is
therefore built from the end: of the operations that no other remaining one must follow, the
cheapest goes last (Lawler, "Optimal Sequencing of a Single Machine Subject to Precedence
Constraints", Management Science 19, 1973; his argument needs no more than that).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from planner.plan.problem import Problem


def min_peak_order(problem: Problem, prefer: Sequence[int]) -> tuple[list[int], int]:
    """Return the order with the lowest `min_peak_bound`, and that bound: no plan has a lower peak.

    The bound holds for plans in any order. The order has indices into `problem.ops`. Takes
    O((operations + tensors) · log operations).

    Args:
        prefer: an order; ties are broken in favour of it: later operations stay later.
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
    _, order = _from_the_end(problem, own, made, rank, limit=bound)
    return order, bound


def _from_the_end(
    problem: Problem, own: Sequence[int], made: Sequence[int], rank: dict[int, int], *, limit: int
) -> tuple[int, list[int]]:
    """Return the largest bytes held, and the order, built from the end.

    Of the operations that may be last, it takes the one of the highest rank whose cost is within
    `limit`, or the cheapest.
    """
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
