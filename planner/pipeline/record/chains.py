"""Recompute chains of the tensors that come back in a plan.

`planner.search.repair.closure` finds the chain of one tensor at one action, and scans the lives of
all tensors that the chain reads. Here one pass over the actions tracks the tensors on the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from planner.plan.problem import Problem
from planner.search.repair import MAX_CLOSURE

Chain = tuple[list[int], int | None]
"""The result of `planner.search.repair.closure`."""


def chains_of(
    problem: Problem,
    copies: Mapping[int, Sequence[tuple[int, int]]],
    returns: Sequence[tuple[int, int]],
) -> Iterator[tuple[int, Chain]]:
    """Yield (index into `returns`, chain of operations) for each return, by ascending action.

    Args:
        copies: by tensor, the half-open ranges of actions in which it is on the device.
        returns: (tensor, action at which it comes back).
    """
    lives = [(birth, end, t) for t, ranges in copies.items() for birth, end in ranges]
    begin = sorted((birth, t) for birth, end, t in lives if birth < end)
    cease = sorted((end, t) for birth, end, t in lives if birth < end)
    there = [0] * len(problem.tensors)
    begun = ceased = 0
    chain = _Chains(problem, there)
    for index in sorted(range(len(returns)), key=lambda i: returns[i][1]):
        tensor, step = returns[index]
        while begun < len(begin) and begin[begun][0] < step:
            there[begin[begun][1]] += 1
            begun += 1
        while ceased < len(cease) and cease[ceased][0] <= step:
            there[cease[ceased][1]] -= 1
            ceased += 1
        yield index, chain.of(tensor)


class _Chains:
    """Recompute chains of a problem; `there` counts the copies of each tensor on the device."""

    def __init__(self, problem: Problem, there: Sequence[int]) -> None:
        self.there = there
        self.producers = [t.producer for t in problem.tensors]
        self.inputs = [op.inputs for op in problem.ops]
        self.recomputable = [op.recomputable for op in problem.ops]

    def of(self, tensor: int) -> Chain:
        there, producers, inputs = self.there, self.producers, self.inputs
        stack = [producers[tensor]]
        seen: dict[int, None] = {}
        while stack:
            op = stack.pop()
            if op in seen:
                continue
            if not self.recomputable[op] or len(seen) > MAX_CLOSURE:
                return list(seen), op
            seen[op] = None
            for t in inputs[op]:
                if not there[t] and t != tensor and producers[t] not in seen:
                    stack.append(producers[t])
        return list(seen), None
