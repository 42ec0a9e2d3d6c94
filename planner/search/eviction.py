"""Plans for little memory: run the base order within a capacity, and drop tensors in the way.

Operations run in base order. A missing input is made again, together with its own missing inputs,
depth first: one input after the other, the one that takes most memory first (Sethi and Ullman, "The
Generation of Optimal Code for Arithmetic Expressions", JACM 1970, for trees). Inputs made for a
waiting operation are pinned until it runs; each waiting operation therefore makes each of its
inputs at most once, and the search ends. All other tensors on the device may be dropped when room
is needed: first those that are cheap to make again, large, and not read for long (the heuristic of
Kirisame et al., "Dynamic Tensor Rematerialization", ICLR 2021, with the base order's next read in
place of the last access); inputs of a waiting operation go last.

The plan's time is not looked at. Copies to the host are not used. The walk itself is compiled:
`planner/native/search/eviction.cpp`.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from planner import clock
from planner.native.calls import function, random_words, words
from planner.plan.problem import Action, Problem, run_actions
from planner.search.fast.arrays import arrays_of


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionPolicy:
    """Exponents of the score by which tensors are dropped, least first.

    The score is cost ** (`cost_halves` / 2) / (bytes * distance to the next base read **
    `distance`). `in_order`: all missing tensors are made in base order, not depth first.
    """

    cost_halves: int
    distance: int
    in_order: bool


EVICTION_POLICIES = (
    EvictionPolicy(cost_halves=2, distance=1, in_order=True),
    EvictionPolicy(cost_halves=2, distance=1, in_order=False),
    EvictionPolicy(cost_halves=0, distance=1, in_order=False),
    EvictionPolicy(cost_halves=1, distance=0, in_order=False),
)

MAX_RUNS = 8
"""A plan by eviction has at most this many runs per operation."""

_NO_DRAW = (0, 0)
_MOST_WORK = 1 << 62


class Eviction:
    """Schedules of one problem by eviction: for one thread at a time."""

    def __init__(self, problem: Problem) -> None:
        self._arrays = arrays_of(problem)
        self._problem = words(self._arrays)
        self._runs = np.zeros(MAX_RUNS * len(problem.ops), dtype=np.int32)

    def actions(
        self,
        capacity_bytes: int,
        policy: EvictionPolicy,
        *,
        deadline: float,
        draw: np.random.Generator | None = None,
    ) -> list[Action] | None:
        """Build a schedule that fits the capacity; None if that fails.

        It fails at a dead end, beyond `MAX_RUNS` runs per operation, or once it has done as much
        work as there is time for until `deadline` (seconds of `clock.now`).

        Args:
            draw: source of random factors that blur scores; None for exact scores.
        """
        left_s = deadline - clock.now()
        if left_s <= 0:
            return None
        how = policy.cost_halves, policy.distance, policy.in_order
        most_work = int(min(left_s / clock.EVICTED_S, _MOST_WORK))
        drawn = _NO_DRAW if draw is None else random_words(draw)
        asked = words((capacity_bytes, *how, most_work, *drawn, self._runs))
        work = ctypes.c_int64()
        count = function("planner_search_evict")(self._problem, asked, ctypes.byref(work))
        clock.spend(clock.EVICTED_S * work.value)
        return None if count < 0 else run_actions(self._runs[:count].tolist())
