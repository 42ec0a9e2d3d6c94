"""Tensors that live on the host: chosen by the plan that they allow, and chosen again if needed.

Tensors that a session copies in any case are free. All others cost a copy, or two if they are
needed on both sides of the peak; per byte freed, each costs the same. Inputs, initializers and
outputs are therefore ranked by the share of the steps over the budget for which they would be away,
and the first ones of the ranking live on the host. The host budget bounds these and swapped
tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from planner.errors import InfeasibleBudgetError, ModelError, UsageError
from planner.graph.model import OpId, Tensor, TrainingGraph
from planner.lower.residence import may_live_on_host
from planner.pipeline.levers.choose import Climb
from planner.pipeline.levers.host.host_budget import host_budget_of, over_host_budget, without
from planner.pipeline.levers.host.residence import (
    around_taken,
    feeds_are_copied,
    in_order,
    is_paged_at_a_price,
    resided,
    residence_note,
)
from planner.pipeline.levers.lever import Case, Ladder, Lever, OverBudget, Rung, Trouble
from planner.pipeline.levers.policy import POLICY
from planner.pipeline.prepare.prepared import Prepared
from planner.pipeline.prepare.settings import Settings
from planner.pipeline.solve.orders import base_orders, least_possible_peak
from planner.pipeline.solve.planned import Planned
from planner.pipeline.solve.quick import least_bytes
from planner.plan.planfile import Plan
from planner.request import Levers
from planner.runtime.optimizers.fusion_pins import TakenError
from planner.units import format_bytes


class Hosting(Lever):
    """`--resident`, and the host budget."""

    option = "--resident"
    shares = POLICY.host
    rewrites = False
    said = "planning with everything on the device"

    def is_asked(self, levers: Levers) -> bool:
        return levers.residence != "device" or levers.host_budget is not None

    def supports(self, prepared: Prepared) -> None:
        no_copies = prepared.why_no_swaps
        if prepared.request.levers.residence == "host" and no_copies is not None:
            raise UsageError(f"--resident host: {no_copies.sentence}; use --resident device")

    def goes_without(self, case: Case) -> bool:
        """Tell whether to plan with everything on the device first.

        It is worth it if a plan with everything on the device may exist, and residence on the host
        costs copies.
        """
        if residence_of(case.prepared) != "auto":
            return False
        found = self.ladder(case)
        has_copies = bool(found.ranked) and not found.free
        return has_copies and least_possible_peak(case.prepared) <= case.settings.room_bytes

    def rungs(self, case: Case) -> Iterator[Rung]:
        """Yield the model with the tensors on the host that pay, within its request."""
        prepared = case.prepared
        if (lever := residence_of(prepared)) == "device":
            yield Rung(prepared=prepared)
            return
        found = self.ladder(case)
        every = found.first(len(found.ranked))
        if lever == "host" or not every:
            yield Rung(prepared=resided(prepared, every))
            return
        if case.plain is None and least_possible_peak(prepared) <= case.settings.room_bytes:
            limit_s = self.shares.quick_s(case.settings.time_limit_s)
            orders = base_orders(prepared, time_limit_s=limit_s)
            if orders[0].peak_bytes <= case.settings.room_bytes:  # another order alone suffices
                yield Rung(prepared=prepared, orders=orders)
                return
        chosen: Prepared | None = resided(prepared, found.first(0))
        if found.ranked:  # otherwise a session makes the copies in any case
            case.means.progress("planning with parameters, state, inputs and outputs on the host")
            everything = everything_on_host(prepared, case.settings)
            chosen = Climb(self, case, found, everything).found()
        if chosen is not None and (case.plain is None or chosen.resident):
            yield Rung(prepared=chosen)

    def ladder(self, case: Case) -> Ladder:
        return candidates_of(case.prepared, case.settings)

    def apply(self, prepared: Prepared, names: frozenset[str]) -> Prepared:
        return resided(prepared, names)

    def in_order(self, graph: TrainingGraph, names: Iterable[str]) -> tuple[OpId, ...]:
        return in_order(graph, names)

    def prefers(self, case: Case, made: Planned, plain: Planned) -> bool:
        return made.is_better(plain)

    def mended(self, case: Case, rung: Rung, found: Trouble) -> Rung | None:
        """Return the rung with fewer or more tensors on the host, if its result requires that.

        Fewer live there if the host budget binds, or if ONNX Runtime's optimizers remove copied
        nodes; more if no plan fits.

        Raises:
            InfeasibleBudgetError: with less, no plan fits.
        """
        before = frozenset(rung.prepared.resident)
        stays, no_swaps = rung.stays, rung.no_swaps
        if isinstance(found, TakenError):
            if not before:
                return None
            stays |= around_taken(rung.prepared, found)
            names = before - stays
        elif isinstance(found, InfeasibleBudgetError):
            names = _more_on_host(case, rung) if rung.may_add else before
            if names <= before:
                raise _with_host_budget(case.prepared, rung, found) from None
        else:
            fewer = over_host_budget(found)
            if fewer is None:
                return None
            case.means.progress("again, with less on the host: the host budget binds")
            stays, no_swaps = stays | fewer.resident, no_swaps | fewer.swaps
            names = before - stays
        again = without(resided(case.prepared, names), no_swaps)
        return replace(rung, prepared=again, orders=(), stays=stays, no_swaps=no_swaps)

    def record(self, prepared: Prepared) -> dict[str, Any]:
        feeds = "host" if feeds_are_copied(prepared) else "device"
        return {
            "resident": prepared.resident,
            "feeds": feeds,
            "host_budget_bytes": host_budget_of(prepared),
        }

    def replay(self, prepared: Prepared, plan: Plan) -> Prepared:
        known = {t.name for t in may_live_on_host(prepared.graph)}
        strange = next((name for name in plan.resident if name not in known), None)
        if strange is not None:
            raise ModelError(f"the plan has {strange!r} on the host, which cannot live there")
        return resided(prepared, frozenset(plan.resident))

    def note(self, prepared: Prepared) -> tuple[str, ...]:
        return residence_note(prepared)

    def bound_class(self, prepared: Prepared) -> str:
        return (
            "with the same inputs and outputs on the host" if is_paged_at_a_price(prepared) else ""
        )


def residence_of(prepared: Prepared) -> str:
    """Return where parameters, state, inputs and outputs may live: "device", "host" or "auto"."""
    return "device" if prepared.why_no_swaps is not None else prepared.request.levers.residence


def _more_on_host(case: Case, rung: Rung) -> frozenset[str]:
    """Return all tensors that may live on the host, with small ones if those were chosen already.

    If the request leaves no choice, return the tensors chosen before.
    """
    prepared, before = case.prepared, frozenset(rung.prepared.resident)
    if residence_of(prepared) == "device":
        return before
    names = before
    for small_too in (False, True):
        if small_too and (not names <= before or prepared.request.levers.min_tensor is not None):
            break
        found = candidates_of(prepared, case.settings, small_too=small_too)
        names = found.first(len(found.ranked)) - rung.stays
    return names


def _with_host_budget(
    prepared: Prepared, rung: Rung, error: InfeasibleBudgetError
) -> InfeasibleBudgetError:
    """Return the error, with a hint if the host budget prevented copies."""
    levers = prepared.request.levers
    host, disk, left = levers.host_budget, levers.disk, rung.no_swaps | rung.stays
    where, option = "on the host", "--host-budget"
    if disk is not None:
        host = format_bytes(host_budget_of(prepared) or 0)
        where, option = f"in {disk.folder}", "--disk-budget"
    if host is None or not left:
        return error
    return type(error)(
        f"{error}; with at most {host} {where}, {len(left):,} tensors could not be there: allow more "
        f"with {option}",
        least_peak_bytes=error.least_peak_bytes,
        bound_bytes=error.bound_bytes,
        binding=error.binding,
    )


def everything_on_host(prepared: Prepared, settings: Settings) -> Prepared:
    """Return the model with everything on the host that may live there."""
    found = candidates_of(prepared, settings)
    return resided(prepared, found.first(len(found.ranked)))


def ways_of(prepared: Prepared, settings: Settings) -> tuple[Prepared, ...]:
    """Return the two extremes of `Hosting`'s choice.

    They are the model with all tensors on the host that cost nothing there and, if more may live
    there, the model with all of these.

    Raises:
        UsageError: the host is asked for, and ONNX Runtime here has no copies.
    """
    HOSTING.supports(prepared)
    if (lever := residence_of(prepared)) == "device":
        return (prepared,)
    found = candidates_of(prepared, settings)
    every = len(found.ranked)
    counts = [every] if lever == "host" else sorted({0, every})
    return tuple(resided(prepared, found.first(count)) for count in counts)


def candidates_of(prepared: Prepared, settings: Settings, *, small_too: bool = False) -> Ladder:
    """Rank the tensors that may live on the host.

    Args:
        small_too: include tensors that are not worth a copy.
    """
    tensors = may_live_on_host(prepared.graph)
    has_limit = prepared.request.levers.min_tensor is not None  # smaller tensors are barred
    if not has_limit and not small_too:
        sizes = [t.bytes for t in tensors]
        least = _least_bytes(sizes, least_bytes(prepared), settings.room_bytes)
        tensors = [t for t in tensors if t.bytes >= least]
    if prepared.request.levers.residence == "auto" and not prepared.target.own_memory:
        # the CPU's kernels do not pack initializers that can be fed: last bits may change
        tensors = [t for t in tensors if not t.is_initializer]
    copied = feeds_are_copied(prepared)
    free = tuple(t.name for t in tensors if copied and not t.is_initializer)
    over = OverBudget(prepared, settings.room_bytes)
    rest = [(_away(t, over), t) for t in tensors if t.name not in free]
    rest.sort(key=lambda pair: (-pair[0], -pair[1].bytes, pair[1].name))
    return Ladder(free=free, ranked=tuple(t.name for _, t in rest))


def _least_bytes(sizes: Sequence[int], least: int, room: int) -> int:
    """Return the size below which tensors stay on the device, as long as they add up to little.

    Many of a network's weights are small beside its activations, but together they may exceed a
    device.

    Args:
        least: size below which a tensor is not worth a copy.
        room: bytes on the device.
    """
    left = 0
    for size in sorted(sizes):
        left += size
        if size >= least or left > POLICY.small * room:
            return min(size, least)
    return least


def _away(tensor: Tensor, over: OverBudget) -> float:
    """Return the share of the steps over the budget for which a tensor would be away, per copy."""
    total = over.between(0)
    uses = sorted(over.step[op] for op in tensor.consumers)
    if tensor.producer is not None:
        return over.between(max([over.step[tensor.producer], *uses]) + 1) / total
    first, last, peak = uses[0], uses[-1], over.peak
    once = total - over.between(first, last + 1)
    early = [step for step in uses if step < peak] or [first]
    late = [step for step in uses if step >= peak] or [last]
    twice = total - over.between(early[0], early[-1] + 1) - over.between(late[0], late[-1] + 1)
    return max(once, twice / 2) / total


HOSTING = Hosting()
