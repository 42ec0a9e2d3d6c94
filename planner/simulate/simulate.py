"""Replay a schedule, action by action. The simulator judges every plan, independently of the solvers.

Semantics (those of the lowered graph on ONNX Runtime):

- RUN reads the newest device copy of each input, and makes a new copy of each output. SWAP_OUT reads
  the newest device copy and makes a host copy, which is never freed. SWAP_IN makes a new device copy.
  SWAP_OUT_DONE reads the copy that its SWAP_OUT read, and takes no time of its own.
- A device copy is live from the action that makes it to its last reader, half-open
  `[birth, last reader + 1)`. A copy without a reader is live at its birth only. The first copy of a
  `to_end` tensor is live to the end.
- Where an operation may write in place over an input, and is that copy's last reader, the copy's life
  ends
  as the operation starts: the output takes its buffer.
- Without overlap, actions follow each other on one stream: time is the sum of all durations. With
  overlap, copies run beside the operations (`planner.simulate.streams`), and so do loads and stores:
  operations that copy tensors from the host, or to it.
- Live bytes are counted as if each action ended before the next begins. With overlap, an action waits for
  memory that is not yet free.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from planner import clock
from planner.plan.candidate import Candidate, Replay
from planner.plan.problem import NO_PAGING, Action, ActionKind, Paging, PlanOp, Problem
from planner.simulate.streams import Reads, overlapped


class InvalidScheduleError(Exception):
    """The schedule has an impossible action, which the message names, or leaves out an operation."""


def simulate(problem: Problem, actions: Sequence[Action], paging: Paging = NO_PAGING) -> Replay:
    """Replay `actions`; every operation must run at least once.

    Args:
        paging: operations that run on the copy streams, where copies overlap.

    Raises:
        InvalidScheduleError: an input is not on the device, a tensor to swap in is not on the host, an
            operation that may not be recomputed runs twice, or an operation never runs.
    """
    clock.spend(clock.SIMULATED_S * len(actions))
    play = _Play(problem, paging, len(actions))
    play.play(actions)
    if len(play.ran) != len(problem.ops):
        missing = next(op.name for i, op in enumerate(problem.ops) if i not in play.ran)
        raise InvalidScheduleError(f"operation {missing!r} never runs")
    ranges = tuple(play.ranges())
    time_us, stall_us, timeline = play.time_us, play.swap_us, None
    if problem.overlap:
        over, last = play.uses(), play.last_reads()
        timeline = overlapped(problem, actions, over, play.tensor_of, last, paging)
        stall_us = timeline.time_us - (time_us - play.swap_us - play.paged_us)
        time_us = timeline.time_us
    live = np.cumsum(np.array(play.delta, dtype=np.int64))[: len(actions)]
    return Replay(
        live_bytes=live + problem.fixed_bytes,
        time_us=time_us,
        stall_us=stall_us,
        timeline=timeline,
        recompute_us=play.recompute_us,
        recomputed_ops=play.recomputed,
        recomputed_bytes=play.recomputed_bytes,
        swap_out_bytes=play.out_bytes,
        swap_in_bytes=play.in_bytes,
        swap_us=play.swap_us,
        paged_us=play.paged_us if problem.overlap else 0.0,
        copies=ranges,
    )


class _Play:
    """The state of device and host during a replay, and the cost of its actions so far.

    Attributes:
        newest: each tensor's newest device copy, as an index into `tensor_of`, `birth`, `end`, `stays`
            and `writer_frees`.
        writer_frees: by copy, whether its last reader so far writes in place over it.
        touches: the copies that each action reads.
        on_host: by tensor, the device copy that was copied to the host last.
        delta: change of the live bytes at each action.
    """

    __slots__ = (
        "beside", "birth", "delta", "end", "in_bytes", "newest", "on_host", "ops", "out_bytes",
        "paged_us", "problem", "ran", "recompute_us", "recomputed", "recomputed_bytes", "stays", "steps",
        "stores", "swap_us", "tensor_of", "tensors", "time_us", "touches", "writer_frees",
    )  # fmt: skip

    def __init__(self, problem: Problem, paging: Paging, steps: int) -> None:
        self.problem, self.steps = problem, steps
        self.ops, self.tensors = problem.ops, problem.tensors
        self.stores, self.beside = paging.stores, paging.loads | paging.stores
        self.newest: dict[int, int] = {}
        self.tensor_of: list[int] = []
        self.birth: list[int] = []
        self.end: list[int] = []
        self.stays: list[bool] = []
        self.writer_frees: list[bool] = []
        self.touches: list[list[int]] = []
        self.on_host: dict[int, int] = {}
        self.ran: set[int] = set()
        self.delta = [0] * (steps + 1)
        self.time_us = self.recompute_us = self.swap_us = self.paged_us = 0.0
        self.recomputed = self.recomputed_bytes = self.out_bytes = self.in_bytes = 0

    def play(self, actions: Sequence[Action]) -> None:
        """Replay every action, in order. Many engines spend their time in this loop: names are local."""
        newest, ops, tensors, ran = self.newest, self.ops, self.tensors, self.ran
        delta, beside, read, make = self.delta, self.beside, self._read, self._make
        kind_run, time_us = ActionKind.RUN, 0.0
        for step, action in enumerate(actions):
            if action.kind is not kind_run:
                time_us += self._copy(step, action)
                continue
            op = ops[action.target]
            inputs = self._paged(step, action.target) if action.target in beside else op.inputs
            try:
                read(list(map(newest.__getitem__, inputs)), step)
            except KeyError as missing:
                raise self._absent(missing, step, op.name) from None
            if op.inplace:
                self._write_over(op.inplace, step)
            again = action.target in ran
            if again:
                self._count_again(step, op)
            for tensor in op.outputs:
                make(tensor, step, not again and tensors[tensor].to_end)
            if op.workspace_bytes:
                delta[step] += op.workspace_bytes
                delta[step + 1] -= op.workspace_bytes
            time_us += op.duration_us
            ran.add(action.target)
        self.time_us = time_us

    def _paged(self, step: int, index: int) -> Sequence[int]:
        """Count a load or a store, and return its inputs: none where a swap-out has begun its copy."""
        op = self.ops[index]
        self.paged_us += op.duration_us
        if index not in self.stores:
            return op.inputs
        (stored,) = op.inputs
        if stored in self.on_host:
            return ()
        (self.on_host[stored],) = self._newest_of(stored, step, op.name)
        return op.inputs

    def _count_again(self, step: int, op: PlanOp) -> None:
        if not op.recomputable:
            raise InvalidScheduleError(f"action {step} runs {op.name!r} again")
        self.recompute_us += op.duration_us
        self.recomputed += 1
        self.recomputed_bytes += sum(self.tensors[t].bytes for t in op.outputs)

    def _copy(self, step: int, action: Action) -> float:
        """Copy a tensor out or in, or wait for its copy; return the time in microseconds."""
        problem, target = self.problem, action.target
        tensor = problem.tensors[target]
        if action.kind is ActionKind.SWAP_OUT:
            copies = self._newest_of(target, step, f"swap-out of {tensor.name}")
            self._read(copies, step)
            if not (tensor.host_copy and target in self.on_host):  # else that copy is the one
                (self.on_host[target],) = copies
            cost = problem.swap_out_us(target)
            self.out_bytes += 0 if tensor.host_copy else tensor.bytes
        elif target not in self.on_host:
            raise InvalidScheduleError(f"action {step} swaps in {tensor.name!r}, not on the host")
        elif action.kind is ActionKind.SWAP_OUT_DONE:
            self._read([self.on_host[target]], step)
            cost = 0.0
        else:
            self._read([], step)
            self._make(target, step, False)
            cost = problem.swap_in_us(target)
            self.in_bytes += tensor.bytes
        self.swap_us += cost
        return cost

    def _make(self, tensor: int, step: int, to_end: bool) -> None:
        self.newest[tensor] = len(self.tensor_of)
        self.tensor_of.append(tensor)
        self.birth.append(step)
        self.end.append(self.steps if to_end else step + 1)
        self.stays.append(to_end)
        self.writer_frees.append(False)

    def _newest_of(self, tensor: int, step: int, what: str) -> list[int]:
        try:
            return [self.newest[tensor]]
        except KeyError as missing:
            raise self._absent(missing, step, what) from None

    def _absent(self, missing: KeyError, step: int, what: str) -> InvalidScheduleError:
        name = self.tensors[missing.args[0]].name
        return InvalidScheduleError(f"action {step} ({what}) reads {name!r}, not on the device")

    def _read(self, copies: list[int], step: int) -> None:
        self.touches.append(copies)
        after, stays, end, writer_frees = step + 1, self.stays, self.end, self.writer_frees
        for copy in copies:
            if not stays[copy]:
                end[copy] = after
            writer_frees[copy] = False

    def _write_over(self, pairs: Sequence[tuple[int, int]], step: int) -> None:
        taken: set[int] = set()
        for source, target in pairs:
            copy = self.newest[source]
            if self.birth[copy] < step and not self.stays[copy] and target not in taken:
                self.writer_frees[copy] = True
                taken.add(target)

    def ranges(self) -> Iterator[tuple[int, int, int]]:
        """Yield each copy's tensor and half-open live range in actions; add its bytes to `delta`."""
        tensors, delta = self.problem.tensors, self.delta
        copies = zip(self.tensor_of, self.birth, self.end, self.writer_frees, strict=True)
        for tensor, start, stop, frees in copies:
            last = stop - 1 if frees else stop
            size = tensors[tensor].bytes
            delta[start] += size
            delta[last] -= size
            yield tensor, start, last

    def uses(self) -> list[Reads]:
        """Return the copies that each action reads, makes and overwrites."""
        made = np.searchsorted(self.birth, np.arange(self.steps + 1)).tolist()
        bounds = itertools.pairwise(made)
        return [
            Reads(
                reads=tuple(reads),
                makes=tuple(range(first, behind)),
                overwrites=tuple(
                    c for c in reads if self.writer_frees[c] and self.end[c] == step + 1
                ),
            )
            for step, (reads, (first, behind)) in enumerate(zip(self.touches, bounds, strict=True))
        ]

    def last_reads(self) -> list[int]:
        """Return the last action that reads each copy; -1 for a copy that is live to the end."""
        return [-1 if stay else stop - 1 for stay, stop in zip(self.stays, self.end, strict=True)]


def candidate_of(problem: Problem, actions: list[Action], paging: Paging = NO_PAGING) -> Candidate:
    """Replay an engine's actions, and return them as a candidate plan."""
    return Candidate(decisions=None, actions=actions, replay=simulate(problem, actions, paging))
