"""A schedule by stages, and the bytes that it holds along the axis of its runs.

Stage q lies between base operations q-1 and q. It runs its recomputes, by index, and then base
operation q. The pair (stage, operation) identifies a run and sorts runs; in a base run the two are
equal. A copy out follows the base run that produces the tensor, and a copy in comes just before the
run that reads it: if copies and operations share one stream, no other place is faster or takes less
memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from planner.plan.problem import Action, ActionKind, Problem

Run = tuple[int, int]
"""A run as (stage, operation)."""

_NOTHING: frozenset[int] = frozenset()

Span = tuple[int, int]
"""Half-open range of the axis: 2i is the point before run i, 2i + 1 is run i."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSchedule:
    """A schedule whose base operations run in base order.

    Attributes:
        reruns: the recomputes.
        back: (run, tensor) pairs: the tensor is copied in just before the run, which reads it.
    """

    reruns: frozenset[Run]
    back: frozenset[tuple[Run, int]]


def stage_schedule(problem: Problem, actions: Sequence[Action]) -> StageSchedule:
    """Convert actions to a schedule by stages.

    Second runs of an operation in one stage, and copies in without a reader, are dropped. The order
    within a stage may change, and the result may hold more bytes than `actions`.

    First runs are put into base order. A second run goes to the stage of the next first run, and is
    dropped if an input of it is produced later.
    """
    runs = [a.target if a.kind is ActionKind.RUN else None for a in actions]
    stages = _stages(runs, len(problem.ops))
    reruns: set[Run] = set()
    back: set[tuple[Run, int]] = set()
    waiting: set[int] = set()
    for action, stage in zip(actions, stages, strict=True):
        if action.kind is ActionKind.SWAP_IN:
            waiting.add(action.target)
        elif action.kind is ActionKind.RUN:
            run = (stage, action.target)
            op = problem.ops[action.target]
            needs = [action.target, *(problem.tensors[t].producer for t in op.inputs)]
            if stage != action.target:
                if max(needs) >= stage:
                    continue
                reruns.add(run)
            back.update((run, t) for t in op.inputs if t in waiting)
            waiting.difference_update(op.inputs, op.outputs)
    return StageSchedule(reruns=frozenset(reruns), back=frozenset(back))


def _stages(runs: Sequence[int | None], count: int) -> list[int]:
    """Return the stage of each action: a first run's own, else that of the next first run."""
    seen: set[int] = set()
    is_first = [m is not None and m not in seen and not seen.add(m) for m in runs]
    stages, stage = [count] * len(runs), count
    for i in range(len(runs) - 1, -1, -1):
        m = runs[i]
        if is_first[i] and m is not None:
            stage = m
        stages[i] = stage
    return stages


def actions_of(problem: Problem, plan: StageSchedule) -> list[Action]:
    """Return the actions of a schedule by stages."""
    fetches: dict[Run, list[int]] = {}
    for run, t in plan.back:
        fetches.setdefault(run, []).append(t)
    hosted = {t for _, t in plan.back}
    actions: list[Action] = []
    for stage, m in runs_of(problem, plan):
        fetched = sorted(fetches.get((stage, m), ()))
        actions.extend(Action(kind=ActionKind.SWAP_IN, target=t) for t in fetched)
        actions.append(Action(kind=ActionKind.RUN, target=m))
        if stage == m:
            outs = [t for t in problem.ops[m].outputs if t in hosted]
            actions.extend(Action(kind=ActionKind.SWAP_OUT, target=t) for t in outs)
    return actions


def runs_of(problem: Problem, plan: StageSchedule) -> list[Run]:
    """Return all runs in order."""
    return sorted([*((q, q) for q in range(len(problem.ops))), *plan.reruns])


def overwritten(problem: Problem, m: int) -> frozenset[int]:
    """Return the inputs of operation `m` whose buffer an output takes over if `m` reads them last."""
    if not problem.ops[m].inplace:
        return _NOTHING
    chosen: dict[int, int] = {}
    for source, target in problem.ops[m].inplace:
        if not problem.tensors[source].to_end:
            chosen.setdefault(target, source)
    return frozenset(chosen.values())


def may_swap(problem: Problem, t: int) -> bool:
    """Tell whether copying a tensor out frees memory: not for a graph output, whose first copy stays."""
    tensor = problem.tensors[t]
    return tensor.swappable and not tensor.to_end and tensor.bytes > 0


class MemoryProfile:
    """The bytes of a schedule along its axis.

    Attributes:
        runs: in order. index: place of each run.
        touched: per tensor, the places of the runs that make or read it, ascending.
        live: int64 [2 · runs], fixed bytes and workspace included. Place 2i is the time before run i,
            place 2i + 1 that of run i itself.
    """

    def __init__(self, problem: Problem, plan: StageSchedule) -> None:
        self.problem = problem
        self.plan = plan
        self.runs = runs_of(problem, plan)
        self.index = {run: i for i, run in enumerate(self.runs)}
        self.touched: list[list[int]] = [[] for _ in problem.tensors]
        for i, (_, m) in enumerate(self.runs):
            for t in (*problem.ops[m].inputs, *problem.ops[m].outputs):
                self.touched[t].append(i)
        change = np.zeros(2 * len(self.runs) + 1, dtype=np.int64)
        for t, tensor in enumerate(problem.tensors):
            for start, end in self.spans(t):
                change[start] += tensor.bytes
                change[end] -= tensor.bytes
        self.live: npt.NDArray[np.int64] = np.cumsum(change)[:-1] + problem.fixed_bytes
        for i, (_, m) in enumerate(self.runs):
            self.live[2 * i + 1] += problem.ops[m].workspace_bytes

    @cached_property
    def stage_peaks(self) -> npt.NDArray[np.int64]:
        """The largest live bytes of each stage, int64 [operations]."""
        starts = [2 * i for i, (q, m) in enumerate(self.runs) if i == 0 or self.runs[i - 1][0] != q]
        return np.maximum.reduceat(self.live, starts)

    @property
    def peak_bytes(self) -> int:
        """The largest live bytes."""
        return int(self.live.max())

    def excess(self, capacity_bytes: int) -> int:
        """Sum the bytes above the capacity at each stage's fullest moment over all stages."""
        return int(np.maximum(self.stage_peaks - capacity_bytes, 0).sum())

    def spans(self, t: int, *, first: bool = True) -> list[Span]:
        """Return the spans in which a tensor's copies are live.

        Args:
            first: False leaves out the first copy of a `to_end` tensor.
        """
        problem = self.problem
        producer, to_end = problem.tensors[t].producer, problem.tensors[t].to_end
        runs, back, until = self.runs, self.plan.back, 2 * len(self.runs)
        spans: list[Span] = []
        start = end = -1
        for i in self.touched[t]:
            stage, m = run = runs[i]
            made = m == producer
            if made or (back and (run, t) in back):
                if start >= 0:
                    spans.append((start, end))
                start = end = 2 * i + 1
            if made:
                end = until if to_end and stage == producer else 2 * i + 2
            elif end < until:
                end = 2 * i + (1 if t in overwritten(problem, m) else 2)
        if start >= 0:
            spans.append((start, end))
        if to_end and not first:
            return spans[1:]
        return spans


def added_us(problem: Problem, plan: StageSchedule) -> float:
    """Return the time that a schedule adds to the base order if nothing overlaps."""
    added = sum(problem.ops[m].duration_us for _, m in plan.reruns)
    added += sum(problem.swap_in_us(t) for _, t in plan.back)
    return added + sum(problem.swap_out_us(t) for t in {t for _, t in plan.back})


def readers_of(problem: Problem, m: int) -> set[int]:
    """Return the operations that read an output of operation `m`."""
    return {u for t in problem.ops[m].outputs for u in problem.tensors[t].uses}


def moves_freely(problem: Problem, m: int) -> bool:
    """Tell whether a run of `m` that moves past an unrelated run holds nothing there but its output.

    The output would be live there anyway.
    """
    op = problem.ops[m]
    touched = [problem.tensors[t] for t in (*op.inputs, *op.outputs)]
    return not op.workspace_bytes and len(op.outputs) == 1 and not any(t.to_end for t in touched)


def latest(problem: Problem, plan: StageSchedule) -> StageSchedule:
    """Move each recompute as late as possible without holding more bytes.

    A run moves past a base operation that does not read its output, as long as all of its inputs
    are still live.
    """
    reruns = set(plan.reruns)
    fetched = {run for run, _ in plan.back}
    for q, m in sorted(reruns, reverse=True):
        if (q, m) in fetched or not moves_freely(problem, m):
            continue
        readers = readers_of(problem, m)
        held = MemoryProfile(problem, StageSchedule(reruns=frozenset(reruns), back=plan.back))
        spans = [held.spans(t) for t in problem.ops[m].inputs]
        while q + 1 < len(problem.ops) and (q + 1, m) not in reruns:
            after = 2 * bisect_left(held.runs, (q + 1, m))
            there = all(any(a < after < b for a, b in of_one) for of_one in spans)
            if q in readers or any((q, u) in reruns for u in readers) or not there:
                break
            reruns.remove((q, m))
            q += 1
            reruns.add((q, m))
    return StageSchedule(reruns=frozenset(reruns), back=plan.back)


def base_plan() -> StageSchedule:
    """Return the schedule that runs every operation once and keeps everything."""
    return StageSchedule(reruns=frozenset(), back=frozenset())
