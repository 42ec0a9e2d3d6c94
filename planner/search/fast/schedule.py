"""From decisions to a schedule: run the base order, bring back what is missing just in time.

Before a base operation whose input is not on the device, the tensor is swapped in if it was swapped
out, and otherwise its producer runs again, and so on up the graph. What was brought back stays until
its next base use. What a recompute reads and that cannot be brought back is kept for it.

Arrays are bound to local names first: reading a field of a tuple in an inner loop costs a reference
count each time.
"""

from __future__ import annotations

import numba

from planner.processes.compiled import INNER
from planner.search.fast.arrays import DROP, IN, OUT, RUN, SWAP, Arrays, Longs, Plan, Work

OVERFLOW = -1
"""The schedule outgrew the scratch: such a plan is no good."""

_LOST = -2


@numba.njit(cache=True, nogil=True)
def schedule(a: Arrays, plan: Plan, w: Work) -> int:
    """Write the actions of `plan` to `w.kind` and `w.target`; returns how many, or OVERFLOW.

    Any plan gives a valid schedule: a tensor that is needed, gone, and whose producer may not run
    again is kept on instead (the plan's array is changed)."""
    while True:
        count = _run_through(a, plan, w)
        if count != _LOST:
            return count


@numba.njit(**INNER)
def _sort(values: Longs, count: int) -> None:
    """Sort the first `count` values, in place (Shell, 1959): numpy's takes a second to compile."""
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, count):
            value = values[i]
            j = i - gap
            while j >= 0 and values[j] > value:
                values[j + gap] = values[j]
                j -= gap
            values[j + gap] = value
        gap //= 3


@numba.njit(**INNER)
def _run_through(a: Arrays, plan: Plan, w: Work) -> int:
    ins_at, ins, outs_at, outs = a.ins_at, a.ins, a.outs_at, a.outs
    gap_at, producer, to_end = a.gap_at, a.producer, a.to_end
    choice, released, early = plan.choice, plan.released, plan.early
    resident, on_host, next_use = w.resident, w.on_host, w.next_use
    seen, wanted, pending, stack = w.seen, w.wanted, w.pending, w.stack
    again_mark, again_list = w.again_mark, w.again_list
    early_head, early_next, gap_tensor = w.early_head, w.early_next, a.gap_tensor
    kind, target = w.kind, w.target
    resident[:] = 0
    on_host[:] = 0
    next_use[:] = 0
    tick = w.tick[0]
    any_early = False
    for i in range(early.size):
        op = early[i]
        if op >= 0:
            if not any_early:
                early_head[:] = -1
                any_early = True
            early_next[i] = early_head[op]
            early_head[op] = i
    count = 0
    room = kind.size
    for op in range(a.duration.size):
        tick += 1
        missing = 0
        for i in range(ins_at[op], ins_at[op + 1]):
            t = ins[i]
            if resident[t] == 0:
                seen[t] = tick
                wanted[t] = tick
                stack[missing] = t
                missing += 1
        if any_early:
            i = early_head[op]
            while i >= 0:
                t = gap_tensor[i]
                started = producer[t] < op and next_use[t] == i - gap_at[t]
                if started and resident[t] == 0 and seen[t] != tick:
                    seen[t] = tick
                    wanted[t] = tick
                    stack[missing] = t
                    missing += 1
                i = early_next[i]
        if missing:
            if count + missing + 8 >= room:  # all of it may be copied in
                w.tick[0] = tick
                return OVERFLOW
            # what must run again, and what is copied in: the stack grows above what is missing
            top = missing
            for i in range(missing):
                stack[top] = stack[i]
                top += 1
            reruns = 0
            lost = False
            while top > missing:
                top -= 1
                t = stack[top]
                at_host = on_host[t] and (
                    choice[gap_at[t] + next_use[t]] == SWAP or not a.recomputable[producer[t]]
                )
                if at_host:
                    pending[t] = 1
                    continue
                m = producer[t]
                if not a.recomputable[m]:
                    choice[gap_at[t + 1] - 1] = DROP
                    for i in range(gap_at[t], gap_at[t + 1] - 1):
                        if choice[i] == DROP:
                            choice[i] = 0
                    lost = True
                    continue
                if again_mark[m] == tick:
                    continue
                again_mark[m] = tick
                again_list[reruns] = m
                reruns += 1
                for i in range(ins_at[m], ins_at[m + 1]):
                    u = ins[i]
                    if not resident[u] and seen[u] != tick:
                        seen[u] = tick
                        stack[top] = u
                        top += 1
            if lost:
                pending[:] = 0
                w.tick[0] = tick
                return _LOST
            order = again_list
            _sort(order, reruns)
            for k in range(reruns):
                m = order[k]
                if count + ins_at[m + 1] - ins_at[m] + missing + 8 >= room:
                    pending[:] = 0
                    w.tick[0] = tick
                    return OVERFLOW
                for i in range(ins_at[m], ins_at[m + 1]):
                    u = ins[i]
                    if pending[u]:
                        kind[count] = IN
                        target[count] = u
                        count += 1
                        resident[u] = 1
                        pending[u] = 0
                kind[count] = RUN
                target[count] = m
                count += 1
                for i in range(outs_at[m], outs_at[m + 1]):
                    resident[outs[i]] = 1
            for i in range(missing):
                t = stack[i]
                if pending[t]:
                    kind[count] = IN
                    target[count] = t
                    count += 1
                    resident[t] = 1
                    pending[t] = 0
            # whether what was brought back stays: to its next base use, unless released
            for k in range(reruns):
                m = order[k]
                for i in range(ins_at[m], ins_at[m + 1]):
                    u = ins[i]
                    if seen[u] == tick and not to_end[u]:
                        gap = gap_at[u] + next_use[u]
                        if gap == gap_at[u + 1] - 1:
                            resident[u] = choice[gap] != 0
                        elif wanted[u] != tick and released[gap]:
                            resident[u] = 0
                for i in range(outs_at[m], outs_at[m + 1]):
                    u = outs[i]
                    if not to_end[u]:
                        gap = gap_at[u] + next_use[u]
                        if gap == gap_at[u + 1] - 1:
                            resident[u] = choice[gap] != 0
                        elif wanted[u] != tick and released[gap]:
                            resident[u] = 0
        if count + outs_at[op + 1] - outs_at[op] + ins_at[op + 1] - ins_at[op] + 8 >= room:
            w.tick[0] = tick
            return OVERFLOW
        kind[count] = RUN
        target[count] = op
        count += 1
        events = outs_at[op + 1] - outs_at[op]
        for j in range(events + ins_at[op + 1] - ins_at[op]):
            if j < events:
                t = outs[outs_at[op] + j]
                resident[t] = 1
            else:
                t = ins[ins_at[op] + j - events]
                next_use[t] += 1
            if to_end[t]:
                continue
            gap = gap_at[t] + next_use[t]
            what = choice[gap]
            if gap == gap_at[t + 1] - 1:
                resident[t] = what != 0
                continue
            if what == 0 or (what == DROP and not a.recomputable[producer[t]] and not on_host[t]):
                continue
            if what == SWAP and not on_host[t]:
                on_host[t] = 1
                kind[count] = OUT
                target[count] = t
                count += 1
            resident[t] = 0
    w.tick[0] = tick
    return count
