"""The interface of a lever: a change to a model besides order, recompute and swap.

A lever ranks the tensors that it can be used on and changes a model (`apply`);
`planner.pipeline.levers.choose` decides how much of it a plan uses, and
`planner.pipeline.levers.table` lists all levers. To add one, write a `Lever`, put it into that
table, and give its plan file a field.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from planner.errors import InfeasibleBudgetError
from planner.graph.liveness import timeline
from planner.graph.model import OpId, TrainingGraph
from planner.pipeline.levers.policy import Shares
from planner.pipeline.prepare.prepared import Prepared
from planner.pipeline.prepare.settings import Settings
from planner.pipeline.solve.orders import BaseOrder
from planner.pipeline.solve.planned import Planned
from planner.pipeline.solve.planning import Means
from planner.pipeline.solve.policy import POLICY as SOLVING
from planner.pipeline.solve.quick import is_slow
from planner.plan.planfile import Plan
from planner.request import Levers
from planner.runtime.optimizers.fusion_pins import TakenError


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model, without the lever, for which to choose a lever.

    Attributes:
        plain: its plan without the lever; None if there is none.
        is_tried: a plan without the lever was searched for.
        began: start of the search for this lever (`clock.now`).
    """

    prepared: Prepared
    settings: Settings
    means: Means = field(default_factory=Means)
    plain: Planned | None = None
    is_tried: bool = False
    began: float = 0.0

    @property
    def most_added_us(self) -> float:
        """The most time that a plan may add to be worth more than the plain one; infinite without one."""
        if self.plain is None:
            return float("inf")
        return self.plain.added_us - SOLVING.worth * self.prepared.baseline.time_us

    @property
    def until(self) -> float:
        """The end of the time limit."""
        return self.began + self.settings.time_limit_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """A model with a lever used on some tensors, to be planned in earnest.

    Attributes:
        orders: its base orders, if known.
        may_add: more of the lever may be used if no plan of it fits.
        stays, no_swaps: tensors that must stay on the device, and that may not be swapped, as an
            earlier plan showed.
    """

    prepared: Prepared
    orders: tuple[BaseOrder, ...] = ()
    may_add: bool = True
    stays: frozenset[str] = frozenset()
    no_swaps: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """Names of the tensors that a lever can be used on.

    Attributes:
        free: used in any case, because they cost nothing.
        ranked: the others, most promising first.
    """

    free: tuple[str, ...] = ()
    ranked: tuple[str, ...]

    def first(self, count: int) -> frozenset[str]:
        """Return the free tensors and the first `count` of the others."""
        return frozenset((*self.free, *self.ranked[:count]))


Trouble = Planned | InfeasibleBudgetError | TakenError
"""The result of a rung: a plan, which may still need a change, or the reason why there is none."""


class Lever:
    """One lever. Methods that do not apply to a lever keep their default."""

    option: str
    """Command-line option that asks for it."""
    shares: Shares
    quickens: bool = False
    """Whether it can speed up a model that fits as it is."""
    rewrites: bool = True
    """Whether it changes operations; it then cannot handle bodies or sizes that depend on data."""
    said: str = ""
    """Progress message while searching for the plan without it."""

    def is_asked(self, levers: Levers) -> bool:
        """Tell whether a request asks for it."""
        raise NotImplementedError

    def supports(self, prepared: Prepared) -> str | None:
        """Return why it cannot change a model, for a note in the plan; None if it can.

        Raises:
            UsageError: the request demands it all the same.
        """
        return None

    def goes_without(self, case: Case) -> bool:
        """Tell whether to search first for a plan without it, which a plan with it must beat."""
        return True

    def is_enough(self, case: Case, plain: Planned) -> bool:
        """Tell whether to take the plan without it at once, because another has little to gain."""
        if self.quickens:
            return plain.solved.is_interrupted
        return not is_slow(case.prepared, plain)

    def rungs(self, case: Case) -> Iterator[Rung]:
        """Yield models to plan in earnest, most promising first; none if the plain plan is as good."""
        raise NotImplementedError

    def ladder(self, case: Case) -> Ladder:
        """Rank the tensors that it can be used on."""
        raise NotImplementedError

    def apply(self, prepared: Prepared, names: frozenset[str]) -> Prepared:
        """Return the model with the lever used on the named tensors."""
        raise NotImplementedError

    def in_order(self, graph: TrainingGraph, names: Iterable[str]) -> tuple[OpId, ...]:
        """Order all operations of a changed graph, given the names of the others in order."""
        raise NotImplementedError

    def mended(self, case: Case, rung: Rung, found: Trouble) -> Rung | None:
        """Return a rung to plan instead, given the result of one; None to keep the result."""
        return None

    def prefers(self, case: Case, made: Planned, plain: Planned) -> bool:
        """Tell whether a plan with it is worth more than the plain one."""
        return made.added_us <= case.most_added_us and made.holds >= plain.holds

    def refusal(self, case: Case, errors: Sequence[InfeasibleBudgetError]) -> InfeasibleBudgetError:
        """Return the error if no plan fits, from those of the plain plan and of the rungs, in order."""
        return min(errors, key=lambda error: error.least_peak_bytes)

    def record(self, prepared: Prepared) -> dict[str, Any]:
        """Return the fields of the plan file that say how it was used."""
        return {}

    def replay(self, prepared: Prepared, plan: Plan) -> Prepared:
        """Change the model as a plan file says.

        Raises:
            ModelError: the model cannot be changed so.
        """
        return prepared

    def note(self, prepared: Prepared) -> tuple[str, ...]:
        """Return a plan's assumptions besides those of the changed graph."""
        return ()

    def bound_class(self, prepared: Prepared) -> str:
        """Describe the plans for which a bound holds; empty if the model is unchanged."""
        return ""


class OverBudget:
    """Steps in the model's order that exceed the room; only the step of the peak if none does.

    Args:
        room_bytes: None counts every step.

    Attributes:
        peak: a step of the peak.
        step: each operation's step, by OpId.
    """

    def __init__(self, prepared: Prepared, room_bytes: int | None) -> None:
        live = np.asarray(timeline(prepared.graph, prepared.order).live_bytes)
        high = live > min(-1 if room_bytes is None else room_bytes, int(live.max()) - 1)
        self._before = np.concatenate([[0], np.cumsum(high)])
        self.peak = int(live.argmax())
        self.step = {op: i for i, op in enumerate(prepared.order)}

    def between(self, begin: int, end: int | None = None) -> int:
        """Count these steps in a half-open range; None is the end of the last step."""
        return int(self._before[-1 if end is None else end] - self._before[begin])


_T = TypeVar("_T")


def as_before(
    graph: TrainingGraph,
    before: TrainingGraph,
    like_tensor: Mapping[str, str] | None = None,
    like_node: Mapping[str, str] | None = None,
) -> TrainingGraph:
    """Return the graph with the categories and bars of the one before it.

    Args:
        like_tensor, like_node: the old name for each new one, whose properties it gets; others keep
            their own.
    """
    known = {t.name: t for t in before.tensors}
    once = {op.name: op for op in before.operations}
    tensors = tuple(
        t
        if (old := _of(known, t.name, like_tensor)) is None
        else replace(t, category=old.category, barred=old.barred)
        for t in graph.tensors
    )
    operations = tuple(
        op if (old := _of(once, op.name, like_node)) is None else replace(op, barred=old.barred)
        for op in graph.operations
    )
    return replace(graph, tensors=tensors, operations=operations)


def _of(known: Mapping[str, _T], name: str, like: Mapping[str, str] | None) -> _T | None:
    """Return the entry of a name, or of the name that it resembles."""
    return known.get(name) or known.get((like or {}).get(name, ""))
