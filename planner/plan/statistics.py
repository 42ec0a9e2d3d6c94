"""Statistics of one engine in a search; `planfile.md` describes the fields."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    """The work and the results of one engine in a search."""

    name: str
    calls: int
    seconds: float
    offers: int
    improvements: int
    bound_raised_us: float
