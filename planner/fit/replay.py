"""Replay of the arena, and moves that make more of an order fit in it: `planner/native/search`.

The arena is that of `planner.runtime.memory.bfc` under a cap: regions double from a first one and
never merge, and every chunk is split. A test compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from planner import clock
from planner.fit.demands import Demands, Longs
from planner.native.calls import address, function, random_words, words
from planner.runtime.memory.bfc import MAX_REGION_STEP, ROUNDING

UNLIMITED = 1 << 60


class ReplayLimits(NamedTuple):
    """Limits for an order: the arena's bytes, its first region's, and the most bytes in use."""

    arena_bytes: int
    first_bytes: int
    in_use_bytes: int


def rooms(demands: Demands, order: Longs, limits: ReplayLimits, firsts: Longs) -> Longs:
    """Return, for each first region, the number of units of `order` that fit in each of two runs."""
    return _reached(demands, order, limits, firsts)[:, 0]


def most_in_use(demands: Demands, order: Longs) -> int:
    """Return the most bytes that a run of `order` has in use, whatever the arena."""
    anything = ReplayLimits(UNLIMITED, 0, UNLIMITED)
    return int(_reached(demands, order, anything, _longs((UNLIMITED,)))[0, 2])


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
    clock.spend(clock.FITTED_S * len(order) * tries)
    ran = function("planner_search_climb")(
        words(demands),
        words([order]),
        _limits(limits),
        words((distances, tries, *random_words(rng))),
    )
    _check(ran)
    return ran


def _reached(demands: Demands, order: Longs, limits: ReplayLimits, firsts: Longs) -> Longs:
    """Return a row for each first region: units, bytes missing in one piece, the most bytes in use."""
    order, firsts = _longs(order), _longs(firsts)
    clock.spend(clock.FITTED_S * len(order) * len(firsts))
    found = np.zeros((len(firsts), 3), dtype=np.int64)
    function("planner_search_reach")(
        words(demands), words([order]), _limits(limits), words([firsts]), address(found)
    )
    for units in found[:, 0]:
        _check(units)
    return found


def _check(units: int) -> None:
    if units < 0:
        raise ValueError("a unit in the order reads a tensor that no unit before it makes")


def _limits(limits: ReplayLimits) -> object:
    return words((*limits, ROUNDING, MAX_REGION_STEP))


def _longs(values: Sequence[int] | Longs) -> Longs:
    return np.ascontiguousarray(values, dtype=np.int64)
