"""What one engine did in a search."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    """What one engine did in a search.

    Attributes:
        name: of the engine.
        calls: turns that it had.
        seconds: that it took, those of the engines that it calls left out.
        offers: plans that it offered, fitting or not.
        improvements: of these, those that were better than any before.
        bound_raised_us: by how much it raised the bound on the added time.
    """

    name: str
    calls: int
    seconds: float
    offers: int
    improvements: int
    bound_raised_us: float
