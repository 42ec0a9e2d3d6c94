"""Times of all actions in a schedule whose copies run beside the operations.

Three engines: operations, copies out, copies in; each works in the order of the schedule. Actions
are issued in that order on the stream of the operations, like nodes, and a copy starts no sooner
than the end of all operations issued before it:

    RUN            starts when everything issued before it is done, and its inputs are there
    SWAP_OUT       the same, when its tensor is there, and the copy out before it is done
    SWAP_OUT_DONE  holds the operations until the copy out is done
    SWAP_IN        holds the operations until the tensor is on the host and its memory is free; starts
                   when the copy in before it is done
    RUN of a load  like SWAP_IN, of a tensor that is on the host throughout
    RUN of a store like SWAP_OUT; a tensor with both has one copy, started by the first

A device copy is freed when its last reader is done, copies out included. The stream waits for
memory that is not free in time: the memory in use never exceeds the capacity, provided that it
would not with every action done before the next is issued (`Replay.live_bytes`). For the same
reason such a schedule cannot block. `Timeline.waited` has the action before which each copy out was
waited for, and `planner.simulate.waits` writes that into the schedule.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from planner.plan.candidate import Timeline
from planner.plan.problem import Action, ActionKind, Paging, PlanOp, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """The device copies that one action touches, by index into `births`.

    Attributes:
        reads: copies read. makes: copies made.
        overwrites: copies among `reads` whose buffer an output takes over.
    """

    reads: tuple[int, ...]
    makes: tuple[int, ...]
    overwrites: tuple[int, ...] = ()


def overlapped(
    problem: Problem,
    actions: Sequence[Action],
    touches: Sequence[Reads],
    tensor_of: Sequence[int],
    last_reader: Sequence[int],
    paging: Paging,
) -> Timeline:
    """Run `actions` on three engines.

    Args:
        touches: per action, the device copies that it reads and makes.
        tensor_of: per device copy, its tensor.
        last_reader: per device copy, the last action that reads it (its maker without readers), or
            -1 if it stays to the end of the run.
        paging: operations that are copies.
    """
    run = _Engines(problem, tensor_of, len(actions), paging)
    starts: list[float] = []
    ends: list[float] = []
    issues: list[float] = []
    for step, (action, touch) in enumerate(zip(actions, touches, strict=True)):
        run.step = step
        start, end = run.act(action, touch)
        issues.append(min(start, run.now))
        starts.append(start)
        ends.append(end)
        for copy in touch.makes:
            run.made[copy] = run.read_until[copy] = end
        for copy in touch.reads:
            run.read_until[copy] = max(run.read_until[copy], end)
        for copy in {*touch.reads, *touch.makes}:
            if last_reader[copy] == step and copy not in touch.overwrites:
                run.release(copy)
    return Timeline(issue_us=issues, start_us=starts, end_us=ends, waited=run.waited)


class _Engines:
    """A run, action by action.

    Attributes:
        now: time when all operations issued, and everything that they waited for, are done.
        made: time when a device copy is complete; read_until: time when its last reader so far is
            done.
        waited: see `Timeline`.
    """

    def __init__(
        self, problem: Problem, tensor_of: Sequence[int], steps: int, paging: Paging
    ) -> None:
        self.problem = problem
        self.paging = paging
        self.stored = paging.stored(problem)
        self.tensor_of = tensor_of
        self.step = 0
        self.now = self._out_free = self._in_free = 0.0
        self.made = [0.0] * len(tensor_of)
        self.read_until = [0.0] * len(tensor_of)
        self.waited = [-1] * steps
        self._used = problem.fixed_bytes
        self._releases: list[
            tuple[float, int, int]
        ] = []  # time, bytes, device copy (-1: workspace)
        self._outs: dict[int, list[int]] = {}  # device copy -> copies out that nothing waited for
        self._on_host: dict[int, tuple[float, int]] = {}  # tensor -> time, the copy out

    def act(self, action: Action, touch: Reads) -> tuple[float, float]:
        """Issue one action; return its start and end."""
        target = action.target
        if action.kind is ActionKind.RUN:
            op = self.problem.ops[target]
            if target in self.paging.loads:
                size = sum(self.problem.tensors[t].bytes for t in op.outputs)
                return self._copy_in(size, op.duration_us)
            if target in self.paging.stores:
                return self._copy_out(op.inputs[0], touch)
            return self._run(op, touch)
        if action.kind is ActionKind.SWAP_OUT:
            return self._copy_out(target, touch)
        done, out = self._on_host[target]
        self.now = max(self.now, done)
        self._mark([out])
        if action.kind is ActionKind.SWAP_OUT_DONE:
            return self.now, self.now
        size = self.problem.tensors[target].bytes
        return self._copy_in(size, self.problem.swap_in_us(target))

    def _copy_out(self, tensor: int, touch: Reads) -> tuple[float, float]:
        store = self.stored.get(tensor)
        if store is not None and tensor in self._on_host:
            return self.now, self.now
        (copy,) = touch.reads
        self.now = max(self.now, self.made[copy])
        start = max(self.now, self._out_free)
        problem = self.problem
        us = problem.swap_out_us(tensor) if store is None else problem.ops[store].duration_us
        self._out_free = start + us
        self._on_host[tensor] = (self._out_free, self.step)
        self._outs.setdefault(copy, []).append(self.step)
        return start, self._out_free

    def _copy_in(self, size: int, duration_us: float) -> tuple[float, float]:
        self._wait(size)
        self._used += size
        start = max(self.now, self._in_free)
        self._in_free = start + duration_us
        return start, self._in_free

    def release(self, copy: int) -> None:
        """Free a device copy once its last reader is done."""
        size = self.problem.tensors[self.tensor_of[copy]].bytes
        heapq.heappush(self._releases, (self.read_until[copy], size, copy))

    def _run(self, op: PlanOp, touch: Reads) -> tuple[float, float]:
        tensors = self.problem.tensors
        self.now = max([self.now, *(self.made[copy] for copy in touch.reads)])
        size = op.workspace_bytes + sum(tensors[self.tensor_of[c]].bytes for c in touch.makes)
        for copy in touch.overwrites:
            self.now = max(self.now, self.read_until[copy])
            self._mark(self._outs.pop(copy, ()))
            size -= tensors[self.tensor_of[copy]].bytes
        self._wait(size)
        self._used += size
        start = self.now
        self.now += op.duration_us
        if op.workspace_bytes:
            heapq.heappush(self._releases, (self.now, op.workspace_bytes, -1))
        return start, self.now

    def _wait(self, need: int) -> None:
        """Wait until `need` bytes are free, or nothing more will be."""
        releases, capacity = self._releases, self.problem.capacity_bytes
        while releases and (releases[0][0] <= self.now or self._used + need > capacity):
            when, size, copy = heapq.heappop(releases)
            self.now = max(self.now, when)
            self._used -= size
            self._mark(self._outs.pop(copy, ()))

    def _mark(self, outs: Sequence[int]) -> None:
        """Record that this action waits for these copies out, unless an earlier one did."""
        for out in outs:
            if self.waited[out] < 0:
                self.waited[out] = self.step
