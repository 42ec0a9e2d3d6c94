"""Choice of the next capacity and base order to solve: the one that promises the least time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from planner.pipeline.solve.orders import BaseOrder
from planner.pipeline.solve.policy import POLICY


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A base order, and a capacity not yet solved in it.

    Attributes:
        step: index into `POLICY.capacities`.
        added_us: the time that a plan is expected to add to the operations; None if unknown.
        is_judged: the arena's fragmentation in this order is known.
    """

    base: BaseOrder
    step: int
    added_us: float | None
    is_judged: bool = False

    def expected_us(self, *, left: float) -> float:
        """Return the expected added time, including the order's pins.

        Args:
            left: share of the time added by the race's plan that remains after a search.
        """
        if self.added_us is None:
            return 0.0
        return self.base.pins_us + (self.added_us if self.step else left * self.added_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutcome:
    """The result of a trial.

    Attributes:
        added_us: the time that the plan found adds to the operations.
        peak_bytes: of that plan.
        need: the arena that it needs, as a multiple of the budget's.
        over_bytes: bytes by which the rewritten model exceeds the budget.
    """

    added_us: float
    peak_bytes: int
    need: float = 1.0
    over_bytes: int = 0

    @property
    def room_bytes(self) -> int:
        """The capacity that is left for plans if pins take as much as they do in this one."""
        return max(1, self.peak_bytes - int(POLICY.over * self.over_bytes))


@dataclass(slots=True, kw_only=True)
class Trials:
    """One trial for each base order that is still worth one.

    Attributes:
        room: bytes of the budget that a plan may take.
        put_off: trials at the whole budget whose order was judged to fragment the arena.
    """

    room: int
    open: list[Trial] = field(default_factory=list)
    put_off: list[Trial] = field(default_factory=list)

    def add(self, base: BaseOrder, added_us: float | None) -> None:
        """Add an order, starting at the whole budget.

        Args:
            added_us: the time added by a plan of the race; None if it found none.
        """
        self.open.append(Trial(base=base, step=0, added_us=added_us))

    def capacity_bytes(self, trial: Trial) -> int:
        """Return the capacity to solve for."""
        return int(self.room * POLICY.capacities[trial.step])

    def take(self, *, left: float, lowest: bool = False) -> Trial | None:
        """Remove and return the trial with the least expected added time; unknown ones come last.

        Args:
            lowest: choose the lowest capacity instead, for which the arena has room soonest.
        """
        if not self.open:
            return None
        ranked = self.ranked(left=left)
        chosen = max(ranked, key=lambda trial: trial.step) if lowest else ranked[0]
        self.open.remove(chosen)
        return chosen

    def ranked(self, *, left: float) -> list[Trial]:
        """Return the trials in the order in which they would be taken."""
        return sorted(
            self.open,
            key=lambda trial: (trial.added_us is None, trial.expected_us(left=left)),
        )

    def judge(self, trial: Trial, need: float, added_us: float | None) -> None:
        """Return a trial to the list, at a lower capacity if the arena fragments in its order anyway.

        The trial at the higher capacity is then put off.

        Args:
            need: estimated arena that it needs in this order, as a multiple of the budget's.
            added_us: the time that a rough plan adds; None without one.
        """
        if need <= POLICY.mendable:
            self.open.append(replace(trial, added_us=added_us, is_judged=True))
        else:
            most = int(self.room / need * POLICY.mended)
            self.put_off.append(replace(trial, added_us=added_us, is_judged=True))
            self._lower(trial, added_us, most, step=trial.step + 1)

    def restore(self, base: BaseOrder | None = None) -> None:
        """Return trials that were put off to the list.

        Args:
            base: only in this order; None for all orders.
        """
        chosen = [trial for trial in self.put_off if base in (None, trial.base)]
        self.put_off = [trial for trial in self.put_off if trial not in chosen]
        self.open += chosen

    def retry(self, trial: Trial, outcome: TrialOutcome, *, is_late: bool) -> None:
        """Add the next capacity to try in the order of a trial, if there is one.

        It skips capacities that the plan found also meets, because it would be found again there,
        and capacities that would leave the arena far too small for a similar plan. Pins take about
        as many bytes in any order: if they exceed the budget, the room shrinks by the excess, below
        this plan.

        Args:
            is_late: time is out: take larger steps.
        """
        tried = self.capacity_bytes(trial)
        if outcome.over_bytes:
            self.room = outcome.room_bytes
            self._lower(trial, outcome.added_us, self.room, step=trial.step)
            return
        most = tried * min(1.0 - (outcome.need - 1.0) / 2, POLICY.mended / outcome.need)
        most = self.room if is_late else min(int(most), outcome.peak_bytes - 1)
        self._lower(trial, outcome.added_us, most, step=trial.step + 1 + is_late)

    def _lower(self, trial: Trial, added_us: float | None, most: int, *, step: int) -> None:
        """Add the trial at the first capacity from `step` on that is at most `most`, if there is one.

        The added time is assumed to be proportional to the bytes that a plan saves.
        """
        capacities = [int(self.room * share) for share in POLICY.capacities]
        found = next(
            (i for i in range(step, len(POLICY.capacities)) if capacities[i] <= most), None
        )
        if found is None or capacities[found] < trial.base.least_bound_bytes:
            return
        saved = trial.base.peak_bytes - self.capacity_bytes(trial)
        if added_us is not None and saved > 0:
            added_us *= (trial.base.peak_bytes - capacities[found]) / saved
        self.open.append(Trial(base=trial.base, step=found, added_us=added_us, is_judged=True))
