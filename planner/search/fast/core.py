"""What is compiled: `planner/native/search`. It chooses; `planner.simulate` judges what it chose.

Calls let other threads run, and end in well under a second where that is asked for by few moves.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from planner import clock
from planner.native.calls import function, random_words, words
from planner.search.fast.arrays import Arrays, GapChoices, Steps, steps_for

OVERFLOW = -1
"""The schedule outgrew the steps: such a plan is no good."""

Gaps = npt.NDArray[np.int64]


class FastReplay(NamedTuple):
    """Of a schedule.

    Attributes:
        copies: of tensors, made by operations and copies in.
    """

    peak_bytes: int
    time_us: float
    copies: int


class _Replay(ctypes.Structure):
    _fields_ = (
        ("peak_bytes", ctypes.c_int64),
        ("time_us", ctypes.c_double),
        ("copies", ctypes.c_int64),
    )


class Heat(ctypes.Structure):
    """Of annealing: the cost of the plan and the time of the best one, which are updated.

    Attributes:
        price_us_per_byte: of a byte over the capacity.
    """

    _fields_ = (
        ("cost_us", ctypes.c_double),
        ("best_us", ctypes.c_double),
        ("temperature_us", ctypes.c_double),
        ("price_us_per_byte", ctypes.c_double),
    )


class Core:
    """Compiled functions of one problem, and the room that they work in: for one thread at a time.

    Attributes:
        arrays: the problem.
        steps: the schedule that was written last, and what its replay found.
    """

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self._problem = words(arrays)
        self.use(steps_for(arrays))

    def use(self, steps: Steps) -> None:
        """Work in this room from now on."""
        self.steps = steps
        self._steps = words(steps)

    def _spend(self, schedules: int = 1) -> None:
        clock.spend(clock.COMPILED_S * schedules * len(self.arrays.duration))

    def schedule(self, plan: GapChoices) -> int:
        """Write the actions of `plan` to the steps; returns how many, or OVERFLOW.

        Any plan gives a valid schedule: a tensor that is needed, gone, and whose producer may not run
        again is kept on instead (the plan's array is changed)."""
        self._spend()
        return function("planner_search_schedule")(self._problem, self._steps, words(plan))

    def replay(self, count: int, *, overlap: bool = False) -> FastReplay:
        """Replay the first `count` actions; `live` is left in the steps.

        Args:
            overlap: copies run beside the operations; starts and ends are left in the steps too.
        """
        return self._replayed("planner_search_replay", count, overlap)

    def place_and_time(self, count: int, rounds: int) -> FastReplay:
        """List the copies among the first `count` actions (just in time) where they hide.

        Args:
            rounds: how often to place them, each time by the starts and ends of the time before. With
                1, what comes out is taken as it is; with more, the best is, just in time included.

        Returns:
            The replay of the schedule now in the steps, copies beside the operations.
        """
        return self._replayed("planner_search_place", count, rounds)

    def _replayed(self, name: str, count: int, how: int) -> FastReplay:
        self._spend()
        found = _Replay()
        numbers = ctypes.c_int64(count), ctypes.c_int64(how)
        function(name)(self._problem, self._steps, *numbers, ctypes.byref(found))
        return FastReplay(found.peak_bytes, found.time_us, found.copies)

    def change(
        self, plan: GapChoices, gaps: Gaps, choice: int, batch: int, time_us: float
    ) -> float:
        """Decide `choice` at `gaps` of the plan, `batch` at a time, and keep what fits and is faster;
        keeping a tensor only needs to be no slower. Returns the plan's time.

        Args:
            time_us: the plan's; NaN where that is not known yet.
        """
        self._spend(2 * len(gaps))
        gaps, time = np.ascontiguousarray(gaps, dtype=np.int64), ctypes.c_double(time_us)
        asked = words((gaps, choice, batch))
        function("planner_search_change")(
            self._problem, self._steps, words(plan), asked, ctypes.byref(time)
        )
        return time.value

    def anneal(
        self,
        plan: GapChoices,
        best: GapChoices,
        gaps: Gaps,
        heat: Heat,
        iterations: int,
        rng: np.random.Generator,
    ) -> int:
        """Random changes to the plan, kept by the rule of Metropolis on time + price x bytes over.

        Args:
            best: the best plan that fits; changed.
            gaps: where to change decisions; neighbours in it should be near in time.

        Returns:
            How often `best` got better.
        """
        self._spend(2 * iterations)
        gaps = np.ascontiguousarray(gaps, dtype=np.int64)
        asked = words((gaps, iterations, *random_words(rng)))
        return function("planner_search_anneal")(
            self._problem, self._steps, words(plan), words(best), asked, ctypes.byref(heat)
        )
