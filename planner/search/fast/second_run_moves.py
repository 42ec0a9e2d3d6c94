"""Simulated annealing over second runs: what is changed, and what is kept.

drop    a tensor that waits at some run, best where it is too full, is let go, and made again before its
        next reader; with some chance, so is what that needs
undo    a second run is taken away, with what served it alone; often something is dropped nearby instead
shift   a second run takes place in another pass
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba
import numpy as np

from planner.processes.compiled import INNER
from planner.search.fast.arrays import Floats, Longs
from planner.search.fast.second_runs import (
    NONE,
    Graph,
    Number,
    Runs,
    add,
    after,
    before,
    is_base,
    is_held,
    may_add,
    place_of,
    remove,
)

_MAX_CHAIN = 24
"""Second runs that one move adds, at most."""

_TRIES = 40
"""Draws of a tensor that waits, or of a second run, before a move is given up."""

_NEAR = 40
"""Runs on either side in which something is dropped instead of a run that is taken away."""


class Walk(NamedTuple):
    """What annealing remembers.

    `log`: (pass, operation, 1 or -1) of each change since the last schedule that was kept, `logged` of
    them. `best`: the keys of the best schedule; `found`: its [runs, bytes over, microseconds].
    """

    log: Longs
    logged: Longs
    best: Longs
    found: Floats


class Heat(NamedTuple):
    """Of one slice.

    `moves`: at most; where it is `until_fits`, it ends with the first schedule that fits. Temperature in
    microseconds, and price in microseconds of a byte over. A tensor that is let go is the largest of
    `draws`.
    """

    moves: np.int64
    temperature_us: np.float64
    price_us: np.float64
    until_fits: np.bool_
    draws: np.int64


def new_walk(runs: Runs) -> Walk:
    """Nothing changed, nothing found."""
    return Walk(
        log=np.zeros((len(runs.key) + 2 * _MAX_CHAIN, 3), dtype=np.int64),
        logged=np.zeros(1, dtype=np.int64),
        best=runs.key.copy(),
        found=np.array([runs.total[0], runs.over[0], runs.time[0]], dtype=np.float64),
    )


@numba.njit(**INNER)
def _below(limit: int, rng: np.random.Generator) -> int:
    return int(rng.random() * limit)


@numba.njit(**INNER)
def _note(w: Walk, when: Number, m: Number, sign: int) -> None:
    c = w.logged[0]
    w.log[c, 0], w.log[c, 1], w.log[c, 2] = when, m, sign
    w.logged[0] = c + 1


@numba.njit(**INNER)
def _undo(g: Graph, r: Runs, w: Walk) -> None:
    """Take all changes of the log back."""
    for c in range(w.logged[0] - 1, -1, -1):
        if w.log[c, 2] > 0:
            remove(g, r, w.log[c, 0], w.log[c, 1])
        else:
            add(g, r, w.log[c, 0], w.log[c, 1])
    w.logged[0] = 0


@numba.njit(**INNER)
def _add_chain(
    g: Graph, r: Runs, w: Walk, start: tuple[Number, Number], share: float, rng: np.random.Generator
) -> None:
    """Run an operation in a pass, `start`, and likewise, each with that chance, what makes inputs that
    nobody holds there."""
    when, m = start
    if not may_add(g, r, when, m):
        return
    n = len(r.times)
    first = done = w.logged[0]
    add(g, r, when, m)
    _note(w, when, m, 1)
    while done < w.logged[0]:
        k = w.log[done, 1]
        key = np.int64(when) * n + k
        done += 1
        for j in range(g.ins_at[k], g.ins_at[k + 1]):
            t = g.ins[j]
            p = g.producer[t]
            if g.to_end[t] or w.logged[0] - first == _MAX_CHAIN or not may_add(g, r, when, p):
                continue
            if before(r, t, key) // n == when or is_held(g, r, t, key):
                continue  # at hand
            if rng.random() < share:
                add(g, r, when, p)
                _note(w, when, p, 1)


@numba.njit(**INNER)
def _remove_idle(g: Graph, r: Runs, w: Walk) -> None:
    """Take away second runs whose only reader is in the log of what was taken away."""
    n = len(r.times)
    done = 0
    while done < w.logged[0]:
        when, m = w.log[done, 0], w.log[done, 1]
        key = when * n + m
        done += 1
        for j in range(g.ins_at[m], g.ins_at[m + 1]):
            t = g.ins[j]
            p = g.producer[t]
            k = before(r, t, key)
            if k % n != p or is_base(g, k, n):
                continue
            idle = True
            for i in range(g.outs_at[p], g.outs_at[p + 1]):
                idle &= not is_held(g, r, g.outs[i], k)
            if idle:
                remove(g, r, k // n, p)
                _note(w, k // n, p, -1)


@numba.njit(**INNER)
def _second_run(g: Graph, r: Runs, rng: np.random.Generator) -> int:
    """Place of a second run; `NONE` where none is found."""
    n = len(r.times)
    if r.total[0] > n:
        for _ in range(_TRIES):
            i = _below(r.total[0], rng)
            if not is_base(g, r.key[i], n):
                return i
    return NONE


@numba.njit(**INNER)
def _full_run(g: Graph, r: Runs, rng: np.random.Generator) -> int:
    """Place of a run that is too full, by its excess; of any where none is."""
    if r.over[0] > 0:
        wanted = rng.random() * r.over[0]
        for i in range(r.total[0]):
            wanted -= max(0, r.live[i] - g.capacity)
            if wanted <= 0:
                return i
    return _below(r.total[0], rng)


@numba.njit(**INNER)
def _waiting(g: Graph, r: Runs, place: int, draws: Number, rng: np.random.Generator) -> Number:
    """The largest of so many tensors that wait at a run and can be made again; `NONE` where none is
    found."""
    n = len(r.times)
    key = r.key[place]
    largest, found = _none(), 0
    for _ in range(_TRIES):
        t = _below(len(g.size), rng)
        m = g.producer[t]
        if not g.movable[m] or not g.size[t] or r.when[m, 0] * n + m >= key:
            continue
        k = after(r, t, key)
        if k == NONE or k % n == m or key % n == m:
            continue
        touched = False
        for j in range(g.ins_at[key % n], g.ins_at[key % n + 1]):
            touched |= g.ins[j] == t
        if touched:
            continue
        if largest == NONE or g.size[t] > g.size[largest]:
            largest = np.int64(t)
        found += 1
        if found == draws:
            break
    return largest


@numba.njit(**INNER)
def _drop(g: Graph, r: Runs, w: Walk, place: int, draws: Number, rng: np.random.Generator) -> None:
    """Let go a tensor that waits at run `place`, and make it again later."""
    n = len(r.times)
    key = r.key[place]
    t = _waiting(g, r, place, draws, rng)
    if t == NONE:
        return
    when, first = after(r, t, key) // n, key // n + 1
    if when > first and rng.random() < 0.2:
        when = first + _below(when - first + 1, rng)
    draw = rng.random()
    share = 0.5 if draw < 0.4 else 0.9 if draw < 0.7 else 0.0
    _add_chain(g, r, w, (when, g.producer[t]), share, rng)


@numba.njit(**INNER)
def _shift(g: Graph, r: Runs, w: Walk, place: int, rng: np.random.Generator) -> None:
    n = len(r.times)
    key = r.key[place]
    when, m = key // n, key % n
    first, last = (m + 1) * g.passes, _none()
    for j in range(g.outs_at[m], g.outs_at[m + 1]):
        t = g.outs[j]
        k = after(r, t, key)
        if k != NONE and k % n != m:
            last = k // n if last == NONE else min(last, k // n)
        first = max(first, before(r, t, key) // n)
    if last == NONE or last <= first:
        return
    draw = rng.random()
    if draw < 0.4:
        other = last
    elif draw < 0.7:
        other = first + _below(last - first + 1, rng)
    else:
        other = min(last, max(first, when + _below(9, rng) - 4))
    if other != when:
        remove(g, r, when, m)
        _note(w, when, m, -1)
        if may_add(g, r, other, m):
            add(g, r, other, m)
            _note(w, other, m, 1)


@numba.njit(**INNER)
def _none() -> Number:
    return np.int64(NONE)


@numba.njit(**INNER)
def _move(g: Graph, r: Runs, w: Walk, draws: Number, rng: np.random.Generator) -> None:
    """One change, noted in the log."""
    draw = rng.random()
    if draw < 0.4:
        place = _full_run(g, r, rng) if draw < 0.2 else _below(r.total[0], rng)
        _drop(g, r, w, place, draws, rng)
        return
    place = _second_run(g, r, rng)
    if place == NONE:
        return
    if draw > 0.75:
        _shift(g, r, w, place, rng)
        return
    n = len(r.times)
    key = r.key[place]
    remove(g, r, key // n, key % n)
    _note(w, key // n, key % n, -1)
    if rng.random() < 0.7:
        _remove_idle(g, r, w)
    draw = rng.random()
    if draw < 0.3:
        near = place_of(r, key) + _below(2 * _NEAR + 1, rng) - _NEAR
        _drop(g, r, w, min(max(near, 0), r.total[0] - 1), draws, rng)
    elif draw < 0.4:
        _drop(g, r, w, _full_run(g, r, rng), draws, rng)


@numba.njit(cache=True, nogil=True)
def anneal_runs(g: Graph, r: Runs, w: Walk, heat: Heat, rng: np.random.Generator) -> int:
    """Random changes, kept by the rule of Metropolis on time + price x bytes over the capacity. Of two
    schedules the better one has fewer bytes over, or takes less time with as many. Returns the moves."""
    for move in range(heat.moves):
        cost = r.time[0] + heat.price_us * r.over[0]
        w.logged[0] = 0
        _move(g, r, w, heat.draws, rng)
        if not w.logged[0]:
            continue
        more = r.time[0] + heat.price_us * r.over[0] - cost
        if more > 0 and rng.random() >= math.exp(-more / heat.temperature_us):
            _undo(g, r, w)
            continue
        over, least = r.over[0], w.found[1]
        if over < least or (over == least and r.time[0] < w.found[2] * (1 - 1e-12)):
            w.found[0], w.found[1], w.found[2] = r.total[0], over, r.time[0]
            for i in range(r.total[0]):
                w.best[i] = r.key[i]
            if heat.until_fits and not over:
                return move + 1
    return int(heat.moves)
