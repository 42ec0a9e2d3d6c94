"""Simple plans, as a careful engineer would try first: the floor under every other engine.

    by distance   swap the tensors that wait longest, as many as are needed (Le et al., "TFLMS: Large
                  Model Support in TensorFlow by Graph Rewriting", arXiv:1807.02037)

It decides only the gaps over the fullest operation. Plans need not fit; the caller replays them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from planner.plan.decisions import Choice, Decisions, Gap
from planner.plan.problem import Problem


def open_gaps(problem: Problem, at: int) -> list[tuple[Gap, int]]:
    """Return (gap, operations that it spans) for the tensors that wait over base operation `at`."""
    found = []
    for t, tensor in enumerate(problem.tensors):
        if tensor.producer >= at or tensor.to_end or not tensor.bytes:
            continue
        g = bisect_left(tensor.uses, at)
        if g == len(tensor.uses) or tensor.uses[g] == at:
            continue
        opened = tensor.uses[g - 1] if g else tensor.producer
        found.append(((t, g), tensor.uses[g] - opened))
    return found


def distance_plans(problem: Problem, at: int, excess_bytes: int) -> Iterator[Decisions]:
    """Yield plans that swap the longest waits over base operation `at`.

    They swap as many as free `excess_bytes` there, half as many again, and all.
    """
    if not problem.allow_swap:
        return
    waiting = [
        (gap, span) for gap, span in open_gaps(problem, at) if problem.tensors[gap[0]].swappable
    ]
    waiting.sort(key=lambda item: -item[1])
    freed, needed = 0, 0
    for gap, _ in waiting:
        if freed >= excess_bytes:
            break
        freed += problem.tensors[gap[0]].bytes
        needed += 1
    for count in sorted({needed, needed + needed // 2, len(waiting)}):
        yield Decisions(gaps={gap: Choice.SWAP for gap, _ in waiting[:count]})
