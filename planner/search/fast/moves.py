"""Change decisions, replay, keep what is better."""

from __future__ import annotations

import math

import numba
import numpy as np

from planner.processes.compiled import INNER
from planner.search.fast.arrays import DROP, KEEP, SWAP, Arrays, Floats, Plan, Work
from planner.search.fast.replay import BROKEN, replay
from planner.search.fast.schedule import schedule
from planner.search.fast.streams import place_and_time

_SMALL = 1e-9


@numba.njit(**INNER)
def evaluate(a: Arrays, plan: Plan, w: Work, host: Floats | None) -> tuple[int, int, float]:
    """(actions, peak bytes, time) of a plan; the schedule is left in `w`. Beside the operations, the
    copies are placed once, which is quick; the time of a plan that does not fit is that on one
    stream.

    Args:
        host: scratch of a float per tensor where copies run beside the operations, None where they
            do not: what times them is compiled only if it is needed.
    """
    count = schedule(a, plan, w)
    if count < 0:
        return count, BROKEN, np.inf
    peak, time_us, _ = replay(a, w, count)
    if host is not None and peak <= a.capacity:
        peak, time_us, _ = place_and_time(a, w, host, count, 1)
    return count, peak, time_us


@numba.njit(**INNER)
def _copy(source: Plan, target: Plan) -> None:
    # gap by gap: to assign whole arrays is to compile an error message for lengths that differ
    for i in range(source.choice.size):
        target.choice[i] = source.choice[i]
        target.released[i] = source.released[i]
        target.early[i] = source.early[i]


@numba.njit(**INNER)
def _below(limit: int, rng: np.random.Generator) -> int:
    """A whole number from 0, less than `limit`: `Generator.integers` takes seconds to compile."""
    return int(rng.random() * limit)


@numba.njit(cache=True, nogil=True)
def change(
    a: Arrays,
    plan: Plan,
    scratch: Plan,
    w: Work,
    host: Floats | None,
    gaps: np.ndarray,
    choice: int,
    batch: int,
    time_us: float,
) -> float:
    """Decide `choice` at `gaps`, `batch` at a time, and keep what fits and is faster; keeping a
    tensor only needs to be no slower. Returns the plan's time.

    Args:
        time_us: the plan's; NaN where that is not known yet.
    """
    if math.isnan(time_us):
        _, _, time_us = evaluate(a, plan, w, host)
    for start in range(0, len(gaps), batch):
        _copy(plan, scratch)
        changed = False
        for i in gaps[start : start + batch]:
            t = a.gap_tensor[i]
            last = i == a.gap_at[t + 1] - 1
            if scratch.choice[i] == choice or (choice == SWAP and (last or not a.swappable[t])):
                continue
            if choice == DROP and not last and not a.recomputable[a.producer[t]]:
                continue
            scratch.choice[i] = choice
            changed = True
        if not changed:
            continue
        _, peak, time = evaluate(a, scratch, w, host)
        enough = time_us if choice == KEEP else time_us * (1 - _SMALL)
        if peak <= a.capacity and time <= enough:
            _copy(scratch, plan)
            time_us = time
    return time_us


@numba.njit(**INNER)
def _flip(a: Arrays, plan: Plan, i: int, rng: np.random.Generator) -> None:
    """Change the decision at gap `i` at random."""
    t = a.gap_tensor[i]
    first, last = a.gap_at[t], a.gap_at[t + 1] - 1
    drop = a.recomputable[a.producer[t]] != 0
    swap = a.swappable[t] != 0
    r = rng.random()
    if i == last:
        plan.choice[i] = 0 if plan.choice[i] else DROP
    elif plan.choice[i] == 0:
        if drop and (not swap or r < 0.5):
            plan.choice[i] = DROP
        elif swap:
            plan.choice[i] = SWAP
    elif r < 0.6:
        plan.choice[i] = 0
        plan.early[i] = -1
    elif r < 0.75 and drop and swap:
        plan.choice[i] = DROP if plan.choice[i] == SWAP else SWAP
    elif r < 0.85:
        plan.released[i] = 1 - plan.released[i]
    elif r < 0.9 or plan.choice[i] == SWAP:
        plan.early[i] = -1
    else:
        g = i - first
        opened = a.producer[t] if g == 0 else a.uses[a.use_at[t] + g - 1]
        closed = a.uses[a.use_at[t] + g]
        plan.early[i] = opened + 1 + _below(int(closed - opened), rng)


@numba.njit(cache=True, nogil=True)
def anneal(
    a: Arrays,
    plan: Plan,
    best: Plan,
    scratch: Plan,
    w: Work,
    host: Floats | None,
    gaps: np.ndarray,
    state: np.ndarray,
    iterations: int,
    temperature_us: float,
    price_us_per_byte: float,
    rng: np.random.Generator,
) -> int:
    """Random changes to `plan`, kept by the rule of Metropolis on time + price x bytes over.

    Args:
        best: the best plan that fits.
        gaps: where to change decisions; neighbours in it should be near in time.
        state: (cost of `plan`, time of `best`), updated.

    Returns:
        How often `best` got better.
    """
    cost = state[0]
    best_us = state[1]
    found = 0
    n = len(gaps)
    for _ in range(iterations):
        _copy(plan, scratch)
        j = _below(n, rng)
        if rng.random() < 0.5:  # half the changes start from a decision that was taken
            for _ in range(16):
                if scratch.choice[gaps[j]]:
                    break
                j = _below(n, rng)
        _flip(a, scratch, gaps[j], rng)
        r = rng.random()
        if r < 0.6:  # exchange with a neighbour
            k = j + _below(49, rng) - 24
            _flip(a, scratch, gaps[min(max(k, 0), n - 1)], rng)
            if r < 0.2:
                _flip(a, scratch, gaps[_below(n, rng)], rng)
        _, peak, time = evaluate(a, scratch, w, host)
        if peak == BROKEN:
            continue
        new = time + price_us_per_byte * max(0, peak - a.capacity)
        if new <= cost or rng.random() < math.exp((cost - new) / temperature_us):
            _copy(scratch, plan)
            cost = new
            if peak <= a.capacity and time < best_us * (1 - _SMALL):
                _copy(plan, best)
                best_us = time
                found += 1
    state[0] = cost
    state[1] = best_us
    return found
