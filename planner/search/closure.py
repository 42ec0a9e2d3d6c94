"""The operations that bring a tensor back, and when tensors are on the device."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from operator import itemgetter

from planner import clock
from planner.plan.problem import Problem

MAX_CLOSURE = 400
"""Limit on the length of a recompute chain, exceeded by at most one."""

Closure = tuple[list[int], int | None]
"""The result of `closure`."""


class Stays:
    """When each tensor is on the device.

    Args:
        copies: (tensor, birth, end) of each copy: the half-open range of actions in which it is
            there, as in `Replay.copies`. Copies of one tensor may overlap.
    """

    def __init__(self, copies: Iterable[tuple[int, int, int]]) -> None:
        self._births: dict[int, list[int]] = {}
        self._latest: dict[int, list[int]] = {}  # the latest end of a copy born until then
        for tensor, birth, end in sorted(copies, key=itemgetter(1)):  # a replay's are in this order
            latest = self._latest.setdefault(tensor, [])
            latest.append(max(end, latest[-1]) if latest else end)
            self._births.setdefault(tensor, []).append(birth)

    def cover(self, tensor: int, step: int) -> bool:
        """Tell whether a copy made before action `step` is still there after it."""
        born = bisect_left(self._births.get(tensor, ()), step)
        return born > 0 and self._latest[tensor][born - 1] > step


def closure(
    problem: Problem, stays: Stays, tensor: int, step: int, most_us: float = float("inf")
) -> Closure:
    """Return the operations to run again for `tensor` at `step`, and the one that blocks the chain.

    The operations make the tensor, and whatever of their inputs is missing then. One blocks the
    chain if it may not run again, or if the chain becomes too long there, or takes more than
    `most_us`. It is None if no operation does.
    """
    stack = [problem.tensors[tensor].producer]
    seen: dict[int, None] = {}
    chain_us = 0.0
    while stack:
        producer = stack.pop()
        if producer in seen:
            continue
        op = problem.ops[producer]
        chain_us += op.duration_us
        if not op.recomputable or len(seen) > MAX_CLOSURE or chain_us > most_us:
            return list(seen), producer
        seen[producer] = None
        for t in op.inputs:
            if t != tensor and not stays.cover(t, step):
                stack.append(problem.tensors[t].producer)
    clock.spend(clock.CLOSED_S * len(seen))
    return list(seen), None
