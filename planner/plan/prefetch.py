"""List copies where they hide: each copy out as early as it can run, each copy in as late as it may.

The executor lists a copy in just before the operation that reads it. On an engine of its own it can
run beside earlier operations, if the schedule lists it earlier and has the room. Backwards from the
last, each copy in is given the latest start that still ends before its reader and before the next
copy in starts, and is held back to where its memory is free. Copies out run by deadline: whichever
was made, and must be gone first.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from planner.plan.problem import Action, ActionKind, Problem
from planner.plan.simulate import Replay, simulate

_ROUNDS = 2


@dataclass(slots=True)
class _Copy:
    """A copy by runs (operations executed): it may be listed after run `ready` and must be before
    run `due`; `slot` is the run after whose start it is listed, -1 for before all."""

    tensor: int
    ready: int
    due: int
    slot: int = -1


def place_copies(problem: Problem, actions: Sequence[Action]) -> tuple[list[Action], Replay]:
    """The same runs and copies with the copies listed elsewhere, and their replay; the live bytes
    stay within the capacity wherever they were. `problem.overlap` must be set."""
    best, replay = list(actions), simulate(problem, actions)
    if all(a.kind is ActionKind.RUN for a in actions):
        return best, replay
    serial = _Serial(problem, actions)
    assert replay.timeline is not None
    starts, ends = serial.nominal()
    for _ in range(_ROUNDS):
        placed = serial.listed(serial.outs(starts, ends), serial.ins(starts, ends))
        trial = simulate(problem, placed)
        if trial.peak_bytes <= max(problem.capacity_bytes, replay.peak_bytes):
            if trial.time_us < replay.time_us:
                best, replay = placed, trial
            assert trial.timeline is not None
            runs = [i for i, a in enumerate(placed) if a.kind is ActionKind.RUN]
            starts = np.array([trial.timeline.start_us[i] for i in runs])
            ends = np.array([trial.timeline.end_us[i] for i in runs])
        else:
            break
    return best, replay


class _Serial:
    """What one schedule does with copies listed just in time."""

    def __init__(self, problem: Problem, actions: Sequence[Action]) -> None:
        self.problem = problem
        self.runs = [a for a in actions if a.kind is ActionKind.RUN]
        replay = simulate(replace(problem, overlap=False), actions)
        run_at = [i for i, a in enumerate(actions) if a.kind is ActionKind.RUN]
        self.live: npt.NDArray[np.int64] = replay.live_bytes[run_at]
        self.copies_out: list[_Copy] = []
        self.copies_in: list[_Copy] = []
        made: dict[int, int] = {}  # tensor -> run after which its newest copy is there
        out_slot: dict[int, int] = {}
        last_read: dict[int, int] = {}
        run = -1
        for action in actions:
            t = action.target
            if action.kind is ActionKind.RUN:
                run += 1
                op = problem.ops[t]
                for u in op.inputs:
                    last_read[u] = run
                for u in op.outputs:
                    made[u] = last_read[u] = run
            elif action.kind is ActionKind.SWAP_OUT:
                self.copies_out.append(_Copy(t, made[t], run + 1))
                out_slot[t] = made[t]
            else:
                ready = max(last_read.get(t, -1), out_slot[t])
                self.copies_in.append(_Copy(t, ready, run + 1))
                last_read[t] = made[t] = run + 1

    def nominal(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Start and end of each run where nothing is waited for."""
        duration = np.array([self.problem.ops[a.target].duration_us for a in self.runs])
        ends = np.cumsum(duration)
        return ends - duration, ends

    def outs(self, starts: npt.NDArray[np.float64], ends: npt.NDArray[np.float64]) -> list[_Copy]:
        """Copies out with slots: the engine takes the first due of those that are ready."""
        waiting = sorted(self.copies_out, key=lambda c: c.ready)
        heap: list[tuple[int, int, _Copy]] = []
        free, at, placed = 0.0, 0, []
        while at < len(waiting) or heap:
            if not heap:
                free = max(free, ends[waiting[at].ready])
            while at < len(waiting) and ends[waiting[at].ready] <= free:
                heapq.heappush(heap, (waiting[at].due, at, waiting[at]))
                at += 1
            _, _, copy = heapq.heappop(heap)
            slot = bisect_right(starts, free) - 1
            slot = min(max(slot, copy.ready), copy.due - 1)
            placed.append(replace(copy, slot=slot))
            free += self.problem.swap_out_us(copy.tensor)
        return placed

    def ins(self, starts: npt.NDArray[np.float64], ends: npt.NDArray[np.float64]) -> list[_Copy]:
        """Copies in with slots, as late as hides them and where there is room."""
        live = self.live.copy()
        capacity = self.problem.capacity_bytes
        limit = float("inf")
        placed = []
        for copy in reversed(self.copies_in):
            size = self.problem.tensors[copy.tensor].bytes
            begin = min(starts[copy.due], limit) - self.problem.swap_in_us(copy.tensor)
            slot = max(bisect_right(starts, begin) - 1, copy.ready)
            slot = min(slot, copy.due - 1)
            full = np.flatnonzero(live[slot + 1 : copy.due] + size > capacity)
            if full.size:
                slot += 1 + int(full[-1])
            live[slot + 1 : copy.due] += size
            limit = begin
            placed.append(replace(copy, slot=slot))
        placed.reverse()
        return placed

    def listed(self, outs: Sequence[_Copy], ins: Sequence[_Copy]) -> list[Action]:
        """Runs with the copies after the run of their slot: out before in."""
        after: list[list[Action]] = [[] for _ in range(len(self.runs) + 1)]
        for kind, copies in ((ActionKind.SWAP_OUT, outs), (ActionKind.SWAP_IN, ins)):
            for copy in copies:
                after[copy.slot + 1].append(Action(kind=kind, target=copy.tensor))
        listed = list(after[0])
        for run, action in enumerate(self.runs):
            listed.append(action)
            listed.extend(after[run + 1])
        return listed
