"""Bytes that every plan must hold at the instant at which one base operation runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from planner.plan.problem import Problem


def held_at(problem: Problem, p: int) -> int:
    """Return the bytes that any schedule holds while base operation p runs.

    They are fixed bytes, inputs, outputs, workspace, and graph outputs made before; buffers that
    may be shared in place count once.
    """
    op = problem.ops[p]
    size = problem.fixed_bytes + op.workspace_bytes
    size += sum(problem.tensors[t].bytes for t in (*op.inputs, *op.outputs))
    credited = {target for _, target in op.inplace}
    size -= sum(problem.tensors[t].bytes for t in credited)
    inputs = set(op.inputs)
    size += sum(
        t.bytes
        for i, t in enumerate(problem.tensors)
        if t.to_end and t.producer < p and i not in inputs
    )
    return size


def min_peak_bound(problem: Problem, order: Sequence[int] | None = None) -> tuple[int, int]:
    """Return a lower bound on the peak of every schedule of the class, and the operation that sets it.

    The bound holds whatever the schedule recomputes. It is the largest `held_at`, in O(operations +
    tensors).

    Args:
        order: order in which the operations first run, if not the problem's.
    """
    best, where = problem.fixed_bytes, 0
    for p, own, stay in held_in_turn(problem, range(len(problem.ops)) if order is None else order):
        if own + stay > best:
            best, where = own + stay, p
    return best, where


def held_in_turn(problem: Problem, order: Iterable[int]) -> Iterator[tuple[int, int, int]]:
    """Yield each operation with the bytes that its first run holds: its own, and those that stay.

    Graph outputs made before it, which it may read, and fixed bytes stay.
    """
    tensors, stay = problem.tensors, problem.fixed_bytes
    for p in order:
        op = problem.ops[p]
        own = op.workspace_bytes + sum(tensors[t].bytes for t in op.outputs)
        own += sum(tensors[t].bytes for t in op.inputs if not tensors[t].to_end)
        own -= sum(tensors[t].bytes for t in {b for _, b in op.inplace})
        yield p, own, stay
        stay += sum(tensors[t].bytes for t in op.outputs if tensors[t].to_end)


def live_at(problem: Problem, p: int) -> tuple[list[int], list[int]]:
    """Return the tensors made before base operation p that need not be resident while it runs.

    Also returns those of them that are used after it; both in order.
    """
    inputs = set(problem.ops[p].inputs)
    live = [
        t
        for t, tensor in enumerate(problem.tensors)
        if tensor.producer < p and t not in inputs and not tensor.to_end
    ]
    after = [t for t in live if problem.tensors[t].uses and problem.tensors[t].uses[-1] > p]
    return live, after


def reachable(problem: Problem, after: Collection[int]) -> list[int]:
    """Return the operations that a plan might run again for the tensors `after` an instant, in order."""
    if not problem.allow_recompute:
        return []
    stack = [problem.tensors[t].producer for t in after]
    seen: set[int] = set()
    while stack:
        m = stack.pop()
        if m in seen or not problem.ops[m].recomputable:
            continue
        seen.add(m)
        stack.extend(problem.tensors[t].producer for t in problem.ops[m].inputs)
    return sorted(seen)


def needed_at(problem: Problem, p: int) -> tuple[list[int], list[int], list[int]]:
    """Return the tensors and operations that a plan decides on at an instant.

    They are the tensors live at p that are used after it, the operations that may run again after
    it, and the live tensors of use to either; see `live_at`, `reachable`.
    """
    live, after = live_at(problem, p)
    reruns = reachable(problem, after)
    wanted = set(after)
    for m in reruns:
        wanted.update(problem.ops[m].inputs)
    return after, reruns, sorted(wanted.intersection(live))
