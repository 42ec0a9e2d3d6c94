"""Statistics of one engine in a search."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    """The work and the results of one engine in a search.

    Attributes:
        name: of the engine.
        calls: turns that it had.
        seconds: time that it took, without the engines that it calls.
        offers: plans that it offered, fitting or not.
        improvements: offered plans that were better than all before.
        bound_raised_us: microseconds by which it raised the bound on the added time.
    """

    name: str
    calls: int
    seconds: float
    offers: int
    improvements: int
    bound_raised_us: float
