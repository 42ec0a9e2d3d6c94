"""What a lever is: something that may be done to a model besides order, recompute and swap.

A lever ranks what it could be used on and changes a model (`apply`); `planner.pipeline.levers.choose`
decides how much of it a plan takes, and `planner.pipeline.levers.table` lists all levers. To add one,
write a `Lever`, put it into that table, and give its plan file a field.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from planner.errors import InfeasibleBudgetError
from planner.graph.model import OpId, TrainingGraph
from planner.pipeline.levers.policy import Shares
from planner.pipeline.prepare.prepared import Prepared, Progress, silent
from planner.pipeline.prepare.settings import Settings
from planner.pipeline.solve.orders import BaseOrder
from planner.pipeline.solve.planned import Planned
from planner.pipeline.solve.policy import POLICY as SOLVING
from planner.pipeline.solve.quick import is_slow
from planner.plan.planfile import Plan
from planner.processes.workers import Beside
from planner.request import Levers
from planner.runtime.optimizers.fusion_pins import TakenError


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What a search has besides its time.

    Attributes:
        keep_on_interrupt: Ctrl-C ends the search, and the best plan so far is kept.
        helper: a process in which searches can be made beside this one; None for none.
    """

    progress: Progress = silent
    keep_on_interrupt: bool = False
    helper: Beside | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model, without the lever, for which a lever is to be chosen.

    Attributes:
        plain: its plan without the lever; None where there is none.
        is_tried: such a plan was looked for.
        began: when the search for this lever began (`clock.now`).
    """

    prepared: Prepared
    settings: Settings
    means: Means = Means()
    plain: Planned | None = None
    is_tried: bool = False
    began: float = 0.0

    @property
    def most_added_us(self) -> float:
        """The most time that a plan may add which is worth more than the plain one; infinite where there
        is no plain plan."""
        if self.plain is None:
            return float("inf")
        return self.plain.added_us - SOLVING.worth * self.prepared.baseline.time_us

    @property
    def until(self) -> float:
        """When the time limit is over."""
        return self.began + self.settings.time_limit_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """A model with so much of a lever, to be planned in earnest.

    Attributes:
        orders: its base orders, where they are known.
        may_add: more of the lever may be used where no plan of it fits.
        stays, no_swaps: tensors that have to stay on the device, and that may not be swapped, since an
            earlier plan showed so.
    """

    prepared: Prepared
    orders: tuple[BaseOrder, ...] = ()
    may_add: bool = True
    stays: frozenset[str] = frozenset()
    no_swaps: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """Names of what a lever may be used on.

    Attributes:
        free: used in any case: nothing is lost by it.
        ranked: the others, what promises most first.
    """

    free: tuple[str, ...] = ()
    ranked: tuple[str, ...]

    def first(self, count: int) -> frozenset[str]:
        """What is free, and the first so many of the others."""
        return frozenset((*self.free, *self.ranked[:count]))


Trouble = Planned | InfeasibleBudgetError | TakenError
"""What came of a rung: a plan, with which something may still be wrong, or why there is none."""


class Lever:
    """One lever. A method that does not apply to it stays as it is here."""

    option: str
    """That asks for it."""
    shares: Shares
    quickens: bool = False
    """Whether a model that fits as it is may take less time with it."""
    rewrites: bool = True
    """Whether it changes operations, which it cannot do in bodies, nor where sizes depend on data."""
    said: str = ""
    """What is reported while the plan without it is looked for."""

    def is_asked(self, levers: Levers) -> bool:
        """Whether a request asks for it."""
        raise NotImplementedError

    def supports(self, prepared: Prepared) -> str | None:
        """Why nothing of a model can be changed so, which is noted in its plan; None where it can.

        Raises:
            UsageError: the request demands it all the same.
        """
        return None

    def goes_without(self, case: Case) -> bool:
        """Whether a plan without it is looked for first, which another has to beat."""
        return True

    def is_enough(self, case: Case, plain: Planned) -> bool:
        """Whether the plan without it is taken at once: another has little to gain."""
        if self.quickens:
            return plain.solved.is_interrupted
        return not is_slow(case.prepared, plain)

    def rungs(self, case: Case) -> Iterator[Rung]:
        """Models to plan in earnest, what promises most first; none where the plain plan is as good."""
        raise NotImplementedError

    def ladder(self, case: Case) -> Ladder:
        """What it may be used on, ranked."""
        raise NotImplementedError

    def apply(self, prepared: Prepared, names: frozenset[str]) -> Prepared:
        """The model with the lever used on what is named."""
        raise NotImplementedError

    def in_order(self, graph: TrainingGraph, names: Iterable[str]) -> tuple[OpId, ...]:
        """All operations of a changed graph, given the names of the others in order."""
        raise NotImplementedError

    def mended(self, case: Case, rung: Rung, found: Trouble) -> Rung | None:
        """What to plan in place of a rung, given what came of it; None where that stays."""
        return None

    def prefers(self, case: Case, made: Planned, plain: Planned) -> bool:
        """Whether a plan with it is worth more than the plain one."""
        return made.added_us <= case.most_added_us and made.has_room >= plain.has_room

    def refusal(self, case: Case, errors: Sequence[InfeasibleBudgetError]) -> InfeasibleBudgetError:
        """The error where no plan fits, of that of the plain plan and those of the rungs, in order."""
        return min(errors, key=lambda error: error.least_peak_bytes)

    def record(self, prepared: Prepared) -> dict[str, Any]:
        """Fields of the plan file that say how it was used."""
        return {}

    def replay(self, prepared: Prepared, plan: Plan) -> Prepared:
        """The model changed as a plan file says.

        Raises:
            ModelError: the model cannot be changed so.
        """
        return prepared

    def note(self, prepared: Prepared) -> tuple[str, ...]:
        """Assumptions of a plan, besides those of the changed graph."""
        return ()

    def bound_class(self, prepared: Prepared) -> str:
        """What the plans have in common for which a bound holds; empty where the model is as it was."""
        return ""
