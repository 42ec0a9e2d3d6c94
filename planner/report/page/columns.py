"""The data from which the page's script draws figures and lists, from a view's document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.report.document.views import KIND_OF_ROLE, ViewDocument
from planner.report.page.figures import CATEGORY_COLORS, HATCHES, categories_of
from planner.report.page.lanes import KINDS, LANES, time_unit, total_us
from planner.report.plain import printable


def view_columns(
    view: ViewDocument, *, is_timed: bool, measured: Sequence[int] | None
) -> dict[str, Any]:
    """Collect the script's data as columns of the steps and of the live ranges.

    Args:
        is_timed: whether it is drawn on an axis of time too.
        measured: live bytes that ONNX Runtime showed at each step; None without a measurement.
    """
    ranges, line = view.live_ranges, view.timeline
    categories = categories_of({"": view})
    place = {category: i for i, category in enumerate(categories)}
    fates = list(HATCHES)
    found = {
        "peak_step": view.peak_step,
        "peak_bytes": view.peak_bytes,
        "persistent_bytes": view.persistent_bytes,
        "persistent": _persistent(view, categories),
        "measured": measured,
        "operation": [printable(name) for name in line.operation],
        "op_type": line.op_type,
        "live_bytes": line.live_bytes,
        "categories": categories,
        "colors": [CATEGORY_COLORS.get(c, "#a8adb3") for c in categories],
        "fates": fates,
        "tensor": [printable(r.tensor) for r in ranges],
        "bytes": [r.bytes for r in ranges],
        "start": [r.start for r in ranges],
        "end": [r.end for r in ranges],
        "offset": [r.offset for r in ranges],
        "category": [place[r.category] for r in ranges],
        "fate": [fates.index(r.fate) for r in ranges],
        "workspace": [[w.step, w.bytes, w.offset] for w in view.one_region.workspace],
    }
    if is_timed:
        found |= {
            "duration_us": line.duration_us,
            "start_us": line.start_us,
            "unit_us": time_unit(total_us(view))[0],
            "kinds": list(KINDS),
            "lanes": [LANES[kind] for kind in KINDS],
            "kind": [KINDS.index(KIND_OF_ROLE.get(role, "compute")) for role in line.role],
        }
    return found


def _persistent(view: ViewDocument, categories: Sequence[str]) -> list[int]:
    """Return the bytes of each category that are present at every step: those of the first step
    without its ranges and workspace."""
    if not view.steps:
        return [0] * len(categories)
    left = {c: view.timeline.by_category[c][0] for c in categories}
    for r in view.live_ranges:
        if r.start == 0 < r.end:
            left[r.category] -= r.bytes
    for w in view.one_region.workspace:
        if w.step == 0:
            left["workspace"] -= w.bytes
    return [left[c] for c in categories]
