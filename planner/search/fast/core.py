"""The compiled code of `planner/native/search`. It proposes plans; `planner.simulate` confirms them.

Calls let other threads run, and take well under a second if they ask for few moves.
"""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from planner import clock
from planner.native.calls import function, random_words, words
from planner.search.fast.arrays import Arrays, GapChoices, Steps, steps_for

OVERFLOW = -1
"""The schedule outgrew the buffers: the plan is useless."""

Gaps = npt.NDArray[np.int64]


class FastReplay(ctypes.Structure):
    """The replay of a schedule.

    Attributes:
        copies: number of tensor copies made by operations and copies in.
    """

    _fields_ = (
        ("peak_bytes", ctypes.c_int64),
        ("time_us", ctypes.c_double),
        ("copies", ctypes.c_int64),
    )


class Heat(ctypes.Structure):
    """Annealing parameters; the cost of the plan and the time of the best one are updated.

    Attributes:
        price_us_per_byte: price of a byte over the capacity.
    """

    _fields_ = (
        ("cost_us", ctypes.c_double),
        ("best_us", ctypes.c_double),
        ("temperature_us", ctypes.c_double),
        ("price_us_per_byte", ctypes.c_double),
    )


class Core:
    """Compiled functions of one problem, and their buffers: for one thread at a time.

    Attributes:
        arrays: the problem.
        steps: the schedule written last, and its replay.
    """

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self._problem = words(arrays)
        self.use(steps_for(arrays))

    def use(self, steps: Steps) -> None:
        """Use these buffers from now on."""
        self.steps = steps
        self._steps = words(steps)

    def _spend(self, schedules: int = 1) -> None:
        clock.spend(clock.COMPILED_S * schedules * len(self.arrays.duration))

    def schedule(self, plan: GapChoices) -> int:
        """Write the actions of `plan` to the steps; return their number, or OVERFLOW.

        Any plan gives a valid schedule: a missing tensor that is needed, and whose producer may not
        run again, is kept instead (this changes the plan's arrays).
        """
        self._spend()
        return function("planner_search_schedule")(self._problem, self._steps, words(plan))

    def replay(self, count: int, *, overlap: bool = False) -> FastReplay:
        """Replay the first `count` actions; the steps then hold the live bytes.

        Args:
            overlap: copies run beside the operations; the steps also hold starts and ends.
        """
        return self._replayed("planner_search_replay", count, overlap)

    def place_and_time(self, count: int, rounds: int) -> FastReplay:
        """Move the copies among the first `count` actions (just in time) to places where they hide.

        Args:
            rounds: rounds of placing them, each by the starts and ends of the previous one. With 1,
                the result is taken as it is; with more, the best one, including just in time.

        Returns:
            The replay of the schedule now in the steps, copies beside the operations.
        """
        return self._replayed("planner_search_place", count, rounds)

    def _replayed(self, name: str, count: int, how: int) -> FastReplay:
        self._spend()
        found = FastReplay()
        numbers = ctypes.c_int64(count), ctypes.c_int64(how)
        function(name)(self._problem, self._steps, *numbers, ctypes.byref(found))
        return found

    def change(
        self, plan: GapChoices, gaps: Gaps, choice: int, batch: int, time_us: float
    ) -> float:
        """Set `choice` at `gaps` of the plan, `batch` at a time; keep changes that fit and are faster.

        A change to keeping a tensor only needs to be no slower. Returns the plan's time.

        Args:
            time_us: the plan's; NaN if unknown.
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
        """Change the plan randomly, by the rule of Metropolis on time + price x bytes over.

        Args:
            best: the best plan that fits; changed.
            gaps: gaps to change; neighbours in the array should be close in time.

        Returns:
            The number of improvements of `best`.
        """
        self._spend(2 * iterations)
        gaps = np.ascontiguousarray(gaps, dtype=np.int64)
        asked = words((gaps, iterations, *random_words(rng)))
        return function("planner_search_anneal")(
            self._problem, self._steps, words(plan), words(best), asked, ctypes.byref(heat)
        )
