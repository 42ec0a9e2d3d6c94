"""Stop criteria of a search, as objects: every engine asks them, none changes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from planner import clock
from planner.search.state import SearchState


class Stop(Protocol):
    """A stop criterion."""

    @property
    def left_s(self) -> float:
        """The seconds that may still be spent; at 0 or below the search is over."""
        ...


@dataclass(frozen=True, slots=True)
class At:
    """A stop criterion: a moment.

    Attributes:
        moment: in seconds of `clock.now`.
    """

    moment: float

    @property
    def left_s(self) -> float:
        """Seconds until the moment."""
        return self.moment - clock.now()


@dataclass(frozen=True, slots=True)
class First:
    """A stop criterion: the first of several."""

    of: tuple[Stop, ...]

    @property
    def left_s(self) -> float:
        """The least of the criteria's remaining times."""
        return min(stop.left_s for stop in self.of)


NEVER = At(float("inf"))


def after(seconds: float) -> At:
    """Return a criterion that ends after `seconds`."""
    return At(clock.now() + seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """The longer a wait has lasted, the larger the remaining gain must be to continue it.

    Attributes:
        since: start of the wait (`clock.now`).
        per_s: share of a step's time that each second must be worth: with 0.0002, a gain of at most
            0.2% is not pursued after ten seconds.
    """

    since: float
    per_s: float

    def is_worth(self, gain_us: float, step_us: float) -> bool:
        """Tell whether a possible gain is worth a longer wait.

        Args:
            gain_us: the most that may be gained.
            step_us: time of a step.
        """
        return gain_us > self.per_s * (clock.now() - self.since) * step_us


_CHANCE, _FAR = 0.1, 0.004
"""Share of the remaining gain expected of a search that has found nothing for a while.

Most plans are found within seconds of the last one, and the bound may be out of reach. It often is
when little is left to gain: below the second number, a share of the step, the expectation shrinks.
"""


@dataclass(frozen=True, slots=True)
class NotWorthTheWait:
    """A stop criterion of an engine's turn: the rest of it is not worth the wait.

    The turn ends at the earlier of two moments: when the gap to the bound is worth less than the wait
    since `patience.since`, or when the engine has found nothing for `idle_s`. That is as long as the
    expected gain is worth, and at least as long as the search took to find the best plan.

    Attributes:
        began: when the turn began (`clock.now`); an engine that found nothing is idle since then.
    """

    state: SearchState
    patience: Patience
    began: float

    @property
    def left_s(self) -> float:
        """The seconds until the earlier of the two; infinite without a plan."""
        best, base_us = self.state.best, self.state.problem.base_duration_us
        if best is None or base_us <= 0:
            return float("inf")
        gap = (best.time_us - self.state.bound_us) / base_us
        worth_s = gap / self.patience.per_s
        expected = _CHANCE * min(1.0, gap / _FAR)  # share of the gap
        idle_s = max(expected * worth_s, self.state.improved - self.state.began)
        idle_since = max(self.began, self.state.improved)
        until = min(self.patience.since + worth_s, idle_since + idle_s)
        return until - clock.now()
