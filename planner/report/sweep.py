"""What `planner sweep` shows: one document, as text for a terminal, and as a page."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from bokeh.models import ColumnDataSource, HoverTool, NumeralTickFormatter, Span
from bokeh.plotting import figure
from rich.console import Console

from planner import __version__
from planner.onnxio.save import atomic_write
from planner.report.figures import byte_ticker
from planner.report.html import bokeh_scripts, embedded_figures, embedded_json, environment
from planner.report.plain import printable
from planner.report.terminal import print_assumptions, print_line, print_table, wide_console
from planner.report.views import number
from planner.results import Frontier, Largest, Sweep
from planner.units import format_bytes, format_duration, format_percent

Payload = dict[str, Any]
SWEEP_SCHEMA = "planner.sweep/1"

_COLORS = ("#2f6fb3", "#c4572c", "#3f8f5b", "#8b5fb0", "#b38b1d", "#2d8f93", "#b04a78", "#6b7280")
_DASHES = ("solid", "dashed", "dotdash", "dotted")


def sweep_payload(sweep: Sweep) -> Payload:
    """The document of `planner sweep`; conventions as in `planner.report.payload`."""
    found = [_frontier(f) for f in sweep.frontiers]
    return {
        "schema": SWEEP_SCHEMA,
        "planner_version": __version__,
        "model": str(sweep.model_path),
        "model_sha256": sweep.model_sha256,
        "hardware": sweep.hardware,
        "cost_source": sweep.cost_source,
        "swap": sweep.swap_mode,
        "seed": sweep.seed,
        "seconds": sweep.seconds,
        "dim": sweep.dim or None,
        "sentence": _sentence(sweep),
        "frontiers": found,
        "largest": [_largest(row) for row in sweep.largest],
        "assumptions": [
            "each point is a plan replayed by the simulator: live bytes, without ONNX Runtime's "
            "fragmentation; `planner optimize` lowers and verifies one",
            "a bound holds for plans that first run the operations in one of the base orders named",
            *sweep.assumptions,
        ],
    }


def _frontier(frontier: Frontier) -> Payload:
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
                "budget_share": p.capacity_bytes / frontier.baseline_bytes,
                "impossible": p.is_impossible,
                "slowdown": frontier.slowdown(p),
                "least_slowdown": frontier.least_slowdown(p),
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


def _largest(row: Largest) -> Payload:
    return {
        "budget_bytes": row.budget_bytes,
        "size": row.size,
        "slowdown": row.slowdown,
        "time_us": number(row.time_us),
        "next_size": row.next_size,
        "next_is_impossible": row.next_is_impossible,
    }


def _sentence(sweep: Sweep) -> str:
    """The frontier of the largest size in a sentence."""
    frontier = sweep.frontiers[-1]
    with_plan = [p for p in frontier.points if p.plan is not None]
    start = f"The model's own peak is {format_bytes(frontier.baseline_bytes)}"
    if frontier.dims:
        start += f" at {_dims(frontier.dims)}"
    if not with_plan:
        return f"{start}; nothing fits any of the budgets."
    least = with_plan[0]
    free = [p for p in with_plan if not frontier.slowdown(p)]
    text = f"{start}. "
    if free:
        text += f"{format_bytes(free[0].capacity_bytes)} cost no time; "
    return (
        f"{text}{format_bytes(least.capacity_bytes)}, the least budget here with a plan, cost "
        f"{format_percent(frontier.slowdown(least) or 0.0)} more time (predicted)."
    )


def _dims(dims: dict[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in dims.items())


# -- terminal ----------------------------------------------------------------------------------


def print_sweep(payload: Payload, console: Console | None = None) -> None:
    """A table for each size, and the largest sizes."""
    out = console or wide_console()
    print_line(out, payload["model"], "bold")
    print_line(out, payload["sentence"])
    for frontier in payload["frontiers"]:
        title = "Budgets" + (f" at {_dims(frontier['dims'])}" if frontier["dims"] else "")
        columns = [">budget", ">share", ">peak", ">slower", ">at least", ">recomputed", ">copied"]
        rows = [_row(point) for point in frontier["points"]]
        print_table(out, title, [*columns, "found by", "base order"], rows)
    if payload["largest"]:
        columns = [">budget", f">largest {payload['dim']}", ">slower", ">step", "next"]
        rows = [_largest_row(row) for row in payload["largest"]]
        print_table(out, f"Largest {payload['dim']} within each budget", columns, rows)
    print_assumptions(out, payload["assumptions"])


def _row(point: Payload) -> list[object]:
    budget = [format_bytes(point["budget_bytes"]), format_percent(point["budget_share"])]
    least = point["least_slowdown"]
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


def _largest_row(row: Payload) -> list[object]:
    after = ""
    if row["next_size"] is not None:
        after = (
            f"{row['next_size']:,}: {'impossible' if row['next_is_impossible'] else 'none found'}"
        )
    if row["size"] is None:
        return [format_bytes(row["budget_bytes"]), "none", "", "", after]
    return [
        format_bytes(row["budget_bytes"]),
        f"{row['size']:,}",
        format_percent(row["slowdown"]),
        format_duration(row["time_us"]),
        after,
    ]


# -- page --------------------------------------------------------------------------------------


def write_sweep(payload: Payload, path: Path) -> None:
    """Write the page, whole or not at all."""
    figures = {"frontier": _frontier_figure(payload)}
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


def _plot(name: str, what: str, height: int = 420) -> Any:
    plot = figure(
        name=name,
        height=height,
        sizing_mode="stretch_width",
        tools="xpan,xbox_zoom,xwheel_zoom,reset,save",
        output_backend="canvas",
        x_axis_label="budget",
        y_axis_label=what,
    )
    plot.toolbar.logo = None  # pyright: ignore[reportAttributeAccessIssue]
    return plot


def _frontier_figure(payload: Payload) -> Any:
    """Slowdown over budget: a line for what was found, down to the bound a band."""
    plot = _plot("frontier", "time added")
    plot.yaxis.formatter = NumeralTickFormatter(format="0.[0]%")
    lines = []
    top = max(f["baseline_peak_bytes"] for f in payload["frontiers"])
    for i, frontier in enumerate(payload["frontiers"]):
        points = [p for p in frontier["points"] if p["peak_bytes"] is not None]
        label = _dims(frontier["dims"]) or "time added"
        color, dash = _COLORS[i % len(_COLORS)], _DASHES[i % len(_DASHES)]
        source = ColumnDataSource(
            {
                "budget": [p["budget_bytes"] for p in points],
                "slowdown": [p["slowdown"] for p in points],
                "least": [p["least_slowdown"] for p in points],
                "said": [
                    f"{label}: {format_bytes(p['budget_bytes'])}: +{format_percent(p['slowdown'])}, "
                    f"at least +{format_percent(p['least_slowdown'])}"
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
    plot.add_tools(HoverTool(renderers=lines, tooltips=[("", "@said")]))
    plot.legend.location = "top_right"
    byte_ticker(plot.xaxis, top)
    return plot


def _band(points: list[Payload]) -> dict[str, list[float]]:
    """From what was found down to the bound: a plan holds for larger budgets, a bound for smaller."""
    x, low, high = [], [], []
    for here, after in itertools.pairwise(points):
        x += [here["budget_bytes"], after["budget_bytes"]]
        low += [after["least_slowdown"]] * 2
        high += [here["slowdown"]] * 2
    return {"x": x, "y1": low, "y2": high}


def _largest_figure(payload: Payload) -> Any:
    plot = _plot("largest", f"largest {payload['dim']}", height=320)
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
    plot.step("budget", "size", source=source, mode="after", line_width=2, line_color=_COLORS[0])
    dots = plot.scatter("budget", "size", source=source, size=7, color=_COLORS[0])
    plot.add_tools(HoverTool(renderers=[dots], tooltips=[("", "@said")]))
    byte_ticker(plot.xaxis, max((row["budget_bytes"] for row in rows), default=1))
    return plot
