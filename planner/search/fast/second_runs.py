"""Schedules by passes, changed run by run: bytes are counted anew only where a change concerns them.

A schedule is a set of second runs, each in a pass; base operation m ends pass (m + 1) · `passes` - 1,
and the runs of one pass follow each other by index. With one pass for each base operation these are the
stages of `planner.plan.stages`; with more, runs between two base operations may take any order. Every
such set is a schedule that works: a tensor is held from the run that makes it to its last reader before
it is made again. To add a run, or take one away, changes only what its outputs and inputs take between
their neighbours in time. That costs microseconds; to replay a schedule takes a hundred times as long.

There are no copies, and operations that make graph outputs do not run again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from planner.plan.problem import Action, Problem, run_actions
from planner.plan.stages import MemoryProfile, base_plan, overwritten
from planner.processes.compiled import INNER
from planner.search.fast.arrays import Flags, Floats, Ints, Longs, arrays_of

Number = Any
"""A whole number, which is one to numba whether numpy's or not."""

NONE = -1


class Graph(NamedTuple):
    """What does not change. Sizes in bytes, times in microseconds; see `Arrays`.

    `spared`: per input, whether an output takes its buffer where the operation reads it last. `movable`:
    per operation, whether it may run again.
    """

    ins_at: Ints
    ins: Ints
    spared: Flags
    outs_at: Ints
    outs: Ints
    use_at: Ints
    uses: Ints
    producer: Ints
    size: Longs
    to_end: Flags
    duration: Floats
    workspace: Longs
    movable: Flags
    capacity: np.int64
    passes: np.int64


class Runs(NamedTuple):
    """A schedule.

    `key`: of each run in order, pass · operations + operation. `live`: bytes while it runs. `gap`: bytes
    between it and the next. `when`: the passes of each operation, ascending, of which `times` count.
    `touch`: from `touch_at` on, the keys of the runs that make or read each tensor, ascending, of which
    `touches` count. `total`: [runs]. `over`: [bytes above the capacity, summed over the runs]. `time`:
    [microseconds].
    """

    key: Longs
    live: Longs
    gap: Longs
    when: Ints
    times: Ints
    touch_at: Longs
    touch: Longs
    touches: Ints
    total: Longs
    over: Longs
    time: Floats


def graph_of(problem: Problem, *, passes: int = 1) -> Graph:
    """The problem as arrays, with so many passes for each base operation."""
    a = arrays_of(problem)
    spared = [t in overwritten(problem, m) for m, op in enumerate(problem.ops) for t in op.inputs]
    movable = [
        problem.allow_recompute
        and op.recomputable
        and bool(op.outputs)
        and not any(problem.tensors[t].to_end for t in op.outputs)
        for op in problem.ops
    ]
    return Graph(
        ins_at=a.ins_at, ins=a.ins, spared=np.array(spared, dtype=np.uint8),
        outs_at=a.outs_at, outs=a.outs, use_at=a.use_at, uses=a.uses, producer=a.producer,
        size=a.size, to_end=a.to_end, duration=a.duration, workspace=a.workspace,
        movable=np.array(movable, dtype=np.uint8),
        capacity=np.int64(problem.capacity_bytes), passes=np.int64(passes),
    )  # fmt: skip


def base_runs(problem: Problem, graph: Graph, *, max_runs: int, max_times: int) -> Runs:
    """Every operation once, with room for so many runs in all, and of one operation."""
    n = len(problem.ops)
    room = max(max_runs, n)
    key, live, gap = (np.zeros(room, dtype=np.int64) for _ in range(3))
    axis = MemoryProfile(problem, base_plan()).live
    live[:n] = axis[1::2]
    gap[: n - 1] = axis[2::2]
    gap[n - 1] = problem.fixed_bytes + sum(t.bytes for t in problem.tensors if t.to_end)
    last = (np.arange(n) + 1) * graph.passes - 1
    key[:n] = last * n + np.arange(n)
    when = np.zeros((n, max_times), dtype=np.int32)
    when[:, 0] = last
    touched = [(t.producer, *t.uses) for t in problem.tensors]
    touch_at = np.concatenate([[0], np.cumsum([len(ops) * max_times for ops in touched])])
    touch = np.zeros(touch_at[-1], dtype=np.int64)
    for start, ops in zip(touch_at.tolist(), touched, strict=False):
        touch[start : start + len(ops)] = key[list(ops)]
    return Runs(
        key=key, live=live, gap=gap, when=when, times=np.ones(n, dtype=np.int32),
        touch_at=touch_at, touch=touch, touches=np.array([*map(len, touched)], dtype=np.int32),
        total=np.array([n]),
        over=np.array([int(np.maximum(live[:n] - problem.capacity_bytes, 0).sum())]),
        time=np.array([problem.base_duration_us]),
    )  # fmt: skip


def actions_of_keys(problem: Problem, keys: Longs) -> list[Action]:
    """The schedule whose runs have these keys."""
    ops = (keys % len(problem.ops)).tolist()
    return run_actions(ops)


@numba.njit(**INNER)
def is_base(g: Graph, key: Number, n: int) -> bool:
    """Whether a run is the first of its operation."""
    return key // n == (key % n + 1) * g.passes - 1


@numba.njit(**INNER)
def _place_among(keys: Longs, low: Number, high: Number, key: Number) -> Number:
    """Place from `low` on, before `high`, of the first that is not before `key`; `high` if all are."""
    while low < high:
        middle = (low + high) >> 1
        if keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low


@numba.njit(**INNER)
def place_of(r: Runs, key: Number) -> Number:
    """Place of the first run that is not before `key`."""
    return _place_among(r.key, 0, r.total[0], key)


@numba.njit(**INNER)
def _touch_of(r: Runs, t: Number, key: Number) -> Number:
    """Place in `touch` of the first run of tensor `t`'s that is not before `key`."""
    low = r.touch_at[t]
    return _place_among(r.touch, low, low + r.touches[t], key)


@numba.njit(**INNER)
def before(r: Runs, t: Number, key: Number) -> Number:
    """Key of the last run before `key` that makes or reads tensor `t`; `NONE` if there is none."""
    i = _touch_of(r, t, key)
    return r.touch[i - 1] if i > r.touch_at[t] else np.int64(NONE)


@numba.njit(**INNER)
def after(r: Runs, t: Number, key: Number) -> Number:
    """Key of the first run after `key` that makes or reads tensor `t`; `NONE` if there is none."""
    i = _touch_of(r, t, key + 1)
    return r.touch[i] if i < r.touch_at[t] + r.touches[t] else np.int64(NONE)


@numba.njit(**INNER)
def is_held(g: Graph, r: Runs, t: Number, key: Number) -> bool:
    """Whether a run after `key` reads the copy of tensor `t` that there is before `key`."""
    if g.to_end[t]:
        return True
    k = after(r, t, key)
    return k != NONE and k % len(r.times) != g.producer[t]


@numba.njit(**INNER)
def _is_spared(g: Graph, m: Number, t: Number) -> bool:
    """Whether operation `m` writes over tensor `t` where it reads it last."""
    for j in range(g.ins_at[m], g.ins_at[m + 1]):
        if g.ins[j] == t:
            return g.spared[j] != 0
    return False


@numba.njit(**INNER)
def _hold(g: Graph, r: Runs, t: Number, place: int, sign: int) -> None:
    """Hold tensor `t` from its last run before `place` up to it, or (`sign` -1) no longer."""
    n = len(r.times)
    earlier = before(r, t, r.key[place])
    start = place_of(r, earlier)
    m = earlier % n
    first = start if m != g.producer[t] and _is_spared(g, m, t) else start + 1
    bytes_ = sign * g.size[t]
    over, nothing = np.int64(0), np.int64(0)
    # of slices, whose indices are never negative: so these loops are vectorized
    live, gap = r.live[first:place], r.gap[start:place]
    for i in range(len(live)):
        now = live[i] - g.capacity
        over += max(nothing, now + bytes_) - max(nothing, now)
        live[i] += bytes_
    for i in range(len(gap)):
        gap[i] += bytes_
    r.over[0] += over


@numba.njit(**INNER)
def _apply(g: Graph, r: Runs, place: int, m: Number, sign: int) -> None:
    """What run `place`, of operation `m`, changes for its tensors; whether it is noted in `when` and
    `touch` makes no difference."""
    key = r.key[place]
    own = 0  # bytes that it takes beside what is held there anyway
    for j in range(g.outs_at[m], g.outs_at[m + 1]):
        t = g.outs[j]
        if is_held(g, r, t, key):  # let go from its last reader on
            _hold(g, r, t, place, -sign)
        else:
            own += g.size[t]
    for j in range(g.ins_at[m], g.ins_at[m + 1]):
        t = g.ins[j]
        if not is_held(g, r, t, key):
            _hold(g, r, t, place, sign)
            if not g.spared[j]:
                own += g.size[t]
    now = r.live[place]
    r.live[place] = now + sign * own
    r.over[0] += max(0, r.live[place] - g.capacity) - max(0, now - g.capacity)


@numba.njit(**INNER)
def may_add(g: Graph, r: Runs, when: Number, m: Number) -> bool:
    """Whether operation `m` may run in a pass, where it does not yet."""
    if not g.movable[m] or when < (m + 1) * g.passes or when >= len(r.times) * g.passes:
        return False
    if r.times[m] == r.when.shape[1] or r.total[0] == len(r.key):
        return False
    for i in range(r.times[m]):  # noqa: SIM110
        if r.when[m, i] == when:
            return False
    return True


@numba.njit(**INNER)
def _make_room(array: Longs) -> None:
    """Move everything one place up, but for the last."""
    last = array[0]
    for i in range(1, len(array)):  # what is carried along lets this loop be vectorized
        now = array[i]
        array[i] = last
        last = now


@numba.njit(**INNER)
def _close_up(array: Longs) -> None:
    """Move everything one place down, but for the first."""
    above = array[1:]
    for i in range(len(above)):
        array[i] = above[i]


@numba.njit(**INNER)
def _touch(r: Runs, t: Number, key: Number) -> None:
    place = _touch_of(r, t, key)
    r.touches[t] += 1
    _make_room(r.touch[place : r.touch_at[t] + r.touches[t]])
    r.touch[place] = key


@numba.njit(**INNER)
def _untouch(r: Runs, t: Number, key: Number) -> None:
    _close_up(r.touch[_touch_of(r, t, key) : r.touch_at[t] + r.touches[t]])
    r.touches[t] -= 1


@numba.njit(**INNER)
def add(g: Graph, r: Runs, when: Number, m: Number) -> None:
    """Run operation `m` in a pass in which it may."""
    key = np.int64(when) * len(r.times) + m
    place = place_of(r, key)
    r.total[0] += 1
    for array in (r.key, r.live, r.gap):
        _make_room(array[place : r.total[0]])
    r.key[place] = key
    r.gap[place] = r.gap[place - 1]
    r.live[place] = r.gap[place - 1] + g.workspace[m]
    r.over[0] += max(0, r.live[place] - g.capacity)
    r.time[0] += g.duration[m]
    _apply(g, r, place, m, 1)
    i = r.times[m]
    while i and r.when[m, i - 1] > when:
        r.when[m, i] = r.when[m, i - 1]
        i -= 1
    r.when[m, i] = when
    r.times[m] += 1
    for j in range(g.outs_at[m], g.outs_at[m + 1]):
        _touch(r, g.outs[j], key)
    for j in range(g.ins_at[m], g.ins_at[m + 1]):
        _touch(r, g.ins[j], key)


@numba.njit(**INNER)
def remove(g: Graph, r: Runs, when: Number, m: Number) -> None:
    """Take the second run of `m` in a pass away."""
    r.times[m] -= 1
    i = 0
    while r.when[m, i] != when:
        i += 1
    for j in range(i, r.times[m]):
        r.when[m, j] = r.when[m, j + 1]
    key = np.int64(when) * len(r.times) + m
    place = place_of(r, key)
    _apply(g, r, place, m, -1)
    r.over[0] -= max(0, r.live[place] - g.capacity)
    r.time[0] -= g.duration[m]
    r.total[0] -= 1
    for array in (r.key, r.live, r.gap):
        _close_up(array[place : r.total[0] + 1])
    for j in range(g.outs_at[m], g.outs_at[m + 1]):
        _untouch(r, g.outs[j], key)
    for j in range(g.ins_at[m], g.ins_at[m + 1]):
        _untouch(r, g.ins[j], key)


@numba.njit(cache=True, nogil=True)
def change(g: Graph, r: Runs, when: Number, m: Number) -> bool:
    """Add the second run of `m` in a pass, or take it away; whether that was possible."""
    for i in range(1, r.times[m]):
        if r.when[m, i] == when:
            remove(g, r, when, m)
            return True
    if not may_add(g, r, when, m):
        return False
    add(g, r, when, m)
    return True
