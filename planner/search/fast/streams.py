"""Copies beside the operations: list them where they hide, and time the schedule.

Backwards from the last, each copy in is given the latest start that still ends before its reader and
before the next copy in starts, and is held back to where its memory is free. Copies out run by
deadline: of those whose tensor was made, the one that must be gone first. The timing has the
semantics of `planner.simulate.streams`, which judges the result.
"""

from __future__ import annotations

import heapq

import numba
import numpy as np

from planner.processes.compiled import INNER
from planner.search.fast.arrays import IN, OUT, RUN, Arrays, Floats, Work
from planner.search.fast.replay import BROKEN, replay


@numba.njit(cache=True, nogil=True)
def place_and_time(
    a: Arrays, w: Work, host: Floats, count: int, rounds: int
) -> tuple[int, float, int]:
    """List the copies among the `count` actions of `w` (just in time, replayed) elsewhere.

    Args:
        host: scratch, a float per tensor.
        rounds: how often to place them, each time by the starts and ends of the time before. With
            1, what comes out is taken as it is; with more, the best is, just in time included.

    Returns:
        (peak bytes, time, copies made) of the schedule now in `w`.
    """
    peak, time_us, copies = replay(a, w, count)
    moves = 0
    for i in range(count):
        moves += w.kind[i] != RUN
    if moves == 0 or peak == BROKEN:
        return peak, time_us, copies
    time_us = overlapped(a, w, host, count) if rounds > 1 else np.inf
    limit = max(a.capacity, peak)
    best_kind, best_target = w.kind[:count].copy(), w.target[:count].copy()
    best = time_us
    runs = count - moves
    run_op = np.empty(runs, dtype=np.int32)
    run_live = np.empty(runs, dtype=np.int64)
    outs, ins = _copies(a, w, count, run_op, run_live)
    starts = np.empty(runs + 1)
    ends = np.empty(runs)
    now = 0.0
    for r in range(runs):
        starts[r] = now
        now += a.duration[run_op[r]]
        ends[r] = now
    starts[runs] = now
    for _ in range(rounds):
        out_slot = _place_outs(a, outs, ends)
        in_slot = _place_ins(a, ins, starts, ends, run_live.copy())
        _list(w, run_op, outs, out_slot, ins, in_slot)
        peak, _, copies = replay(a, w, count)
        if peak > limit:
            break
        time_us = overlapped(a, w, host, count)
        if rounds == 1:
            return peak, time_us, copies
        if time_us < best:
            best = time_us
            best_kind[:] = w.kind[:count]
            best_target[:] = w.target[:count]
        r = 0
        for i in range(count):
            if w.kind[i] == RUN:
                starts[r] = w.start[i]
                ends[r] = w.finish[i]
                r += 1
        starts[runs] = ends[runs - 1]
    w.kind[:count] = best_kind
    w.target[:count] = best_target
    peak, _, copies = replay(a, w, count)
    return peak, overlapped(a, w, host, count), copies


@numba.njit(**INNER)
def _copies(
    a: Arrays, w: Work, count: int, run_op: np.ndarray, run_live: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Copies out and in as rows (tensor, run after which it may go, run before which it must)."""
    ins_at, ins, outs_at, outs = a.ins_at, a.ins, a.outs_at, a.outs
    tensors = a.size.size
    made = np.full(tensors, -1, dtype=np.int32)
    last = np.full(tensors, -1, dtype=np.int32)
    out_run = np.full(tensors, -1, dtype=np.int32)
    out_rows = np.empty((count - run_op.size, 3), dtype=np.int32)
    in_rows = np.empty((count - run_op.size, 3), dtype=np.int32)
    outward = inward = 0
    run = -1
    for i in range(count):
        t = w.target[i]
        if w.kind[i] == RUN:
            run += 1
            run_op[run] = t
            run_live[run] = w.live[i]
            for j in range(ins_at[t], ins_at[t + 1]):
                last[ins[j]] = run
            for j in range(outs_at[t], outs_at[t + 1]):
                made[outs[j]] = last[outs[j]] = run
        elif w.kind[i] == OUT:
            out_rows[outward, 0] = t
            out_rows[outward, 1] = made[t]
            out_rows[outward, 2] = run + 1
            out_run[t] = made[t]
            outward += 1
        else:
            in_rows[inward, 0] = t
            in_rows[inward, 1] = max(last[t], out_run[t])
            in_rows[inward, 2] = run + 1
            made[t] = last[t] = run + 1
            inward += 1
    return out_rows[:outward], in_rows[:inward]


@numba.njit(**INNER)
def _place_outs(a: Arrays, copies: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Per copy out, the run behind which it is listed: it starts no sooner than that is done."""
    slots = np.empty(len(copies), dtype=np.int32)
    order = np.argsort(copies[:, 1])
    heap = [(np.int64(0), np.int64(0))]
    heap.clear()
    free = 0.0
    at = 0
    while at < len(order) or heap:
        if not heap:
            free = max(free, ends[copies[order[at], 1]])
        while at < len(order) and ends[copies[order[at], 1]] <= free:
            i = order[at]
            heapq.heappush(heap, (np.int64(copies[i, 2]), np.int64(i)))
            at += 1
        i = heapq.heappop(heap)[1]
        slot = np.searchsorted(ends, free, side="right") - 1
        slots[i] = min(max(slot, copies[i, 1]), copies[i, 2] - 1)
        free += a.out_us[copies[i, 0]]
    return slots


@numba.njit(**INNER)
def _place_ins(
    a: Arrays, copies: np.ndarray, starts: np.ndarray, ends: np.ndarray, live: np.ndarray
) -> np.ndarray:
    """Per copy in, the run behind which it is listed; `live` is used up."""
    slots = np.empty(len(copies), dtype=np.int32)
    limit = np.inf
    for k in range(len(copies) - 1, -1, -1):
        t, ready, due = copies[k, 0], copies[k, 1], copies[k, 2]
        size = a.size[t]
        begin = min(starts[due], limit) - a.in_us[t]
        slot = max(np.searchsorted(ends, begin, side="right") - 1, ready)
        slot = min(slot, due - 1)
        r = due - 1
        while r > slot and live[r] + size <= a.capacity:
            live[r] += size
            r -= 1
        slots[k] = r
        limit = begin
    return slots


@numba.njit(**INNER)
def _list(
    w: Work,
    run_op: np.ndarray,
    outs: np.ndarray,
    out_slot: np.ndarray,
    ins: np.ndarray,
    in_slot: np.ndarray,
) -> None:
    """Write runs with the copies behind the run of their slot, out before in, else as they were."""
    runs = run_op.size
    begin = np.zeros(runs + 2, dtype=np.int32)
    for s in out_slot:
        begin[s + 2] += 1
    for s in in_slot:
        begin[s + 2] += 1
    for r in range(1, runs + 2):
        begin[r] += begin[r - 1]
    fill = begin.copy()
    # row r + 1 of `begin`: copies listed behind runs up to r
    for k in range(len(outs)):
        s = out_slot[k] + 1
        i = fill[s] + s
        w.kind[i] = OUT
        w.target[i] = outs[k, 0]
        fill[s] += 1
    for k in range(len(ins)):
        s = in_slot[k] + 1
        i = fill[s] + s
        w.kind[i] = IN
        w.target[i] = ins[k, 0]
        fill[s] += 1
    for r in range(runs):
        i = begin[r + 1] + r
        w.kind[i] = RUN
        w.target[i] = run_op[r]


@numba.njit(**INNER)
def overlapped(a: Arrays, w: Work, host: Floats, count: int) -> float:
    """Time of the `count` actions in `w` on three engines; starts and ends are left in `w`. They
    must have been replayed: the ends of the copies are read."""
    ins_at, ins, outs_at, outs = a.ins_at, a.ins, a.outs_at, a.outs
    size, workspace, duration = a.size, a.workspace, a.duration
    out_us, in_us = a.out_us, a.in_us
    kind, targets, newest = w.kind, w.target, w.newest
    end, frees, to_end = w.copy_end, w.copy_frees, w.copy_to_end
    made, read_until, start, finish = w.copy_made, w.copy_read, w.start, w.finish
    now = free_out = free_in = 0.0
    used = a.fixed
    capacity = a.capacity
    releases = [(0.0, np.int64(0))]
    releases.clear()
    copies = 0
    newest[:] = -1
    for step in range(count):
        t = targets[step]
        if kind[step] == RUN:
            need = workspace[t]
            for j in range(ins_at[t], ins_at[t + 1]):
                c = newest[ins[j]]
                now = max(now, made[c])
                if frees[c] and end[c] == step:
                    now = max(now, read_until[c])
                    need -= size[ins[j]]
            for j in range(outs_at[t], outs_at[t + 1]):
                need += size[outs[j]]
            while len(releases) > 0 and (releases[0][0] <= now or used + need > capacity):
                when, bytes_ = heapq.heappop(releases)
                now = max(now, when)
                used -= bytes_
            start[step] = now
            done = now + float(duration[t])
            now = done
            used += need
            if workspace[t]:
                heapq.heappush(releases, (float(done), np.int64(workspace[t])))
            for j in range(ins_at[t], ins_at[t + 1]):
                c = newest[ins[j]]
                read_until[c] = max(read_until[c], done)
                if not to_end[c] and not frees[c] and end[c] == step + 1:
                    heapq.heappush(releases, (float(read_until[c]), np.int64(size[ins[j]])))
            for j in range(outs_at[t], outs_at[t + 1]):
                u = outs[j]
                newest[u] = copies
                made[copies] = read_until[copies] = done
                if not to_end[copies] and end[copies] == step + 1 and not frees[copies]:
                    heapq.heappush(releases, (float(done), np.int64(size[u])))
                copies += 1
        elif kind[step] == OUT:
            c = newest[t]
            now = max(now, made[c])
            start[step] = max(now, free_out)
            done = start[step] + float(out_us[t])
            free_out = done
            host[t] = done
            read_until[c] = max(read_until[c], done)
            if not to_end[c] and not frees[c] and end[c] == step + 1:
                heapq.heappush(releases, (float(read_until[c]), np.int64(size[t])))
        else:
            now = max(now, host[t])
            while len(releases) > 0 and (releases[0][0] <= now or used + size[t] > capacity):
                when, bytes_ = heapq.heappop(releases)
                now = max(now, when)
                used -= bytes_
            used += size[t]
            start[step] = max(now, free_in)
            done = start[step] + float(in_us[t])
            free_in = done
            newest[t] = copies
            made[copies] = read_until[copies] = done
            if end[copies] == step + 1 and not frees[copies]:
                heapq.heappush(releases, (float(done), np.int64(size[t])))
            copies += 1
        finish[step] = done
    last = 0.0
    for step in range(count):
        last = max(last, finish[step])
    return last
