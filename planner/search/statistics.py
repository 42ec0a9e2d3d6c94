"""Statistics of each engine, by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from planner import clock
from planner.plan.statistics import EngineStatistics


@dataclass(slots=True)
class Ledger:
    """Counts of calls, seconds, plans and bounds by engine during a search.

    Attributes:
        engine: the engine whose turn it is; empty between turns.
    """

    engine: str = ""
    _lines: dict[str, EngineStatistics] = field(default_factory=dict)

    @contextmanager
    def turn_of(self, engine: str) -> Iterator[None]:
        """Charge the work within the block to `engine`."""
        began, self.engine = clock.now(), engine
        self._count(calls=1)
        try:
            yield
        finally:
            self._count(seconds=clock.now() - began)
            self.engine = ""

    def count_offer(self, *, improved: bool) -> None:
        """Count a plan that was offered."""
        self._count(offers=1, improvements=int(improved))

    def count_bound(self, raised_us: float) -> None:
        """Count a raise of the bound."""
        self._count(bound_raised_us=raised_us)

    def statistics(self) -> tuple[EngineStatistics, ...]:
        """Return the statistics of each engine that had a turn, in order of their first turns."""
        lines = (line for name, line in self._lines.items() if name)
        return tuple(replace(line, seconds=round(line.seconds, 3)) for line in lines)

    def _count(self, **more: float) -> None:
        """Add to numbers of the engine whose turn it is."""
        none = EngineStatistics(
            name=self.engine, calls=0, seconds=0.0, offers=0, improvements=0, bound_raised_us=0.0
        )
        line = self._lines.get(self.engine, none)
        added = {name: getattr(line, name) + number for name, number in more.items()}
        self._lines[self.engine] = replace(line, **added)
