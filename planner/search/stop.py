"""Stop criteria of a search, as objects: every engine asks them, none changes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from planner import clock


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
