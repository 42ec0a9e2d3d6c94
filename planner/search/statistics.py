"""Statistics of each engine, by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from planner import clock
from planner.plan.statistics import EngineStatistics


@dataclass(slots=True)
class _Line:
    calls: int = 0
    seconds: float = 0.0
    offers: int = 0
    improvements: int = 0
    bound_raised_us: float = 0.0


@dataclass(slots=True)
class Ledger:
    """Counts of calls, seconds, plans and bounds by engine during a search.

    An engine that calls another is not charged for the other's time.

    Attributes:
        engine: the engine whose turn it is; empty between turns.
    """

    engine: str = ""
    _lines: dict[str, _Line] = field(default_factory=dict)
    _since: float = field(default_factory=clock.now)

    @contextmanager
    def turn_of(self, engine: str) -> Iterator[None]:
        """Charge the work within the block to `engine`."""
        before = self._switch(engine)
        self._line().calls += 1
        try:
            yield
        finally:
            self._switch(before)

    def count_offer(self, *, improved: bool) -> None:
        """Count a plan that was offered."""
        line = self._line()
        line.offers += 1
        line.improvements += improved

    def count_bound(self, raised_us: float) -> None:
        """Count a raise of the bound."""
        self._line().bound_raised_us += raised_us

    def statistics(self) -> tuple[EngineStatistics, ...]:
        """Return the statistics of each engine that had a turn, in order of their first turns."""
        return tuple(
            EngineStatistics(
                name=name,
                calls=line.calls,
                seconds=round(line.seconds, 3),
                offers=line.offers,
                improvements=line.improvements,
                bound_raised_us=line.bound_raised_us,
            )
            for name, line in self._lines.items()
            if name
        )

    def _line(self) -> _Line:
        return self._lines.setdefault(self.engine, _Line())

    def _switch(self, engine: str) -> str:
        now = clock.now()
        self._line().seconds += now - self._since
        before, self.engine, self._since = self.engine, engine, now
        return before
