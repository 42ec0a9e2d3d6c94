"""Search for an order of a schedule's actions that ONNX Runtime's arena has room for.

The same actions in another order take the same time and need about the same bytes, but fragment the
arena differently. Best fit is chaotic: one move changes the addresses of everything behind it. The
search therefore mends an order from its beginning: it moves units near the first one that does not
fit until it does, and keeps the order before them. Most searches that succeed do so soon, and the
rest hardly ever; a stuck search begins again.

The replay of the arena, and the moves, are compiled (`planner/native/search`). That arena is the one of
`planner.runtime.memory.bfc` with one region and every chunk split. A test compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from planner import clock
from planner.fit.demands import Demands, Longs
from planner.native.calls import address, function, random_words, words
from planner.runtime.memory.bfc import ROUNDING, round_up

UNLIMITED = 1 << 60


class ReplayLimits(NamedTuple):
    """Limits for an order: the arena's bytes, and the most bytes in use."""

    arena_bytes: int
    in_use_bytes: int = UNLIMITED


def room(demands: Demands, order: Longs, limits: ReplayLimits) -> int:
    """Return the number of units of `order` that fit in each of two runs."""
    return _reached(demands, order, limits)[0]


def most_in_use(demands: Demands, order: Longs) -> int:
    """Return the most bytes that a run of `order` has in use, whatever the arena."""
    return _reached(demands, order, ReplayLimits(UNLIMITED))[2]


def climb(
    demands: Demands,
    order: Longs,
    limits: ReplayLimits,
    spans: Sequence[int],
    tries: int,
    rng: np.random.Generator,
) -> int:
    """Move units near the first one that does not fit; return the number of units that fit.

    A move is kept unless fewer units fit afterwards, or equally many with more bytes missing.

    Args:
        order: of units; changed in place.
        spans: the largest distances before that unit at which units are moved, and that they move;
            equally likely.
        tries: number of moves.
    """
    assert order.dtype == np.int64
    distances = _longs(spans)
    climbed = np.zeros(2, dtype=np.int64)
    function("planner_search_climb")(
        words(demands),
        words([order]),
        _limits(limits),
        words((distances, tries, *random_words(rng))),
        address(climbed),
    )
    ran, replays = climbed.tolist()
    clock.spend(clock.FITTED_S * len(order) * replays)
    _check(ran)
    return ran


def _reached(demands: Demands, order: Longs, limits: ReplayLimits) -> list[int]:
    """Return the units that fit, the bytes missing in one piece, and the most bytes in use."""
    order = _longs(order)
    clock.spend(clock.FITTED_S * len(order))
    found = np.zeros(3, dtype=np.int64)
    function("planner_search_reach")(
        words(demands), words([order]), _limits(limits), address(found)
    )
    _check(found[0])
    return found.tolist()


def _check(units: int) -> None:
    if units < 0:
        raise ValueError("a unit in the order reads a tensor that no unit before it makes")


def _limits(limits: ReplayLimits) -> object:
    return words((max(0, limits.arena_bytes) // ROUNDING * ROUNDING, limits.in_use_bytes))


def _longs(values: Sequence[int] | Longs) -> Longs:
    return np.ascontiguousarray(values, dtype=np.int64)


_SPANS = (4, 16, 64)

_TRIES = 64
"""Moves between two checks of the clock."""

_LANES = 4
"""Number of searches that take turns."""

_MOST_STEPS = 100
"""Checks of the clock in each search, after which it ends.

On small graphs this comes before the time limit, and the result then does not depend on the load of
the machine.
"""

_STUCK = 512
"""Moves without an improvement, after which a search restarts."""

_ROUGHLY, _EXACTLY = 0.01, 0.004
"""Shares of the arena within which the least one is found."""


def fit(
    demands: Demands,
    cap_bytes: int,
    *,
    time_limit_s: float,
    more_in_use_bytes: int = 0,
    seed: int = 0,
) -> tuple[int, ...] | None:
    """Search for an order of units in which two runs fit into an arena of `cap_bytes`.

    None if none was found, or nodes of one unit are apart.

    Args:
        more_in_use_bytes: the excess allowed over the most bytes in use of the given order.
    """
    if not demands.are_in_order:  # the replay requires that inputs are made before they are read
        return None
    deadline = clock.now() + time_limit_s
    peak = most_in_use(demands, _as_given(demands))
    if peak > cap_bytes or time_limit_s <= 0:
        return None
    in_use_bytes = min(cap_bytes, peak + more_in_use_bytes)
    limits = ReplayLimits(cap_bytes, in_use_bytes)
    lanes = [_Lane(demands, limits, (seed, number)) for number in range(_LANES)]
    for _ in range(_MOST_STEPS):
        for lane in lanes:
            if (found := lane.step()) is not None:
                return found
        if clock.now() > deadline:
            break
    return None


def need_of(demands: Demands, cap_bytes: int | None = None) -> float:
    """Estimate the arena that the given order needs, as a multiple of `cap_bytes`.

    Args:
        cap_bytes: None for the most bytes in use.
    """
    peak = most_in_use(demands, _as_given(demands))
    least = max(peak, cap_bytes or 0)
    if least <= 0:
        return 1.0
    return _least_arena(demands, least, _ROUGHLY) / (cap_bytes or peak)


def least_arena(demands: Demands, cap_bytes: int) -> int:
    """Return the bytes of a small arena into which two runs fit in this order.

    A slightly smaller arena may do. It is of at most `cap_bytes` if they fit into those.
    """
    peak = most_in_use(demands, _as_given(demands))
    if fits_arena(demands, cap_bytes):
        return min(cap_bytes, round_up(_least_arena(demands, peak, _EXACTLY)))
    return round_up(_least_arena(demands, max(peak, round_up(cap_bytes + 1)), _EXACTLY))


def fits_arena(demands: Demands, cap_bytes: int) -> bool:
    """Tell whether two runs in this order fit into an arena of `cap_bytes`."""
    return room(demands, _as_given(demands), ReplayLimits(cap_bytes)) == demands.units


def _as_given(demands: Demands) -> Longs:
    """Return the order in which the units are given."""
    return np.arange(demands.units, dtype=np.int64)


def _least_arena(demands: Demands, least: int, share: float) -> int:
    """Estimate the least bytes, from `least` on, of an arena in which two runs in this order fit.

    Args:
        share: accuracy, as a share of `least`.
    """
    if fits_arena(demands, least):
        return least
    low, step = least, round_up(int(4 * share * least) + 1)
    while not fits_arena(demands, low + step):
        low, step = low + step, 2 * step
    high = low + step
    while high - low > share * least + ROUNDING:
        middle = (low + high) // 2
        low, high = (low, middle) if fits_arena(demands, middle) else (middle, high)
    return high


class _Lane:
    """An independent search within these limits."""

    def __init__(self, demands: Demands, limits: ReplayLimits, seed: tuple[int, int]) -> None:
        self.demands, self.limits = demands, limits
        self.rng = np.random.default_rng(seed)
        self._begin()

    def _begin(self) -> None:
        self.order = _as_given(self.demands)
        self.most, self.idle = -1, 0

    def step(self) -> tuple[int, ...] | None:
        """Try some moves; return the order if all of it fits now."""
        if self.idle >= _STUCK:
            self._begin()
        ran = climb(self.demands, self.order, self.limits, _SPANS, _TRIES, self.rng)
        self.idle = 0 if ran > self.most else self.idle + _TRIES
        self.most = max(self.most, ran)
        return tuple(map(int, self.order)) if ran == self.demands.units else None
