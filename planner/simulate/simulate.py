"""Replay a schedule, action by action: the judge of every plan, and no part of any solver.

Semantics (the same that the lowered graph has on ONNX Runtime):

- RUN reads the newest device copy of each input, and makes a new copy of each output. SWAP_OUT reads
  the newest device copy and makes a host copy, which stays. SWAP_IN makes a new device copy.
  SWAP_OUT_DONE reads the copy that its SWAP_OUT read, and takes no time of its own.
- A device copy is live from the action that makes it to its last reader, half-open
  `[birth, last reader + 1)`; a copy with no reader is live at its birth only, unless it is the first
  copy of a `to_end` tensor, which is live to the end.
- Where an operation may write in place over an input, and is that copy's last reader, the copy ends
  as the operation starts: the output takes its buffer.
- Without overlap, actions follow each other on one stream: time is the sum of all durations. With
  it, copies run beside the operations (`planner.simulate.streams`), and so do the runs of loads and
  stores: operations that copy in what lives on the host, and out what will.
- Live bytes are those with every action done before the next begins; with overlap, whatever is not
  free in time is waited for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner import clock
from planner.plan.candidate import Candidate
from planner.plan.problem import NO_PAGING, Action, ActionKind, Paging, Problem
from planner.plan.replay import Replay
from planner.simulate.streams import Reads, overlapped


class InvalidScheduleError(Exception):
    """The schedule does something impossible; the message names the action."""


def simulate(problem: Problem, actions: Sequence[Action], paging: Paging = NO_PAGING) -> Replay:
    """Replay `actions`; every operation must run at least once.

    Args:
        paging: operations that run on the engines of copies, where copies overlap.

    Raises:
        InvalidScheduleError: an input is not on the device, a tensor is not on the host, an
            operation that may not be recomputed runs twice, or one never runs.
    """
    clock.spend(clock.SIMULATED_S * len(actions))
    steps, ops, tensors, kind_run = len(actions), problem.ops, problem.tensors, ActionKind.RUN
    newest: dict[int, int] = {}  # tensor -> index into the lists below
    tensor_of: list[int] = []
    birth: list[int] = []
    end: list[int] = []
    stays: list[bool] = []
    writer_frees: list[bool] = []  # the last reader so far writes in place over this copy
    touches: list[list[int]] = []  # per action, the copies read
    first_made: list[int] = []  # per action, the first copy made
    on_host: dict[int, int] = {}  # tensor -> the copy that was copied out last
    ran: set[int] = set()
    delta = [0] * (steps + 1)
    beside = paging.loads | paging.stores
    time_us = recompute_us = swap_us = paged_us = 0.0
    recomputed = recomputed_bytes = out_bytes = in_bytes = 0

    def make(tensor: int, step: int, to_end: bool) -> None:
        newest[tensor] = len(tensor_of)
        tensor_of.append(tensor)
        birth.append(step)
        end.append(steps if to_end else step + 1)
        stays.append(to_end)
        writer_frees.append(False)

    def newest_of(wanted: Sequence[int], step: int, what: str) -> list[int]:
        try:
            return [newest[tensor] for tensor in wanted]
        except KeyError as missing:
            name = tensors[missing.args[0]].name
            raise InvalidScheduleError(
                f"action {step} ({what}) reads {name!r}, not on the device"
            ) from None

    def read(copies: list[int], step: int) -> list[int]:
        after = step + 1
        for copy in copies:
            if not stays[copy]:
                end[copy] = after
            writer_frees[copy] = False
        return copies

    for step, action in enumerate(actions):
        first_made.append(len(tensor_of))
        if action.kind is kind_run:
            op = ops[action.target]
            is_store = action.target in paging.stores
            is_begun = is_store and op.inputs[0] in on_host  # by a swap-out, whose copy it is
            touches.append(read(newest_of(() if is_begun else op.inputs, step, op.name), step))
            if is_store and not is_begun:
                (on_host[op.inputs[0]],) = touches[-1]
            if op.inplace:
                taken: set[int] = set()
                for source, target in op.inplace:
                    copy = newest[source]
                    if birth[copy] < step and not stays[copy] and target not in taken:
                        writer_frees[copy] = True
                        taken.add(target)
            again = action.target in ran
            if again and not op.recomputable:
                raise InvalidScheduleError(f"action {step} runs {op.name!r} again")
            for tensor in op.outputs:
                make(tensor, step, tensors[tensor].to_end and not again)
            if op.workspace_bytes:
                delta[step] += op.workspace_bytes
                delta[step + 1] -= op.workspace_bytes
            time_us += op.duration_us
            paged_us += op.duration_us if action.target in beside else 0.0
            if again:
                recompute_us += op.duration_us
                recomputed += 1
                recomputed_bytes += sum(tensors[t].bytes for t in op.outputs)
            ran.add(action.target)
            continue
        tensor = tensors[action.target]
        if action.kind is ActionKind.SWAP_OUT:
            copies = newest_of((action.target,), step, f"swap-out of {tensor.name}")
            touches.append(read(copies, step))
            if not (tensor.host_copy and action.target in on_host):  # else that copy is the one
                (on_host[action.target],) = copies
            cost = problem.swap_out_us(action.target)
            out_bytes += 0 if tensor.host_copy else tensor.bytes
        elif action.target not in on_host:
            raise InvalidScheduleError(f"action {step} swaps in {tensor.name!r}, not on the host")
        elif action.kind is ActionKind.SWAP_OUT_DONE:
            touches.append(read([on_host[action.target]], step))
            cost = 0.0
        else:
            touches.append([])
            make(action.target, step, False)
            cost, in_bytes = problem.swap_in_us(action.target), in_bytes + tensor.bytes
        swap_us += cost
        time_us += cost
    if len(ran) != len(ops):
        missing = next(op.name for i, op in enumerate(ops) if i not in ran)
        raise InvalidScheduleError(f"operation {missing!r} never runs")
    ranges: list[tuple[int, int, int]] = []
    for tensor, start, stop, frees in zip(tensor_of, birth, end, writer_frees, strict=True):
        last = stop - 1 if frees else stop
        size = tensors[tensor].bytes
        delta[start] += size
        delta[last] -= size
        ranges.append((tensor, start, last))
    stall_us, timeline = swap_us, None
    if problem.overlap:
        first_made.append(len(tensor_of))
        over = [
            Reads(
                reads=tuple(reads),
                makes=tuple(range(first_made[step], first_made[step + 1])),
                overwrites=tuple(c for c in reads if writer_frees[c] and end[c] == step + 1),
            )
            for step, reads in enumerate(touches)
        ]
        last = [-1 if stay else stop - 1 for stay, stop in zip(stays, end, strict=True)]
        timeline = overlapped(problem, actions, over, tensor_of, last, paging)
        stall_us = timeline.time_us - (time_us - swap_us - paged_us)
        time_us = timeline.time_us
    return Replay(
        live_bytes=np.cumsum(np.array(delta, dtype=np.int64))[:steps] + problem.fixed_bytes,
        time_us=time_us,
        stall_us=stall_us,
        timeline=timeline,
        recompute_us=recompute_us,
        recomputed_ops=recomputed,
        recomputed_bytes=recomputed_bytes,
        swap_out_bytes=out_bytes,
        swap_in_bytes=in_bytes,
        swap_us=swap_us,
        paged_us=paged_us if problem.overlap else 0.0,
        copies=tuple(ranges),
    )


def candidate_of(problem: Problem, actions: list[Action], paging: Paging = NO_PAGING) -> Candidate:
    """A plan that an engine made as actions, replayed."""
    return Candidate(decisions=None, actions=actions, replay=simulate(problem, actions, paging))
