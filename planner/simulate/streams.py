"""When everything happens in a schedule whose copies run beside the operations.

Three engines: operations, copies out, copies in; each works in the order of the schedule. Actions
are issued in the order of the schedule too, and an action that needs memory is issued once that
memory is free, so that a copy in can begin early where the schedule lists it early and has room:

    RUN       starts when issued, the operation before it is done, and its inputs are there
    SWAP_OUT  starts when its tensor is there and the copy out before it is done
    SWAP_IN   holds its memory from its issue; starts when the tensor is on the host and the copy in
              before it is done

A device copy is freed when its last reader is done, copies out included. Whatever is not free in
time is waited for, so the memory in use never exceeds the capacity, provided that it would not with
every action done before the next is issued (`Replay.live_bytes`); that is also why such a schedule
cannot block.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from planner.plan.problem import Action, ActionKind, Problem
from planner.plan.replay import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """What one action does to device copies, by index into `births`.

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
) -> Timeline:
    """Run `actions` on three engines.

    Args:
        touches: per action, the device copies that it reads and makes.
        tensor_of: per device copy, its tensor.
        last_reader: per device copy, the last action that reads it (its maker where none does), or
            -1 where it stays to the end of the run.
    """
    tensors, ops = problem.tensors, problem.ops
    issues: list[float] = []
    starts: list[float] = []
    ends: list[float] = []
    made = [0.0] * len(tensor_of)  # when a device copy is complete
    read_until = [0.0] * len(tensor_of)
    on_host: dict[int, float] = {}
    issued = free = free_out = free_in = 0.0
    used = problem.fixed_bytes
    releases: list[tuple[float, int]] = []

    def wait(at: float, need: int) -> float:
        """The first time from `at` on when `need` bytes are free (or nothing more will be)."""
        nonlocal used
        while releases and (releases[0][0] <= at or used + need > problem.capacity_bytes):
            when, size = heapq.heappop(releases)
            at = max(at, when)
            used -= size
        return at

    for step, (action, touch) in enumerate(zip(actions, touches, strict=True)):
        target = action.target
        if action.kind is ActionKind.RUN:
            op = ops[target]
            at = max(issued, free)
            for copy in touch.reads:
                at = max(at, made[copy])
            credit = 0
            for copy in touch.overwrites:
                at = max(at, read_until[copy])
                credit += tensors[tensor_of[copy]].bytes
            stays = sum(tensors[tensor_of[c]].bytes for c in touch.makes) - credit
            at = wait(at, stays + op.workspace_bytes)
            done = free = at + op.duration_us
            issued = at
            used += stays + op.workspace_bytes
            if op.workspace_bytes:
                heapq.heappush(releases, (done, op.workspace_bytes))
        elif action.kind is ActionKind.SWAP_OUT:
            at = max(issued, free_out, made[touch.reads[0]])
            done = free_out = at + problem.swap_out_us(target)
            on_host[target] = done
        else:
            size = tensors[target].bytes
            issued = wait(issued, size)
            used += size
            at = max(issued, free_in, on_host[target])
            done = free_in = at + problem.swap_in_us(target)
        for copy in touch.makes:
            made[copy] = read_until[copy] = done
        for copy in touch.reads:
            read_until[copy] = max(read_until[copy], done)
        for copy in {*touch.reads, *touch.makes}:
            if last_reader[copy] == step and copy not in touch.overwrites:
                heapq.heappush(releases, (read_until[copy], tensors[tensor_of[copy]].bytes))
        issues.append(issued)
        starts.append(at)
        ends.append(done)
    return Timeline(issue_us=issues, start_us=starts, end_us=ends)
