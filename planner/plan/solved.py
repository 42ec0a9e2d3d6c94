"""The result of a search: the best plan in one base order, and its bound."""

from __future__ import annotations

from dataclasses import dataclass

from planner.plan.candidate import Candidate
from planner.plan.statistics import EngineStatistics

TIGHT = 5e-4
"""Gap between plan and bound up to which the plan counts as proved optimal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """The best plan in one base order.

    Attributes:
        candidate: decisions, actions and replay; None if no plan fits.
        least: the plan with the least peak found, fitting or not.
        bound_us: no plan of `bound_class` takes less time.
        engine: the engine that found the plan.
        solve_s: seconds that the search took.
        engines: statistics of each engine in this search, in order of their first turns.
        is_interrupted: Ctrl-C ended the search.
        is_impossible: it is proved that no plan of the class fits.
    """

    candidate: Candidate | None
    least: Candidate
    bound_us: float
    bound_class: str
    engine: str
    solve_s: float
    engines: tuple[EngineStatistics, ...] = ()
    is_interrupted: bool = False
    is_impossible: bool = False

    @property
    def found(self) -> Candidate:
        """The best plan; the search must have found one that fits."""
        assert self.candidate is not None
        return self.candidate

    @property
    def gap(self) -> float | None:
        """The most that the plan's time may exceed the optimum, as a ratio (0.01 is 1%)."""
        if self.candidate is None or self.bound_us <= 0:
            return None
        return max(0.0, self.candidate.time_us / self.bound_us - 1)

    @property
    def is_tight(self) -> bool:
        """Whether the gap is small enough to stop searching."""
        return self.gap is not None and self.gap <= TIGHT
