"""A walk that comes down to the capacity on a thread of its own, beside engines that leave it one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from planner.plan.problem import Action
from planner.search.stop import First, Stop, Until

Walk = Callable[[Stop, Callable[[], None]], list[Action]]
"""Makes a plan until then, and tells when one fits for the first time."""


class FirstToFit:
    """Which of several walks was the first to come to a schedule that fits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.winner: int | None = None

    def tell(self, number: int) -> None:
        """Walk `number` has come to one."""
        with self._lock:
            if self.winner is None:
                self.winner = number


@dataclass(frozen=True, slots=True)
class Beaten:
    """Ends a walk once another one was the first to fit."""

    first: FirstToFit
    number: int

    @property
    def left_s(self) -> float:
        """Nothing once it was."""
        return float("inf") if self.first.winner in (None, self.number) else 0.0


class WalkBeside:
    """One walk, begun before the others; it is counted among them as number 1.

    Attributes:
        first: which of all walks was the first that fits.
        turn: as long as nothing fits, it goes on until then, and so do those that join it.
    """

    NUMBER = 1

    def __init__(self, walk: Walk, turn: Stop, stop: Stop) -> None:
        """
        Args:
            walk: makes the plan.
            stop: ends it sooner.
        """
        self.first, self.turn = FirstToFit(), turn
        self._told = threading.Event()
        until = First((turn, stop, Until(self._told)))
        pool = ThreadPoolExecutor(max_workers=1)
        self._walk = pool.submit(walk, until, partial(self.first.tell, self.NUMBER))
        pool.shutdown(wait=False)

    @property
    def fits(self) -> bool:
        """Whether it has come to a schedule that fits."""
        return self.first.winner == self.NUMBER

    def stop(self) -> None:
        """It ends within a slice of its moves."""
        self._told.set()

    def result(self) -> list[Action]:
        """What it has come to, once it is over."""
        return self._walk.result()
