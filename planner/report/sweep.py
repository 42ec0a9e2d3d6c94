"""What `planner sweep` shows: one document, as text for a terminal, and as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bokeh.models import ColumnDataSource, HoverTool
from rich.console import Console

from planner import __version__
from planner.onnxio.save import atomic_write
from planner.report.brief import print_notes, print_row
from planner.report.figures import byte_ticker
from planner.report.frontier import POINT_COLUMNS, dims_text, frontier_payload, point_row
from planner.report.frontier_figure import COLORS, budget_plot, frontier_figure
from planner.report.html import bokeh_scripts, embedded_figures, embedded_json, environment
from planner.report.narrative import times_of
from planner.report.plain import nearby
from planner.report.remarks import that_matter
from planner.report.terminal import print_assumptions, print_line, print_table, wide_console
from planner.report.views import picked
from planner.results import Sweep
from planner.units import format_bytes, format_duration, format_percent

Payload = dict[str, Any]
SWEEP_SCHEMA = "planner.sweep/1"


def sweep_payload(sweep: Sweep) -> Payload:
    """The document of `planner sweep`; conventions as in `planner.report.payload`."""
    found = [frontier_payload(f) for f in sweep.frontiers]
    return {
        "schema": SWEEP_SCHEMA,
        "planner_version": __version__,
        "model": str(sweep.model_path),
        **picked(sweep, "model_sha256", "hardware", "cost_source", "copies", "resident", "seed"),
        **picked(sweep, "seconds"),
        "swap": sweep.swap_mode,
        "dim": sweep.dim or None,
        "sentence": _sentence(sweep),
        "frontiers": found,
        "largest": [picked(row) for row in sweep.largest],
        "assumptions": [
            "each point is a plan replayed by the simulator: live bytes, without ONNX Runtime's "
            "fragmentation; `planner optimize` lowers and verifies one",
            "a bound holds for plans that first run the operations in one of the base orders named",
            *sweep.assumptions,
        ],
    }


def _sentence(sweep: Sweep) -> str:
    """The frontier of the largest size in a sentence."""
    frontier = sweep.frontiers[-1]
    with_plan = [p for p in frontier.points if p.plan is not None]
    start = f"The model's own peak is {format_bytes(frontier.baseline_bytes)}"
    if frontier.dims:
        start += f" at {dims_text(frontier.dims)}"
    if not with_plan:
        return f"{start}; nothing fits any of the budgets."
    least = with_plan[0]
    free = [p for p in with_plan if not frontier.slowdown(p)]
    text = f"{start}. "
    if free:
        text += f"{format_bytes(free[0].capacity_bytes, up=True)} cost no time; "
    return (
        f"{text}{format_bytes(least.capacity_bytes, up=True)}, the least budget here with a plan, cost "
        f"{format_percent(frontier.slowdown(least) or 0.0)} more time (predicted)."
    )


# -- terminal ----------------------------------------------------------------------------------


def print_sweep(payload: Payload, console: Console | None = None, *, in_full: bool = True) -> None:
    """A table for each size, and the largest sizes.

    Args:
        in_full: with the table of every size, where there are several, and all that was assumed.
    """
    out = console or wide_console()
    print_line(out, nearby(payload["model"]), "bold")
    print_line(out, payload["sentence"])
    print_line(
        out,
        f"Slowdowns and bounds are {times_of(payload['cost_source'])}; no plan in the base order of a "
        "row adds less than its bound (at least).",
    )
    shown = payload["frontiers"] if in_full or not payload["largest"] else []
    for frontier in shown:
        title = "Budgets" + (f" at {dims_text(frontier['dims'])}" if frontier["dims"] else "")
        rows = [point_row(point) for point in frontier["points"]]
        print_table(out, title, list(POINT_COLUMNS), rows)
    if payload["largest"]:
        columns = [">budget", f">largest {payload['dim']}", ">slower", ">step", "next"]
        rows = [_largest_row(row) for row in payload["largest"]]
        print_table(out, f"Largest {payload['dim']} within each budget", columns, rows)
    assumed = payload["assumptions"]
    if in_full:
        print_assumptions(out, assumed)
        return
    print_notes(out, that_matter(assumed))
    if len(shown) < len(payload["frontiers"]):
        print_row(out, "More", "-v prints the table of each size; -o FILE.html writes a page")


def _largest_row(row: Payload) -> list[object]:
    after = ""
    if row["next_size"] is not None:
        after = (
            f"{row['next_size']:,}: {'impossible' if row['next_is_impossible'] else 'none found'}"
        )
    if row["size"] is None:
        return [format_bytes(row["budget_bytes"], up=True), "none", "", "", after]
    return [
        format_bytes(row["budget_bytes"], up=True),
        f"{row['size']:,}",
        format_percent(row["slowdown"]),
        format_duration(row["time_us"]),
        after,
    ]


# -- page --------------------------------------------------------------------------------------


def write_sweep(payload: Payload, path: Path) -> None:
    """Write the page, whole or not at all."""
    figures = {"frontier": frontier_figure(payload["frontiers"])}
    if payload["largest"]:
        figures["largest"] = _largest_figure(payload)
    page = (
        environment()
        .get_template("sweep.html.j2")
        .render(
            p=payload,
            figures=list(figures),
            figures_json=embedded_json(embedded_figures(figures)),
            bokeh_js=bokeh_scripts(),
        )
    )
    with atomic_write(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _largest_figure(payload: Payload) -> Any:
    plot = budget_plot("largest", f"largest {payload['dim']}", height=320)
    rows = [row for row in payload["largest"] if row["size"] is not None]
    source = ColumnDataSource(
        {
            "budget": [row["budget_bytes"] for row in rows],
            "size": [row["size"] for row in rows],
            "said": [
                f"{format_bytes(row['budget_bytes'])}: {row['size']:,}, "
                f"+{format_percent(row['slowdown'])}"
                for row in rows
            ],
        }
    )
    plot.step("budget", "size", source=source, mode="after", line_width=2, line_color=COLORS[0])
    dots = plot.scatter("budget", "size", source=source, size=7, color=COLORS[0])
    plot.add_tools(HoverTool(renderers=[dots], tooltips=[("", "@said")]))
    byte_ticker(plot.xaxis, max((row["budget_bytes"] for row in rows), default=1))
    return plot
