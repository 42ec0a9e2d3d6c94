"""Figures over budgets: what each costs in time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from bokeh.models import ColumnDataSource, HoverTool, NumeralTickFormatter, Span

from planner.report.figures import blank_plot, byte_ticker
from planner.report.frontier import dims_text
from planner.report.plain import printable
from planner.units import format_bytes, format_percent

Payload = dict[str, Any]

COLORS = ("#2f6fb3", "#c4572c", "#3f8f5b", "#8b5fb0", "#b38b1d", "#2d8f93", "#b04a78", "#6b7280")
_DASHES = ("solid", "dashed", "dotdash", "dotted")
_MARK = "#d6273b"


def budget_plot(name: str, what: str, height: int = 420) -> Any:
    """An empty figure over budgets."""
    return blank_plot(name, height=height, x_label="budget", y_label=what)


def frontier_figure(
    frontiers: Sequence[Payload], *, chosen: tuple[int, float] | None = None, height: int = 420
) -> Any:
    """Slowdown over budget: a line for what was found, down to the bound a band.

    Args:
        chosen: (budget in bytes, time added as a ratio) of one plan, to be marked.
    """
    plot = budget_plot("frontier", "time added", height)
    plot.yaxis.formatter = NumeralTickFormatter(format="0.[0]%")
    lines = []
    top = max(f["baseline_peak_bytes"] for f in frontiers)
    for i, frontier in enumerate(frontiers):
        points = [p for p in frontier["points"] if p["peak_bytes"] is not None]
        label = dims_text(frontier["dims"]) or "time added"
        color, dash = COLORS[i % len(COLORS)], _DASHES[i % len(_DASHES)]
        source = ColumnDataSource(
            {
                "budget": [p["budget_bytes"] for p in points],
                "slowdown": [p["slowdown"] for p in points],
                "least": [p["least_slowdown_in_order"] for p in points],
                "said": [
                    f"{label}: {format_bytes(p['budget_bytes'])}: +{format_percent(p['slowdown'])}, "
                    f"at least +{format_percent(p['least_slowdown_in_order'])} in its base order"
                    for p in points
                ],
            }
        )
        plot.varea(
            **_band(points), fill_color=color, fill_alpha=0.18, hatch_pattern="right_diagonal_line",
            hatch_alpha=0.25, hatch_color=color,
        )  # fmt: skip
        plot.segment("budget", "least", "budget", "slowdown", source=source, line_color=color)
        plot.step(
            "budget", "slowdown", source=source, mode="after", line_color=color, line_dash=dash,
            line_width=2, legend_label=printable(label),
        )  # fmt: skip
        lines.append(plot.scatter("budget", "slowdown", source=source, size=7, color=color))
        plot.add_layout(
            Span(location=frontier["baseline_peak_bytes"], dimension="height", line_color=color,
                 line_dash="dotted", line_alpha=0.7)
        )  # fmt: skip
    if chosen is not None:
        plot.scatter(
            [chosen[0]], [chosen[1]], size=15, marker="star", color=_MARK, legend_label="this plan"
        )
    plot.add_tools(HoverTool(renderers=lines, tooltips=[("", "@said")]))
    plot.legend.location = "top_right"
    byte_ticker(plot.xaxis, top)
    return plot


def _band(points: list[Payload]) -> dict[str, list[float]]:
    """From what was found down to the bound: a plan holds for larger budgets, a bound for smaller."""
    x, low, high = [], [], []
    for here, after in itertools.pairwise(points):
        x += [here["budget_bytes"], after["budget_bytes"]]
        low += [after["least_slowdown_in_order"]] * 2
        high += [here["slowdown"]] * 2
    return {"x": x, "y1": low, "y2": high}
