"""Which capacity to solve for next, and in which base order: the one that promises the least time."""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.pipeline.orders import BaseOrder

SHARES = (1.0, 0.995, 0.98, 0.965, 0.95, 0.935, 0.92, 0.9, 0.87, 0.83, 0.78)
"""Capacities to try, as shares of the budget, until ONNX Runtime's arena fits the budget too."""


_MENDED = 1.04
"""A plan that needs no more than so many times the arena may be mended, or one much like it fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A base order, and a capacity that was not solved for in it.

    Attributes:
        step: of `SHARES`.
        added_us: what a plan is expected to add to the time of the operations; None where nothing
            is known.
    """

    base: BaseOrder
    step: int
    added_us: float | None

    def expected_us(self, *, left: float) -> float:
        """What is expected of it.

        Args:
            left: share of what a plan of the race added that a search leaves of it.
        """
        if self.added_us is None:
            return 0.0
        return self.added_us if self.step else left * self.added_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a trial.

    Attributes:
        added_us: by the plan that was found, to the time of the operations.
        peak_bytes: of that plan.
        need: how many times the arena it needs.
    """

    added_us: float
    peak_bytes: int
    need: float


@dataclass(slots=True, kw_only=True)
class Trials:
    """One trial for each base order that is still worth one.

    Attributes:
        room: the budget, in bytes.
    """

    room: int
    open: list[Trial] = field(default_factory=list)

    def add(self, base: BaseOrder, added_us: float | None) -> None:
        """An order in which the whole budget comes first.

        Args:
            added_us: by a plan of the race; None where it found none.
        """
        self.open.append(Trial(base=base, step=0, added_us=added_us))

    def capacity_bytes(self, trial: Trial) -> int:
        """What is solved for."""
        return int(self.room * SHARES[trial.step])

    def take(self, *, left: float) -> Trial | None:
        """The trial that is expected to add the least time, those last of which nothing is known."""
        if not self.open:
            return None
        cheapest = min(
            self.open,
            key=lambda trial: (trial.added_us is None, trial.expected_us(left=left)),
        )
        self.open.remove(cheapest)
        return cheapest

    def retry(self, trial: Trial, outcome: Outcome, *, is_late: bool) -> None:
        """Add the next capacity to try in the order of a trial, if there is one.

        A plan within a lower capacity as well would be found again there, so such a capacity is left
        out, and so is what would leave the arena far too small for a plan like this one. What a plan
        adds is taken to grow as the bytes do that it has to save.

        Args:
            is_late: time is out: larger steps.
        """
        most = self.capacity_bytes(trial) * min(1.0, _MENDED / outcome.need)
        for step in range(trial.step + 1 + is_late, len(SHARES)):
            capacity = int(self.room * SHARES[step])
            if is_late or (capacity < outcome.peak_bytes and capacity <= most):
                break
        else:
            return
        if capacity < trial.base.least_bound_bytes:
            return
        added_us = outcome.added_us
        saved = trial.base.peak_bytes - self.capacity_bytes(trial)
        if saved > 0:
            added_us *= (trial.base.peak_bytes - capacity) / saved
        self.open.append(Trial(base=trial.base, step=step, added_us=added_us))
