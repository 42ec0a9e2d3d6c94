"""Which capacity to solve for next, and in which base order: the one that promises the least time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from planner.pipeline.solve.orders import BaseOrder
from planner.pipeline.solve.policy import POLICY


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A base order, and a capacity that was not solved for in it.

    Attributes:
        step: of `POLICY.capacities`.
        added_us: what a plan is expected to add to the time of the operations; None where nothing
            is known.
        is_judged: it is known how the arena breaks up in this order.
    """

    base: BaseOrder
    step: int
    added_us: float | None
    is_judged: bool = False

    def expected_us(self, *, left: float) -> float:
        """What is expected of it, what pins its order included.

        Args:
            left: share of what a plan of the race added that a search leaves of it.
        """
        if self.added_us is None:
            return 0.0
        return self.base.pins_us + (self.added_us if self.step else left * self.added_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutcome:
    """What came of a trial.

    Attributes:
        added_us: by the plan that was found, to the time of the operations.
        peak_bytes: of that plan.
        need: how many times the arena it needs.
        over_bytes: by which the rewritten model is above the budget.
    """

    added_us: float
    peak_bytes: int
    need: float = 1.0
    over_bytes: int = 0


@dataclass(slots=True, kw_only=True)
class Trials:
    """One trial for each base order that is still worth one.

    Attributes:
        room: what a plan may take of the budget, in bytes.
        put_off: those of the whole budget that were judged to break the arena up.
    """

    room: int
    open: list[Trial] = field(default_factory=list)
    put_off: list[Trial] = field(default_factory=list)

    def add(self, base: BaseOrder, added_us: float | None) -> None:
        """An order in which the whole budget comes first.

        Args:
            added_us: by a plan of the race; None where it found none.
        """
        self.open.append(Trial(base=base, step=0, added_us=added_us))

    def capacity_bytes(self, trial: Trial) -> int:
        """What is solved for."""
        return int(self.room * POLICY.capacities[trial.step])

    def take(self, *, left: float, lowest: bool = False) -> Trial | None:
        """The trial that is expected to add the least time, those last of which nothing is known.

        Args:
            lowest: of those with the lowest capacity, which the arena has room for soonest.
        """
        if not self.open:
            return None
        ranked = self.ranked(left=left)
        chosen = max(ranked, key=lambda trial: trial.step) if lowest else ranked[0]
        self.open.remove(chosen)
        return chosen

    def ranked(self, *, left: float) -> list[Trial]:
        """The trials in the order in which they would be taken."""
        return sorted(
            self.open,
            key=lambda trial: (trial.added_us is None, trial.expected_us(left=left)),
        )

    def judge(self, trial: Trial, need: float, added_us: float | None) -> None:
        """Put a trial back, at a lower capacity where the arena breaks up in its order anyway; as it was,
        it is put off.

        Args:
            need: how many times the arena it needs in this order, as far as can be told.
            added_us: what a rough plan adds; None where there is none.
        """
        if need <= POLICY.mendable:
            self.open.append(replace(trial, added_us=added_us, is_judged=True))
        else:
            most = int(self.room / need * POLICY.mended)
            self.put_off.append(replace(trial, added_us=added_us, is_judged=True))
            self._lower(trial, added_us, most, step=trial.step + 1)

    def restore(
        self, base: BaseOrder | None = None, *, most_us: float | None = None, left: float = 1.0
    ) -> None:
        """Put back what was put off.

        Args:
            base: in this order alone; None for all of them.
            most_us: what is expected to add less than so much alone; None for all of it.
            left: as for `Trial.expected_us`.
        """
        chosen = [
            trial
            for trial in self.put_off
            if base in (None, trial.base)
            and (
                most_us is None
                or (trial.added_us is not None and trial.expected_us(left=left) < most_us)
            )
        ]
        self.put_off = [trial for trial in self.put_off if trial not in chosen]
        self.open += chosen

    def retry(self, trial: Trial, outcome: TrialOutcome, *, is_late: bool) -> None:
        """Add the next capacity to try in the order of a trial, if there is one.

        A plan within a lower capacity as well would be found again there, so such a capacity is left
        out, and so is what would leave the arena far too small for a plan like this one. What pins the
        order takes about as many bytes in any order: where it is too much, there is less room in all, by
        what this plan is over, and below this plan.

        Args:
            is_late: time is out: larger steps.
        """
        tried = self.capacity_bytes(trial)
        if outcome.over_bytes:
            self.room = max(
                1, min(tried, outcome.peak_bytes) - int(POLICY.over * outcome.over_bytes)
            )
            self._lower(trial, outcome.added_us, self.room, step=trial.step)
            return
        most = tried * min(1.0 - (outcome.need - 1.0) / 2, POLICY.mended / outcome.need)
        most = self.room if is_late else min(int(most), outcome.peak_bytes - 1)
        self._lower(trial, outcome.added_us, most, step=trial.step + 1 + is_late)

    def _lower(self, trial: Trial, added_us: float | None, most: int, *, step: int) -> None:
        """Add the trial at the first capacity from `step` on that is no more than `most`, if there is
        one. What a plan adds is taken to grow as the bytes do that it has to save."""
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
