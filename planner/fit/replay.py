"""Replay of the arena, and moves that make more of an order fit in it: `planner/native/search`.

The arena is that of `planner.runtime.memory.bfc` with one region and every chunk split. A test
compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from planner import clock
from planner.fit.demands import Demands, Longs
from planner.native.calls import address, function, random_words, words
from planner.runtime.memory.bfc import ROUNDING

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
