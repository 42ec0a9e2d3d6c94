"""Search for an order of a schedule's actions that ONNX Runtime's arena has room for.

The same actions in another order take the same time and need about the same bytes, but fragment the
arena differently. Best fit is chaotic: one move changes the addresses of everything behind it. The
search therefore mends an order from its beginning: it moves units near the first one that does not
fit until it does, and keeps the order before them. Most searches that succeed do so soon, and the
rest hardly ever; a stuck search restarts with another first region.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from planner import clock
from planner.fit.demands import Demands, Longs
from planner.fit.replay import UNLIMITED, ReplayLimits, climb, most_in_use, rooms
from planner.runtime.memory.arena import region_sizes
from planner.runtime.memory.bfc import ROUNDING, round_up

_SPANS = (4, 16, 64)

_TRIES = 64
"""Moves between two checks of the clock."""

_LANES = 4
"""Number of searches side by side, in step.

Their result is the same on any number of cores, as long as time is not out.
"""

_MOST_STEPS = 100
"""Checks of the clock in each search, after which it ends.

On small graphs this comes before the time limit, and the result then does not depend on the load of
the machine.
"""

_STUCK = 512
"""Moves without an improvement, after which a search restarts."""

_HOPELESS, _HOPELESS_LARGE, _LARGE = 1.06, 1.03, 1_000
"""Largest need with which a search starts, as a multiple of the arena.

The second is for graphs of at least `_LARGE` units. No search was seen to succeed beyond it.
"""


class _Nearness(NamedTuple):
    """Accuracy of the search for the least arena.

    It tries one in `stride` first regions, down to a `share` of the arena, until the `deadline`;
    after that the result is usually too low.
    """

    stride: int
    share: float
    deadline: float


_ROUGHLY, _EXACTLY = (4, 0.01), (1, 0.004)
"""Stride and share for a rough and for an exact answer."""

_NEED_S = 5.0  # for a rough answer: with very many units one replay takes seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The result of a search.

    Attributes:
        order: units in an order in which two runs fit into the arena; None if none was found.
        need: arena that the given order needs, as a multiple; a guess if nodes of one unit are
            apart, and units have no order as wholes.
    """

    order: tuple[int, ...] | None
    need: float


def fit(
    demands: Demands,
    cap_bytes: int,
    *,
    time_limit_s: float,
    more_in_use_bytes: int = 0,
    seed: int = 0,
    workers: int | None = None,
) -> Fit:
    """Search for an order of units in which two runs fit into an arena of `cap_bytes`.

    Args:
        more_in_use_bytes: the excess allowed over the most bytes in use of the given order.
        workers: threads; None for one per core.
    """
    if not demands.are_in_order:  # the replay requires that inputs are made before they are read
        return Fit(order=None, need=_HOPELESS)
    deadline = clock.now() + time_limit_s
    plain = np.arange(demands.units, dtype=np.int64)
    peak = most_in_use(demands, plain)
    least = max(peak, cap_bytes)
    near = _Nearness(*_EXACTLY, deadline)
    need = _least_arena(demands, plain, least, near) / cap_bytes
    hopeless = _HOPELESS_LARGE if demands.units >= _LARGE else _HOPELESS
    if peak > cap_bytes or need > hopeless or clock.now() > deadline:
        return Fit(order=None, need=need)
    in_use_bytes = min(cap_bytes, peak + more_in_use_bytes)
    firsts, ran = _firsts(demands, plain, ReplayLimits(cap_bytes, 0, in_use_bytes))
    ranked = [int(firsts[i]) for i in np.argsort(-ran, kind="stable")]
    limits = [ReplayLimits(cap_bytes, first, in_use_bytes) for first in ranked]
    lanes = [
        _Lane(demands, [*limits[number:], *limits[:number]][::_LANES], (seed, number))
        for number in range(_LANES)
    ]
    found = None
    with ThreadPoolExecutor(min(_LANES, workers or os.cpu_count() or 1)) as pool:
        for _ in range(_MOST_STEPS):
            orders = list(pool.map(_Lane.step, lanes))
            found = next((order for order in orders if order is not None), None)
            if found is not None or clock.now() > deadline:
                break
    return Fit(order=found, need=need)


def need_of(demands: Demands, cap_bytes: int | None = None) -> float:
    """Estimate the arena that the given order needs, as a multiple of `cap_bytes`.

    Args:
        cap_bytes: None for the most bytes in use.
    """
    order = np.arange(demands.units, dtype=np.int64)
    peak = most_in_use(demands, order)
    least = max(peak, cap_bytes or 0)
    if least <= 0:
        return 1.0
    near = _Nearness(*_ROUGHLY, clock.now() + _NEED_S)
    found = _least_arena(demands, order, least, near)
    return found / (cap_bytes or peak)


def first_region(demands: Demands, cap_bytes: int, sizes: Sequence[int] = ()) -> int | None:
    """Return the first of the first regions with which two runs fit into an arena of `cap_bytes`.

    None if there is none. It is `planner.runtime.memory.arena.first_region`, compiled.

    Args:
        demands: with a unit for each node.
        sizes: to try; by default those of `region_sizes`.
    """
    order = np.arange(demands.units, dtype=np.int64)
    firsts = np.array(sizes or region_sizes(cap_bytes, demands.units), dtype=np.int64)
    if most_in_use(demands, order) > cap_bytes:
        return None  # for any regions
    for i, size in enumerate(firsts):
        (ran,) = rooms(demands, order, ReplayLimits(cap_bytes, 0, UNLIMITED), firsts[i : i + 1])
        if ran == demands.units:
            return int(size)
    return None


def _firsts(demands: Demands, order: Longs, limits: ReplayLimits) -> tuple[Longs, Longs]:
    """Return the first regions, and the number of units of `order` that fit with each."""
    firsts = np.array(region_sizes(limits.arena_bytes, len(demands.event)), dtype=np.int64)
    return firsts, rooms(demands, order, limits, firsts)


def _least_arena(demands: Demands, order: Longs, least: int, near: _Nearness) -> int:
    """Estimate the least bytes, from `least` on, of an arena in which two runs of `order` fit."""

    def is_late() -> bool:
        return clock.now() > near.deadline

    good = 0  # the first region that sufficed for one arena often does for the next

    def fits(cap_bytes: int) -> bool:
        """Say whether the order runs in an arena of `cap_bytes` with some size of the first region.

        Sizes near the last one that sufficed come first. False also if time runs out.
        """
        nonlocal good
        limits = ReplayLimits(cap_bytes, 0, UNLIMITED)
        sizes = region_sizes(cap_bytes, len(demands.event))[:: near.stride]
        firsts = np.array(sizes, dtype=np.int64)
        for i in sorted(range(len(firsts)), key=lambda i: abs(i - good)):
            (ran,) = rooms(demands, order, limits, firsts[i : i + 1])
            if ran == demands.units:
                good = i
                return True
            if is_late():
                return False
        return False

    low, step = least, round_up(int(4 * near.share * least) + 1)
    while not fits(low + step) and not is_late():
        low, step = low + step, 2 * step
    high = low + step
    while high - low > near.share * least + ROUNDING and not is_late():
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


class _Lane:
    """An independent search, through these limits in turn."""

    def __init__(
        self, demands: Demands, limits: Sequence[ReplayLimits], seed: tuple[int, int]
    ) -> None:
        self.demands = demands
        self.limits = itertools.cycle(limits)
        self.rng = np.random.default_rng(seed)
        self._begin()

    def _begin(self) -> None:
        self.tried = next(self.limits)
        self.order = np.arange(self.demands.units, dtype=np.int64)
        self.most, self.idle = -1, 0

    def step(self) -> tuple[int, ...] | None:
        """Try some moves; return the order if all of it fits now."""
        if self.idle >= _STUCK:
            self._begin()
        ran = climb(self.demands, self.order, self.tried, _SPANS, _TRIES, self.rng)
        self.idle = 0 if ran > self.most else self.idle + _TRIES
        self.most = max(self.most, ran)
        return tuple(map(int, self.order)) if ran == self.demands.units else None
