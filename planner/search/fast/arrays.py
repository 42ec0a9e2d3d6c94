"""A problem and its decisions as flat arrays, for compiled code.

Ragged lists are flat with offsets: the inputs of operation i are `ins[ins_at[i]:ins_at[i + 1]]`.
Gap g of tensor t, which opens at its g-th event, has index `gap_at[t] + g`; the last one, after the
last use, says whether the tensor is kept for recomputes that read it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from planner.plan.decisions import Choice, Decisions
from planner.plan.problem import Problem

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Flags = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]

KEEP, DROP, SWAP = 0, int(Choice.DROP), int(Choice.SWAP)


class Arrays(NamedTuple):
    """A problem. Sizes in bytes, times in microseconds.

    Attributes:
        overlap: whether copies run beside the operations.
    """

    ins_at: Ints
    ins: Ints
    outs_at: Ints
    outs: Ints
    pair_at: Ints
    pair_source: Ints
    pair_target: Ints
    recomputable: Flags  # per operation
    duration: Floats
    workspace: Longs
    use_at: Ints
    uses: Ints
    gap_at: Ints
    gap_tensor: Ints
    producer: Ints
    size: Longs
    to_end: Flags
    swappable: Flags  # per tensor
    out_us: Floats
    in_us: Floats
    fixed: int
    capacity: int
    overlap: bool


class GapChoices(NamedTuple):
    """Decisions, as arrays over gaps.

    `choice`: keep, drop or swap. `released`: a tensor brought back early for another recompute is
    dropped again. `early`: the base operation before which it comes back, -1 for just in time.
    """

    choice: Flags
    released: Flags
    early: Ints

    def copy(self) -> GapChoices:
        """Return an independent copy."""
        return GapChoices(self.choice.copy(), self.released.copy(), self.early.copy())


class Steps(NamedTuple):
    """Buffers for a schedule and its replay.

    Per action: its kind and target, the live bytes (one more entry), its start and finish.
    """

    kind: Flags
    target: Ints
    live: Longs
    start: Floats
    finish: Floats


def _flat(rows: Iterable[Sequence[int]]) -> tuple[Ints, Ints]:
    rows = list(rows)
    at = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum([len(r) for r in rows], out=at[1:])
    return at, np.fromiter(itertools.chain.from_iterable(rows), dtype=np.int32, count=int(at[-1]))


def arrays_of(problem: Problem) -> Arrays:
    """Convert a problem to arrays."""
    ins_at, ins = _flat(op.inputs for op in problem.ops)
    outs_at, outs = _flat(op.outputs for op in problem.ops)
    pair_at, source = _flat([a for a, _ in op.inplace] for op in problem.ops)
    _, target = _flat([b for _, b in op.inplace] for op in problem.ops)
    use_at, uses = _flat(t.uses for t in problem.tensors)
    tensors = len(problem.tensors)
    gap_at = use_at + np.arange(tensors + 1, dtype=np.int32)
    size = np.array([t.bytes for t in problem.tensors], dtype=np.int64)
    swaps = problem.allow_swap
    out_s = problem.swap_out_bytes_per_s if swaps else 1.0
    in_s = problem.swap_in_bytes_per_s if swaps else 1.0
    return Arrays(
        ins_at=ins_at,
        ins=ins,
        outs_at=outs_at,
        outs=outs,
        pair_at=pair_at,
        pair_source=source,
        pair_target=target,
        recomputable=_flags(op.recomputable and problem.allow_recompute for op in problem.ops),
        duration=np.array([op.duration_us for op in problem.ops], dtype=np.float64),
        workspace=np.array([op.workspace_bytes for op in problem.ops], dtype=np.int64),
        use_at=use_at,
        uses=uses,
        gap_at=gap_at,
        gap_tensor=np.repeat(np.arange(tensors, dtype=np.int32), np.diff(gap_at)),
        producer=np.array([t.producer for t in problem.tensors], dtype=np.int32),
        size=size,
        to_end=_flags(t.to_end for t in problem.tensors),
        swappable=_flags(t.swappable and swaps for t in problem.tensors),
        out_us=np.where([t.host_copy for t in problem.tensors], 0, size) / out_s * 1e6,
        in_us=size / in_s * 1e6,
        fixed=problem.fixed_bytes,
        capacity=problem.capacity_bytes,
        overlap=problem.overlap and swaps,
    )


def _flags(values: Iterable[Any]) -> Flags:
    return np.array(list(values), dtype=np.uint8)


def steps_for(a: Arrays, count: int = 0) -> Steps:
    """Allocate buffers for schedules of up to `count` actions; by default about six times the operations.

    An operation may have thousands of outputs, each of which can be copied out and in again.
    """
    ops, tensors = a.duration.size, a.size.size
    count = count or 6 * ops + 4096 + 4 * max(0, tensors - ops)
    return Steps(
        kind=np.zeros(count, dtype=np.uint8),
        target=np.zeros(count, dtype=np.int32),
        live=np.zeros(count + 1, dtype=np.int64),
        start=np.zeros(count),
        finish=np.zeros(count),
    )


def plan_of(a: Arrays, decisions: Decisions) -> GapChoices:
    """Convert decisions to arrays."""
    gaps = a.gap_tensor.size
    plan = GapChoices(
        np.zeros(gaps, dtype=np.uint8),
        np.zeros(gaps, dtype=np.uint8),
        np.full(gaps, -1, dtype=np.int32),
    )
    for (t, g), choice in decisions.gaps.items():
        if not a.to_end[t] and g < a.use_at[t + 1] - a.use_at[t]:
            plan.choice[a.gap_at[t] + g] = choice
    for t in decisions.extended:
        plan.choice[a.gap_at[t + 1] - 1] = DROP  # after the last use DROP means the opposite: kept
    for t, g in decisions.released:
        plan.released[a.gap_at[t] + g] = 1
    for (t, g), op in decisions.early.items():
        plan.early[a.gap_at[t] + g] = op
    return plan


def decisions_of(a: Arrays, plan: GapChoices) -> Decisions:
    """Convert arrays to decisions."""

    def gap(i: int) -> tuple[int, int]:
        t = int(a.gap_tensor[i])
        return t, int(i - a.gap_at[t])

    gaps, extended = {}, set()
    for i in np.flatnonzero(plan.choice).tolist():
        t, g = gap(i)
        if i == a.gap_at[t + 1] - 1:
            extended.add(t)
        else:
            gaps[t, g] = Choice(int(plan.choice[i]))
    return Decisions(
        gaps=gaps,
        extended=frozenset(extended),
        released=frozenset(gap(i) for i in np.flatnonzero(plan.released).tolist()),
        early={gap(i): int(plan.early[i]) for i in np.flatnonzero(plan.early >= 0).tolist()},
    )
