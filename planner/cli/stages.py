"""The progress line of a terminal: time, the best plan found, and the current stage.

Stages describe themselves in words (`planner.cli.console.Progress`). Two facts are parsed from these
words: whether a search is on, which `--time-limit` bounds, and the time that a better plan adds to
the step, in the words of `planner.search.state`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

_SEARCHING = re.compile(
    r"searching for|compar(ing|ed) base orders|solv(ing|ed)\b|improving|planning with|splitting what"
    r"|looking (at|for)|again[:,]|no exact plan|\+"
)
_BETTER = re.compile(r"(?:solving: |improving: )?\+(?P<added>\S+(?: \S+)?) time")
_FULL = re.compile(r", [\d.]+ full\Z")
"""Matches a plan that does not fit yet, in the words of `planner.exact.local_search`."""
_ANEW = re.compile(r"again:|searching for the least budget:")
"""Matches stages of a new problem: plans found before do not count for it."""


@dataclass(slots=True)
class Stages:
    """The stages of one command.

    Attributes:
        limit_s: time limit of the search, in seconds; None where there is none.
        now: the clock, in seconds.
    """

    limit_s: float | None = None
    now: Callable[[], float] = time.monotonic
    stage: str = "starting"
    best: str = ""
    began: float = field(init=False)
    search_began: float | None = None

    def __post_init__(self) -> None:
        self.began = self.now()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the command began."""
        return self.now() - self.began

    def note(self, message: str) -> None:
        """Note the stage that the command has begun."""
        self.stage = message
        if _ANEW.match(message):
            self.best = ""
        if self._is_searching and self.search_began is None:
            self.search_began = self.now()
        found = _BETTER.match(message)
        if found and not _FULL.search(message):
            self.best = _lesser(self.best, found["added"])

    def line(self) -> str:
        """Return the progress line."""
        parts = [clock(self.elapsed_s)]
        if self._is_searching:
            if self.limit_s is not None and self.search_began is not None:
                left_s = max(0.0, self.limit_s - (self.now() - self.search_began))
                parts.append(f"at most {clock(left_s)} left of the search")
            # after the search, another plan may be chosen, for less fragmentation of the arena
            if self.best:
                parts.append(f"best plan so far +{self.best} time")
        return " | ".join([*parts, self.stage])

    @property
    def _is_searching(self) -> bool:
        return _SEARCHING.match(self.stage) is not None


def clock(seconds: float) -> str:
    """Format seconds as on a clock: `75.2` -> `1:15`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _lesser(known: str, found: str) -> str:
    """Return the lesser of two shares of the step's time; the later text where they are no shares."""
    if known.endswith("%") and found.endswith("%"):
        return min(known, found, key=lambda text: float(text[:-1]))
    return found
