"""A frontier between memory and time, as a document and as a table for a terminal."""

from __future__ import annotations

from typing import Any

from planner.report.views import number
from planner.results import Frontier
from planner.units import format_bytes, format_percent, format_share

Payload = dict[str, Any]


def dims_text(dims: dict[str, int]) -> str:
    """`batch=8, seq=128`."""
    return ", ".join(f"{name}={size}" for name, size in dims.items())


def frontier_payload(frontier: Frontier) -> Payload:
    """A frontier as a document."""
    return {
        "dims": frontier.dims,
        "baseline_peak_bytes": frontier.baseline_bytes,
        "order_alone_peak_bytes": frontier.order_alone_bytes,
        "least_peak_bound_bytes": frontier.least_bound_bytes,
        "base_time_us": frontier.base_us,
        "orders": list(frontier.orders),
        "points": [
            {
                "budget_bytes": p.capacity_bytes,
                "budget_share": p.capacity_bytes / (frontier.baseline_bytes or 1),
                "impossible": p.is_impossible,
                "slowdown": frontier.slowdown(p),
                "least_slowdown": frontier.least_slowdown(p),
                "least_slowdown_in_order": frontier.least_slowdown_in_order(p),
                "peak_bytes": p.plan.peak_bytes if p.plan else None,
                "time_us": number(p.plan.time_us) if p.plan else None,
                "engine": p.plan.engine if p.plan else None,
                "order": frontier.orders[p.plan.order] if p.plan else None,
                "recomputed_ops": p.plan.recomputed_ops if p.plan else None,
                "recompute_us": number(p.plan.recomputed_us) if p.plan else None,
                "swap_out_bytes": p.plan.swap_out_bytes if p.plan else None,
                "swap_in_bytes": p.plan.swap_in_bytes if p.plan else None,
            }
            for p in frontier.points
        ],
    }


POINT_COLUMNS = (
    ">budget", ">share", ">peak", ">slower", ">at least", ">recomputed", ">copied",
    "found by", "base order",
)  # fmt: skip


def point_row(point: Payload) -> list[object]:
    """Cells under `POINT_COLUMNS`."""
    budget = [format_bytes(point["budget_bytes"], up=True), format_share(point["budget_share"])]
    least = point["least_slowdown_in_order"]
    bound = "" if least is None else format_percent(least)
    if point["peak_bytes"] is None:
        return [
            *budget,
            "",
            "impossible" if point["impossible"] else "none found",
            bound,
            *[""] * 4,
        ]
    copied = point["swap_out_bytes"] + point["swap_in_bytes"]
    return [
        *budget,
        format_bytes(point["peak_bytes"]),
        format_percent(point["slowdown"]),
        bound,
        f"{point['recomputed_ops']:,}",
        format_bytes(copied) if copied else "–",
        point["engine"],
        point["order"],
    ]
