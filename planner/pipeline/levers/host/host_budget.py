"""The host memory of a plan, and which tensors to leave on the device if it exceeds the host budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from planner.errors import InfeasibleBudgetError
from planner.formulate import Formulation
from planner.graph.host import HostMemory, host_memory
from planner.graph.reasons import WhyStay
from planner.pipeline.prepare.prepared import Prepared
from planner.pipeline.solve.planned import Planned
from planner.plan.problem import Action, ActionKind
from planner.units import format_both, format_budget, parse_bytes


@dataclass(frozen=True, slots=True)
class Fewer:
    """Tensors that the next plan must leave on the device.

    Attributes:
        swaps: names of tensors that may no longer be swapped.
        resident: names of tensors that no longer live on the host.
    """

    swaps: frozenset[str]
    resident: frozenset[str]


def host_memory_of(planned: Planned) -> HostMemory:
    """Compute the host memory of a plan's rewritten model."""
    return host_memory(planned.graph, planned.order, in_files(planned.prepared))


def in_files(prepared: Prepared) -> frozenset[str]:
    """Return the names of initializers whose data lies in files beside the model."""
    found = prepared.model.graph.initializers.values()
    return frozenset(str(v.name) for v in found if isinstance(v.const_value, ir.ExternalTensor))


def host_budget_of(prepared: Prepared) -> int | None:
    """Return the request's host budget in bytes; None without one.

    Raises:
        UsageError: it cannot be read.
    """
    text = prepared.request.levers.host_budget
    return None if text is None else parse_bytes(text, what="--host-budget")


def over_host_budget(planned: Planned) -> Fewer | None:
    """Choose the tensors to keep off the host if a plan exceeds the host budget; None if it does not.

    The largest swapped tensors go first; without any, the largest tensors that live on the host.

    Raises:
        InfeasibleBudgetError: no tensor is left, or none may be left out.
    """
    budget = host_budget_of(planned.prepared)
    if budget is None:
        return None
    memory = host_memory_of(planned)
    over = memory.peak_bytes - budget
    if over <= 0:
        return None
    swaps = _largest(_swapped(planned.formulation, planned.solved.found.actions), over)
    if swaps:
        return Fewer(swaps=swaps, resident=frozenset())
    prepared = planned.prepared
    files = in_files(prepared)
    sizes = {t.name: t.bytes for t in prepared.graph.tensors}
    resident = [(sizes[name], name) for name in prepared.resident if name not in files]
    if not resident or prepared.request.levers.residence == "host":
        raise InfeasibleBudgetError(
            f"the host budget of {format_both(budget)} is too small: tensors that live on the "
            f"host take {format_budget(memory.peak_bytes)}; raise it to that, or leave more on "
            "the device (--resident, --exclude)"
        )
    return Fewer(swaps=frozenset(), resident=_largest(resident, over))


def without(prepared: Prepared, swaps: frozenset[str]) -> Prepared:
    """Bar these tensors from the host."""
    stay = (t.id for t in prepared.graph.tensors if t.name in swaps)
    barred = prepared.graph.with_bars(dict.fromkeys(stay, WhyStay.HOST_BUDGET))
    return replace(prepared, graph=barred)


def _swapped(form: Formulation, actions: Sequence[Action]) -> list[tuple[int, str]]:
    """Return (bytes, name) of each tensor that a schedule swaps."""
    out = {a.target for a in actions if a.kind is ActionKind.SWAP_OUT}
    tensors = form.problem.tensors
    return [(tensors[t].bytes, tensors[t].name) for t in out if not tensors[t].host_copy]


def _largest(sized: Sequence[tuple[int, str]], bytes_: int) -> frozenset[str]:
    """Return the names of the largest tensors that add up to `bytes_`."""
    found: list[str] = []
    for size, name in sorted(sized, reverse=True):
        if bytes_ <= 0:
            break
        found.append(name)
        bytes_ -= size
    return frozenset(found)
