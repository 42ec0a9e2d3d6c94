"""Figures over budgets: the cost of each in time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from bokeh.models import ColumnDataSource, HoverTool, NumeralTickFormatter, Span

from planner.report.document.budgets import FrontierDocument
from planner.report.page.figures import blank_plot, byte_ticker
from planner.report.plain import printable
from planner.units import format_bytes, format_percent

COLORS = ("#2f6fb3", "#c4572c", "#3f8f5b", "#8b5fb0", "#b38b1d", "#2d8f93", "#b04a78", "#6b7280")
_DASHES = ("solid", "dashed", "dotdash", "dotted")
_MARK = "#d6273b"


def frontier_figure(
    frontiers: Sequence[FrontierDocument],
    *,
    chosen: tuple[int, float] | None = None,
    height: int = 420,
) -> Any:
    """Draw slowdown over budget: a line for the plans found, and a band down to the bound.

    Args:
        chosen: (budget in bytes, time added as a ratio) of a plan to mark.
    """
    plot = blank_plot("frontier", height=height, x_label="budget", y_label="time added")
    plot.yaxis.formatter = NumeralTickFormatter(format="0.[0]%")
    lines = []
    top = max(f.baseline_peak_bytes for f in frontiers)
    for i, frontier in enumerate(frontiers):
        points, label = frontier.planned, frontier.at or "time added"
        color, dash = COLORS[i % len(COLORS)], _DASHES[i % len(_DASHES)]
        source = ColumnDataSource(
            {
                "budget": [budget for budget, _, _ in points],
                "slowdown": [slowdown for _, slowdown, _ in points],
                "least": [least for _, _, least in points],
                "said": [
                    f"{label}: {format_bytes(budget)}: +{format_percent(slowdown)}, "
                    f"at least +{format_percent(least)} in its base order"
                    for budget, slowdown, least in points
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
            Span(location=frontier.baseline_peak_bytes, dimension="height", line_color=color,
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


def _band(points: Sequence[tuple[int, float, float]]) -> dict[str, list[float]]:
    """Return the band from plans to bounds: a plan holds for larger budgets, a bound for smaller
    ones."""
    x, low, high = [], [], []
    for (here, slowdown, _), (after, _, least) in itertools.pairwise(points):
        x += [here, after]
        low += [least] * 2
        high += [slowdown] * 2
    return {"x": x, "y1": low, "y2": high}
