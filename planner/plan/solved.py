"""What a search came to: the best plan in one base order, and its bound."""

from __future__ import annotations

from dataclasses import dataclass

from planner.plan.candidate import Candidate
from planner.plan.statistics import EngineStatistics

TIGHT = 5e-4
"""A plan within this of its bound is as good as proved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """The best plan in one base order.

    Attributes:
        candidate: decisions, actions and replay; None where nothing fits.
        least: the plan with the least peak seen, fitting or not.
        bound_us: no plan of `bound_class` takes less time.
        engine: what found the plan.
        solve_s: seconds that the search took.
        engines: what each engine did in this search, in order of their first turns.
        is_interrupted: Ctrl-C ended the search.
        is_impossible: proved that no plan of the class fits.
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
    def gap(self) -> float | None:
        """How far from the bound the plan may be: 0.01 is 1%."""
        if self.candidate is None or self.bound_us <= 0:
            return None
        return max(0.0, self.candidate.time_us / self.bound_us - 1)

    @property
    def is_tight(self) -> bool:
        """Whether nothing is left to gain."""
        return self.gap is not None and self.gap <= TIGHT
