"""Chunks of rows for large operations, if no plan fits without them or one with them is quicker.

The search tries several rooms, from all that the budget leaves down to a part of it. For each,
operations too large for it are split (`planner.pipeline.levers.chunk.too_large`), and a quick
search finds a plan's time. More room means fewer chunks; with less, a plan can keep more tensors
beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from planner import clock
from planner.lower.chunks.row_rules import MIN_OPSET
from planner.pipeline.levers.chunk.splitting import planned_regions, split_as_planned
from planner.pipeline.levers.chunk.too_large import split_to_fit
from planner.pipeline.levers.host.hosting import everything_on_host
from planner.pipeline.levers.host.residence import resided
from planner.pipeline.levers.lever import Case, Lever, Rung
from planner.pipeline.levers.policy import POLICY
from planner.pipeline.prepare.prepared import Prepared
from planner.pipeline.solve.orders import base_orders, least_possible_peak
from planner.pipeline.solve.quick import quickest
from planner.plan.planfile import Plan
from planner.request import Levers
from planner.units import counted, format_bytes


class Chunks(Lever):
    """`--split`."""

    option = "--split"
    shares = POLICY.chunks

    def is_asked(self, levers: Levers) -> bool:
        return levers.split != "none"

    def supports(self, prepared: Prepared) -> str | None:
        why = why_no_split(prepared)
        return None if why is None else f"nothing was split (--split auto): {why}"

    def goes_without(self, case: Case) -> bool:
        return least_possible_peak(_lean(case)) <= case.settings.room_bytes

    def rungs(self, case: Case) -> Iterator[Rung]:
        """Yield models split in different ways, quickest plan first.

        If no quick search found a plan, the models with the smallest operations come first. If a
        plain plan exists, only models promising a quicker plan are yielded.
        """
        case.means.progress("splitting what is too large")
        lean = _lean(case)
        hosted = frozenset((lean if case.plain is None else case.plain.prepared).resident)
        found: list[tuple[float, Prepared]] = []
        for one in _splits(case, lean):
            found.append((_quick_us(case, resided(one, hosted)), one))
            if clock.now() > case.until - self.shares.rest * case.settings.time_limit_s:
                break
        found.reverse()
        found.sort(key=lambda pair: pair[0])
        for added_us, one in found:
            if added_us > case.most_added_us:
                return
            yield Rung(prepared=one)

    def record(self, prepared: Prepared) -> dict[str, Any]:
        return {"split": planned_regions(prepared)}

    def replay(self, prepared: Prepared, plan: Plan) -> Prepared:
        return split_as_planned(prepared, plan.split)

    def bound_class(self, prepared: Prepared) -> str:
        return "with the same operations in chunks" if prepared.split else ""


def why_no_split(prepared: Prepared) -> str | None:
    """Return why nothing of this model can run in chunks; None if it can."""
    if prepared.target.own_memory:
        return f"not yet for {prepared.target.title}"
    if prepared.loaded.dims:
        return "the chunks would be right only for the sizes given with --dim"
    if prepared.model.graph.opset_imports.get("", 1) < MIN_OPSET:
        return f"it needs ONNX operator set {MIN_OPSET} or later"
    return None


def _lean(case: Case) -> Prepared:
    """Return the model with as much on the host as possible."""
    prepared = case.prepared
    if prepared.request.levers.residence == "device" or prepared.why_no_swaps is not None:
        return prepared
    return everything_on_host(prepared, case.settings)


def _splits(case: Case, lean: Prepared) -> Iterator[Prepared]:
    """Yield the model split for each room, if the split is new and leaves room."""
    room = case.settings.room_bytes
    hosted = frozenset(lean.resident)
    # if nothing fits without chunks, the search for them may take as long again
    until = case.until + (case.settings.time_limit_s if case.plain is None else 0.0)
    known: list[object] = [()]
    for share in POLICY.rooms:
        one = split_to_fit(case.prepared, lean, int(share * room), until=until)
        if one.split in known:
            continue
        known.append(one.split)
        if least_possible_peak(resided(one, hosted)) <= room:
            yield one.noted(*_said(one))


def _quick_us(case: Case, prepared: Prepared) -> float:
    """Return the microseconds that a short search's plan adds; infinite if it finds none."""
    limit_s = POLICY.chunks.quick_s(case.settings.time_limit_s) / 2
    orders = base_orders(prepared, time_limit_s=limit_s)
    _, found_us = quickest(prepared, orders, case.settings, limit_s)
    return found_us - prepared.baseline.time_us


def _said(prepared: Prepared) -> tuple[str, ...]:
    """Return a note on the chunks for a plan's assumptions."""
    regions = [region for together in prepared.split for region in together]
    if not regions:
        return ()
    nodes = sum(len(region.ways) for region in regions)
    most = max(region.seed.chunks for region in regions)
    first = regions[0].seed
    size = (
        format_bytes(prepared.types[first.tensor].bytes) if first.tensor in prepared.types else ""
    )
    text = (
        f"{counted(nodes, 'node', 'run')} in chunks of rows, in {counted(len(regions), 'region')} of up "
        f"to {most} chunks, the first around {first.tensor!r}{f' ({size})' if size else ''}"
    )
    if prepared.numbers == "rounding":
        text += ": sums are added up in parts, and products of fewer rows may take another path, so that "
        text += "numbers are the same up to rounding"
    return (text,)
