"""Replay a schedule: live bytes at each action, its peak, and its time on one stream.

The same semantics as `planner.simulate.simulate`, which judges the result.
"""

from __future__ import annotations

import numba
import numpy as np

from planner.processes.compiled import INNER
from planner.search.fast.arrays import OUT, RUN, Arrays, Work

BROKEN = np.iinfo(np.int64).max


@numba.njit(**INNER)
def replay(a: Arrays, w: Work, count: int) -> tuple[int, float, int]:
    """(peak bytes, time on one stream, copies made) of the `count` actions in `w`; the copies and
    `w.live` are left there. The peak is BROKEN where the scratch was too small."""
    ins_at, ins, outs_at, outs = a.ins_at, a.ins, a.outs_at, a.outs
    pair_at, pair_source, pair_target = a.pair_at, a.pair_source, a.pair_target
    size, workspace, duration, tensor_to_end = a.size, a.workspace, a.duration, a.to_end
    out_us, in_us = a.out_us, a.in_us
    kind, targets, newest, ran, live = w.kind, w.target, w.newest, w.ran, w.live
    tensor, birth, end = w.copy_tensor, w.copy_birth, w.copy_end
    frees, to_end = w.copy_frees, w.copy_to_end
    newest[:] = -1
    ran[:] = 0
    live[: count + 1] = 0
    copies = 0
    room = tensor.size
    time_us = 0.0
    for step in range(count):
        target = targets[step]
        if kind[step] == RUN:
            for i in range(ins_at[target], ins_at[target + 1]):
                c = newest[ins[i]]
                end[c] = step + 1
                frees[c] = 0
            for i in range(pair_at[target], pair_at[target + 1]):
                c = newest[pair_source[i]]
                taken = False
                for j in range(pair_at[target], i):
                    if pair_target[j] == pair_target[i] and frees[newest[pair_source[j]]]:
                        taken = True
                if birth[c] < step and not to_end[c] and not taken:
                    frees[c] = 1
            first = ran[target] == 0
            ran[target] = 1
            if copies + outs_at[target + 1] - outs_at[target] >= room:
                return BROKEN, 0.0, copies
            for i in range(outs_at[target], outs_at[target + 1]):
                t = outs[i]
                newest[t] = copies
                tensor[copies] = t
                birth[copies] = step
                end[copies] = step + 1
                frees[copies] = 0
                to_end[copies] = first and tensor_to_end[t]
                copies += 1
            live[step] += workspace[target]
            live[step + 1] -= workspace[target]
            time_us += float(duration[target])
        elif kind[step] == OUT:
            c = newest[target]
            end[c] = step + 1
            frees[c] = 0
            time_us += float(out_us[target])
        else:
            if copies + 1 >= room:
                return BROKEN, 0.0, copies
            newest[target] = copies
            tensor[copies] = target
            birth[copies] = step
            end[copies] = step + 1
            frees[copies] = 0
            to_end[copies] = 0
            copies += 1
            time_us += float(in_us[target])
    for c in range(copies):
        if to_end[c]:
            end[c] = count
        elif frees[c]:
            end[c] -= 1
        live[birth[c]] += size[tensor[c]]
        live[end[c]] -= size[tensor[c]]
    peak = 0
    running = a.fixed
    for step in range(count):
        running += live[step]
        live[step] = running
        peak = max(peak, running)
    return peak, time_us, copies
