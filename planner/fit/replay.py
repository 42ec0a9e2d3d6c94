"""The replay of the arena, and moves that let more of an order run in it: `planner/native/search`.

The arena is that of `planner.runtime.memory.bfc`, as it is under a cap: regions double from a first one
and never merge, and every chunk is split. A test compares the two.
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
    """What an order must keep: the arena's bytes, its first region's, and the most bytes in use."""

    arena_bytes: int
    first_bytes: int
    in_use_bytes: int


def rooms(demands: Demands, order: Longs, limits: ReplayLimits, firsts: Longs) -> Longs:
    """For each of these first regions, how many units of `order`, from the first on, the arena has room
    for in each of two runs that follow each other."""
    return _reached(demands, order, limits, firsts)[:, 0]


def most_in_use(demands: Demands, order: Longs) -> int:
    """The most bytes that a run of `order` has in use, whatever the arena."""
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
    """Move units near the first one that there is no room for; returns how many there is room for.

    A move is kept unless there is room for fewer then, or for as many with more bytes missing.

    Args:
        order: of units; changed.
        spans: how far before that one units are moved, and how far they move, at most; each of them
            is as likely.
        tries: how many moves.
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
    """A row for each first region: units, bytes missing in one piece, the most bytes in use."""
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
        raise ValueError("the order of units has one that reads what none before it makes")


def _limits(limits: ReplayLimits) -> object:
    return words((*limits, ROUNDING, MAX_REGION_STEP))


def _longs(values: Sequence[int] | Longs) -> Longs:
    return np.ascontiguousarray(values, dtype=np.int64)
