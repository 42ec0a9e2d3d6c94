"""Phrases and rows that the short and the whole report share."""

from __future__ import annotations

from collections.abc import Sequence

from planner.report.document.budgets import PointRow
from planner.report.document.headline import Headline
from planner.report.document.outcome import PlanFigures
from planner.report.narrative import times_of
from planner.report.terminal import shown
from planner.results.verification import DefaultBits
from planner.units import (
    counted,
    format_both,
    format_bytes,
    format_duration,
    format_percent,
    format_share,
)

POINT_COLUMNS = (
    ">budget", ">share", ">peak", ">slower", ">at least", ">recomputed", ">copied",
    "found by", "base order",
)  # fmt: skip


def budget_text(head: Headline) -> str:
    """Write the budget in both units, with the share that was typed, or its source."""
    said, size = head.budget_text, format_both(head.budget_bytes)
    if "%" in said:
        return f"{said} = {size}"
    return size if not said or said[0].isdigit() else f"{size}: {said}"


def made_of(parts: Sequence[tuple[str, int, float]]) -> str:
    """Write each category with its bytes and its share."""
    return ", ".join(
        f"{name} {format_bytes(size)} ({format_percent(share)})" for name, size, share in parts
    )


def proof(plan: PlanFigures, head: Headline) -> str:
    """Say how near the plan is to the least time, and by which times."""
    times = times_of(plan.cost_source)
    if head.proved_optimal:
        return f"proved optimal ({times})"
    if head.gap is None:
        return "no bound proved"
    return f"at most {format_percent(head.gap)} above the bound ({times})"


def default_bits_text(bits: DefaultBits) -> str:
    """Say how many results have the same bits where default sessions open both files."""
    text = f"{bits.same:,} of {bits.compared:,} bit-identical"
    if bits.differ:
        text += f", {bits.differ[0]!r} is not"
    if bits.unstable:
        unstable = counted(len(bits.unstable), "result", "differ")
        text += f"; {unstable} from run to run of the original"
    return text


def held_text(head: Headline) -> str:
    """Say in a line what sessions hold; "" where that is unknown."""
    said = []
    if head.held_bytes is not None:
        text = f"{format_bytes(head.held_bytes)} as planner.open_session opens it"
        if head.measured_held_bytes is not None:
            text += f" ({format_bytes(head.measured_held_bytes)} measured)"
        said.append(text)
    if head.plain_held_bytes is not None:
        over = ": over the budget" if head.is_plain_over else ""
        original = _of_original(head.plain_held_before_bytes)
        said.append(f"{format_bytes(head.plain_held_bytes)} under default options{original}{over}")
    return "; ".join(said)


def grown_text(head: Headline) -> str:
    """Say in a line how much processes grew; "" where none ran."""
    said = []
    if head.grown_bytes is not None:
        results = format_bytes(2 * head.results_bytes)
        said.append(
            f"grew by {format_bytes(head.grown_bytes)} as planner.open_session opens it, the results of "
            f"two steps ({results}) included"
        )
    if head.default_grown_bytes is not None:
        original = _of_original(head.default_grown_before_bytes)
        word = "" if said else "grew "
        said.append(
            f"{word}by {format_bytes(head.default_grown_bytes)} under default options{original}"
        )
    return "; ".join(said)


def measured_times(head: Headline) -> str:
    """Write both measured step times."""
    times = (head.measured_time_before_us, head.measured_time_after_us)
    return " -> ".join(shown(format_duration, us) for us in times)


def _of_original(before_bytes: int | None) -> str:
    return "" if before_bytes is None else f" (original {format_bytes(before_bytes)})"


def point_row(point: PointRow) -> list[object]:
    """Return the cells of a point under `POINT_COLUMNS`."""
    budget = [format_bytes(point.budget_bytes, up=True), format_share(point.budget_share)]
    bound = shown(format_percent, point.least_slowdown_in_order, "")
    if point.peak_bytes is None or point.slowdown is None:
        why = "impossible" if point.impossible else "none found"
        return [*budget, "", why, bound, *[""] * 4]
    return [
        *budget,
        format_bytes(point.peak_bytes),
        format_percent(point.slowdown),
        bound,
        f"{point.recomputed_ops:,}",
        format_bytes(point.copied_bytes) if point.copied_bytes else "–",
        point.engine,
        point.order,
    ]
