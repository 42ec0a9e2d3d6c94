"""The page of `planner sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bokeh.models import ColumnDataSource, HoverTool

from planner.onnxio.save import atomic_write
from planner.report.document.sweep import SweepDocument
from planner.report.page import bokeh_scripts, embedded_figures, embedded_json, environment
from planner.report.page.budgets import COLORS, frontier_figure
from planner.report.page.figures import blank_plot, byte_ticker
from planner.units import format_bytes, format_percent


def write_sweep(document: SweepDocument, path: Path) -> None:
    """Write the page atomically."""
    figures = {"frontier": frontier_figure(document.frontiers)}
    if document.largest:
        figures["largest"] = _largest_figure(document)
    page = (
        environment()
        .get_template("sweep.html.j2")
        .render(
            p=document,
            figures=list(figures),
            figures_json=embedded_json(embedded_figures(figures)),
            bokeh_js=bokeh_scripts(),
        )
    )
    with atomic_write(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _largest_figure(document: SweepDocument) -> Any:
    y_label = f"largest {document.dim}"
    plot = blank_plot("largest", height=320, x_label="budget", y_label=y_label)
    rows = [row for row in document.largest if row.size is not None]
    source = ColumnDataSource(
        {
            "budget": [row.budget_bytes for row in rows],
            "size": [row.size for row in rows],
            "said": [
                f"{format_bytes(row.budget_bytes)}: {row.size:,}, +{format_percent(row.slowdown or 0.0)}"
                for row in rows
            ],
        }
    )
    plot.step("budget", "size", source=source, mode="after", line_width=2, line_color=COLORS[0])
    dots = plot.scatter("budget", "size", source=source, size=7, color=COLORS[0])
    plot.add_tools(HoverTool(renderers=[dots], tooltips=[("", "@said")]))
    byte_ticker(plot.xaxis, max((row.budget_bytes for row in rows), default=1))
    return plot
