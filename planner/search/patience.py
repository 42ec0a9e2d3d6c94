"""Whether what is left to gain is worth the wait."""

from __future__ import annotations

from dataclasses import dataclass

from planner import clock
from planner.search.state import SearchState


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """The longer somebody has waited, the more must be left to gain for them to wait on.

    Attributes:
        since: when the wait began (`clock.now`).
        per_s: a second of it is worth so much of the time of a step: with 0.0002, a gain of at most
            0.2% is not pursued after ten seconds.
    """

    since: float
    per_s: float

    def is_worth(self, gain_us: float, step_us: float) -> bool:
        """Whether to wait on for a gain that may be had.

        Args:
            gain_us: the most that may be gained.
            step_us: time of a step.
        """
        return gain_us > self.per_s * (clock.now() - self.since) * step_us


def begin(per_s: float) -> Patience:
    """The patience of a wait that begins now."""
    return Patience(since=clock.now(), per_s=per_s)


_CHANCE, _FAR = 0.1, 0.004
"""Of what is left to gain, so much is expected of a search that has found nothing for a while: most that
is found is found within seconds of the last, and the bound may be out of reach. It is the more often, the
less of a step is left, below this much of it."""


@dataclass(frozen=True, slots=True)
class NotWorthTheWait:
    """Ends a search whose plan is so near its bound that the rest is not worth the wait, and one that has
    found nothing for longer than what may be expected of it is worth.

    A search may always find nothing for as long as it took to come to its best plan: on large problems
    every turn is long.
    """

    state: SearchState
    patience: Patience

    @property
    def left_s(self) -> float:
        """Seconds until neither is worth it; without end before there is a plan."""
        best, base_us = self.state.best, self.state.problem.base_duration_us
        if best is None or base_us <= 0:
            return float("inf")
        gap = (best.time_us - self.state.bound_us) / base_us
        worth_s = gap / self.patience.per_s
        chance = _CHANCE * min(1.0, gap / _FAR)
        idle_s = max(chance * worth_s, self.state.improved - self.state.began)
        until = min(self.patience.since + worth_s, self.state.improved + idle_s)
        return until - clock.now()
