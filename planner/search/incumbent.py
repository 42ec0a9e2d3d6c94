"""The best plan so far, what found it, and the largest bound."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from planner.bound.lp import BOUND_CLASS
from planner.plan.candidate import Candidate
from planner.plan.solved import TIGHT
from planner.search.improve import Improver
from planner.units import format_part

_TIGHT_OF_ADDED = 0.01
"""... what it adds to the base order's time is within this of what must be added."""

_NEARLY = 1e-3
"""Gap within which the search ends soon."""


@dataclass(slots=True)
class Incumbent:
    """The best plan so far, what found it, and the largest bound.

    Attributes:
        least: the plan with the least peak, whether it fits or not.
        bound_extra_us: no plan of `bound_class` adds less time to the base order.
        is_impossible: proved that nothing fits.
        nearly_s: how much longer the search goes on once the plan is near its bound.
        ends: when the search ends at the latest, once the plan is near its bound (time.monotonic).
    """

    improver: Improver
    least: Candidate
    best: Candidate | None = None
    engine: str = ""
    bound_extra_us: float = 0.0
    bound_class: str = BOUND_CLASS
    is_impossible: bool = False
    nearly_s: float = 10.0
    ends: float = float("inf")
    on_progress: Callable[[str], None] | None = None

    def offer(self, candidate: Candidate, engine: str) -> bool:
        """Take `candidate` if it is better."""
        if candidate.peak_bytes < self.least.peak_bytes:
            self.least = candidate
        if not self.improver.fits(candidate):
            return False
        if self.best is not None and (self.best.time_us, self.best.peak_bytes) <= (
            candidate.time_us,
            candidate.peak_bytes,
        ):
            return False
        self.best, self.engine = candidate, engine
        if self.on_progress:
            base_us = self.improver.problem.base_duration_us
            self.on_progress(
                f"+{format_part(candidate.time_us - base_us, base_us)} time ({engine}), "
                f"at least +{format_part(self.bound_extra_us, base_us)}"
            )
        self._end_soon()
        return True

    def prove(self, extra_us: float, bound_class: str = BOUND_CLASS) -> None:
        """Take a bound on the added time."""
        if extra_us > self.bound_extra_us:
            self.bound_extra_us, self.bound_class = extra_us, bound_class
            self._end_soon()

    def until(self, moment: float) -> None:
        """Let the next engine run until `moment`, or the end of the search."""
        self.improver.deadline = min(moment, self.ends)

    def _end_soon(self) -> None:
        if self.is_within(_NEARLY):
            self.ends = min(self.ends, time.monotonic() + self.nearly_s)
            self.until(self.improver.deadline)

    @property
    def bound_us(self) -> float:
        """No plan of the class takes less time."""
        return self.improver.problem.base_duration_us + self.bound_extra_us

    @property
    def is_tight(self) -> bool:
        """Whether nothing is left to gain."""
        if self.best is None:
            return False
        added_us = self.best.time_us - self.improver.problem.base_duration_us
        saving_us = added_us - self.bound_extra_us
        return self.is_within(TIGHT) and saving_us <= _TIGHT_OF_ADDED * added_us + 1e-9

    def is_within(self, gap: float) -> bool:
        """Whether the best plan is that near its bound."""
        if self.best is None:
            return gap == float("inf")
        return self.best.time_us <= self.bound_us * (1 + gap)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to find."""
        return self.is_tight or self.is_impossible

    @property
    def is_done(self) -> bool:
        """Whether to stop searching."""
        return self.is_settled or self.improver.out_of_time()
