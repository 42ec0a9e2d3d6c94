"""The fastest plan within a budget; what lives on the host is chosen first, and again where need be."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from planner.errors import InfeasibleBudgetError
from planner.pipeline.choose_residence import Chosen, choose_residence, more_on_host
from planner.pipeline.host_budget import over_host_budget, without
from planner.pipeline.planned import Planned
from planner.pipeline.planning import make_plan
from planner.pipeline.prepare import Prepared, Progress
from planner.pipeline.residence import around_taken, resided
from planner.pipeline.settings import Settings
from planner.runtime.fusion_pins import TakenError
from planner.workers import Beside

_LEAST = 0.2
"""Share of the time limit that each further plan gets at least."""


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

    def run(self) -> tuple[Prepared, Planned]:
        """(the model with what lives on the host, its plan).

        Raises:
            InfeasibleBudgetError: no plan fits the budget, or none the host budget.
            TakenError: ONNX Runtime's optimizers take nodes of every plan away.
        """
        began = time.monotonic()
        chosen = choose_residence(self.prepared, self.settings, self.progress)
        while True:
            before = frozenset(chosen.prepared.resident)
            try:
                planned = self._plan(chosen, time.monotonic() - began)
                fewer = over_host_budget(planned)
            except TakenError as error:
                if not before:
                    raise
                self.stays |= around_taken(chosen.prepared, error)
                names = before - self.stays
            except InfeasibleBudgetError as error:
                names = more_on_host(chosen.prepared, self.prepared, self.settings) - self.stays
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

    def _plan(self, chosen: Chosen, spent_s: float) -> Planned:
        limit_s = self.settings.time_limit_s
        return make_plan(
            chosen.prepared,
            replace(self.settings, time_limit_s=max(_LEAST * limit_s, limit_s - spent_s)),
            self.progress,
            orders=chosen.orders,
            keep_on_interrupt=self.keep_on_interrupt,
            helper=self.helper,
        )

    def _with_host_budget(self, error: InfeasibleBudgetError) -> InfeasibleBudgetError:
        """The error, which says so where the host budget took copies away."""
        host = self.prepared.request.levers.host_budget
        if host is None or not (self.swaps or self.stays):
            return error
        return InfeasibleBudgetError(
            f"{error}; with at most {host} on the host, {len(self.swaps | self.stays):,} tensors could "
            "not be there: allow more with --host-budget",
            least_peak_bytes=error.least_peak_bytes,
            bound_bytes=error.bound_bytes,
            binding=error.binding,
        )
