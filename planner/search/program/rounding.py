"""Round a fractional plan to decisions."""

from __future__ import annotations

from collections.abc import Sequence

from planner.bound.lp import LpSolution
from planner.plan.decisions import Choice, Decisions, Gap
from planner.plan.problem import Problem


def round_solution(
    problem: Problem,
    instants: Sequence[int],
    solution: LpSolution,
    *,
    threshold: float = 0.5,
    spread: bool = False,
) -> Decisions:
    """Round a fractional plan.

    A tensor that is resident by less than `threshold` at an instant is dropped or swapped.

    Args:
        spread: if tensors are partly resident and partly on the host, keep as many of them, evenly
            over the run, that as many bytes stay (error diffusion: Floyd and Steinberg, 1976).
    """
    gaps: dict[Gap, Choice] = {}
    extended: set[int] = set()
    for p in instants:
        carried = 0.0  # bytes to keep resident, carried over
        for (t, instant), value in solution.resident.items():
            if instant != p:
                continue
            tensor = problem.tensors[t]
            producer = problem.ops[tensor.producer]
            droppable = problem.allow_recompute and producer.recomputable
            swap = solution.swapped.get((t, p), 0.0)
            rerun = solution.rerun.get((tensor.producer, p), 0.0) if droppable else 0.0
            gap = next((i for i, u in enumerate(tensor.uses) if u > p), None)
            keep = value >= threshold
            if spread and rerun < 0.5 and swap + value > 0:
                carried += value / (swap + value) * tensor.bytes
                keep = 2 * carried >= tensor.bytes and (gap is None or (t, gap) not in gaps)
                carried -= keep * tensor.bytes
            if gap is None:
                if keep:
                    extended.add(t)
            elif not keep:
                if swap > 0 and (swap >= rerun or not droppable):
                    gaps[t, gap] = Choice.SWAP
                elif droppable:
                    gaps[t, gap] = Choice.DROP
    return Decisions(gaps=gaps, extended=frozenset(extended))
