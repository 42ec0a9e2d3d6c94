"""The fastest plan within a budget; what lives on the host is chosen first, and again where need be."""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner import clock
from planner.errors import InfeasibleBudgetError
from planner.pipeline.levers.choose_residence import (
    Chosen,
    Plain,
    choose_residence,
    is_device_first,
    more_on_host,
)
from planner.pipeline.levers.host_budget import host_budget_of, over_host_budget, without
from planner.pipeline.levers.residence import around_taken, resided
from planner.pipeline.prepare.prepared import Prepared, Progress
from planner.pipeline.prepare.settings import Settings
from planner.pipeline.solve.planned import Planned
from planner.pipeline.solve.planning import make_plan
from planner.pipeline.solve.quick import is_slow
from planner.processes.workers import Beside
from planner.runtime.optimizers.fusion_pins import TakenError
from planner.units import format_bytes

_LEAST = 0.2
"""Share of the time limit that each further plan gets at least."""


_DEVICE = 0.6
"""Share of the time limit for a plan with everything on the device, where others may be quicker."""

Made = tuple[Prepared, Planned]


@dataclass(slots=True, kw_only=True)
class PlanWithin:
    """Plans one model within one budget.

    Attributes:
        prepared: the model with everything on the device.
        keep_on_interrupt: as for `make_plan`.
        helper: where trials are worked on ahead.
        stays: what has to stay on the device. `swaps`: what may not be swapped, for the host budget.
    """

    prepared: Prepared
    settings: Settings
    progress: Progress
    keep_on_interrupt: bool
    helper: Beside | None
    stays: frozenset[str] = frozenset()
    swaps: frozenset[str] = frozenset()
    began: float = 0.0

    def run(self) -> Made:
        """(the model with what lives on the host, its plan).

        Where a plan with everything on the device may be good enough, it is looked for first, and another
        has to be quicker.

        Raises:
            InfeasibleBudgetError: no plan fits the budget, or none the host budget.
            TakenError: ONNX Runtime's optimizers take nodes of every plan away.
        """
        self.began = clock.now()
        if not is_device_first(self.prepared, self.settings):
            return self._made(self._residence())
        plain = self._on_device()
        if plain is None:
            return self._made(self._residence())
        if not is_slow(self.prepared, plain[1]):
            return plain
        try:
            return self._quicker(plain)
        except InfeasibleBudgetError:
            return plain
        except KeyboardInterrupt:
            return plain[0], plain[1].interrupted()

    def _quicker(self, plain: Made) -> Made:
        """The plan with everything on the device, or a better one with some of it on the host."""
        known = Plain(plain[1].time_us, plain[1].base.order)
        chosen = self._residence(known)
        if not chosen.prepared.resident:
            return plain
        made = self._made(chosen)
        if made[1].is_better(plain[1]):
            return made
        return (plain[0], plain[1].interrupted()) if made[1].solved.is_interrupted else plain

    def _residence(self, plain: Plain | None = None) -> Chosen:
        return choose_residence(self.prepared, self.settings, self.progress, plain, self.helper)

    def _on_device(self) -> Made | None:
        """A plan with everything on the device; None where none is found."""
        self.progress("planning with everything on the device")
        try:
            return self._made(Chosen(prepared=self.prepared), _DEVICE, may_add=False)
        except InfeasibleBudgetError:
            return None

    def _made(self, chosen: Chosen, share: float = 1.0, *, may_add: bool = True) -> Made:
        """The plan for what was chosen, or for as much of that as can be had.

        Args:
            share: of the time limit, that may have gone by at its end.
            may_add: everything that may is put on the host, where nothing fits.
        """
        while True:
            before = frozenset(chosen.prepared.resident)
            try:
                planned = self._plan(chosen, share)
                fewer = over_host_budget(planned)
            except TakenError as error:
                if not before:
                    raise
                self.stays |= around_taken(chosen.prepared, error)
                names = before - self.stays
            except InfeasibleBudgetError as error:
                names = before
                if may_add:
                    names = more_on_host(chosen.prepared, self.prepared, self.settings, self.stays)
                if names <= before:
                    raise self._with_host_budget(error) from None
            else:
                if fewer is None:
                    return chosen.prepared, planned
                self.progress("again, with less on the host: the host budget binds")
                self.stays |= fewer.resident
                self.swaps |= fewer.swaps
                names = before - self.stays
            chosen = Chosen(prepared=without(resided(self.prepared, names), self.swaps))

    def _plan(self, chosen: Chosen, share: float) -> Planned:
        limit_s = self.settings.time_limit_s
        left_s = share * limit_s - (clock.now() - self.began)
        return make_plan(
            chosen.prepared,
            replace(self.settings, time_limit_s=max(_LEAST * limit_s, left_s), since=self.began),
            self.progress,
            orders=chosen.orders,
            keep_on_interrupt=self.keep_on_interrupt,
            helper=self.helper,
        )

    def _with_host_budget(self, error: InfeasibleBudgetError) -> InfeasibleBudgetError:
        """The error, which says so where the host budget took copies away."""
        levers = self.prepared.request.levers
        host, disk = levers.host_budget, levers.disk
        where, option = "on the host", "--host-budget"
        if disk is not None:
            host = format_bytes(host_budget_of(self.prepared) or 0)
            where, option = f"in {disk.folder}", "--disk-budget"
        if host is None or not (self.swaps or self.stays):
            return error
        return InfeasibleBudgetError(
            f"{error}; with at most {host} {where}, {len(self.swaps | self.stays):,} tensors could not "
            f"be there: allow more with {option}",
            least_peak_bytes=error.least_peak_bytes,
            bound_bytes=error.bound_bytes,
            binding=error.binding,
        )
