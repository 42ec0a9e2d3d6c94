"""The figures of the page: memory over the steps, and live ranges, on linked axes.

Heights are bytes, the horizontal axis is the step of the schedule. Colours name categories. Hatching
marks recomputed and swapped tensors too: colour is never the only sign.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from bokeh.models import (
    BoxAnnotation,
    ColumnDataSource,
    CrosshairTool,
    HoverTool,
    NumeralTickFormatter,
    Range1d,
    Span,
)
from bokeh.plotting import figure

from planner.report.document.views import ViewDocument
from planner.units import format_bytes

CATEGORY_COLORS = {
    "parameter": "#4c78a8",
    "optimizer state": "#7b6fb0",
    "constant": "#9aa0a6",
    "input": "#3fa7a3",
    "output": "#d37295",
    "gradient": "#59a14f",
    "activation": "#f0923b",
    "temporary": "#e6c229",
    "workspace": "#b07aa1",
}
GROUP_COLORS = {
    "model": "#4c78a8",
    "optimizer": "#7b6fb0",
    "gradients": "#59a14f",
    "activations": "#f0923b",
    "workspace": "#b07aa1",
    "inputs and outputs": "#3fa7a3",
}
HATCHES = {"kept": " ", "recomputed": "right_diagonal_line", "swapped": "dot"}
_BUDGET = "#d6273b"
OUTLINE = "#808890"
_BAND = "#a8adb3"
_TOOLS = "xpan,xbox_zoom,xwheel_zoom,reset,save"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """The shared axes of one page's figures: ranges in steps and bytes, and the crosshair."""

    steps: Range1d
    live_bytes: Range1d
    arena_bytes: Range1d
    cursor: Span


def page_figures(
    views: dict[str, ViewDocument],
    *,
    budget_bytes: int | None = None,
    measured: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> dict[str, Any]:
    """Draw two figures for each view, `memory-<key>` and `ranges-<key>`, all on linked axes.

    Args:
        views: views by key, such as "before" and "after".
        measured: measured bytes at every step, by view, where there are some.
    """
    steps = max((v.steps for v in views.values()), default=0)
    top = max(
        *(v.peak_bytes for v in views.values()), *map(max, measured.values()), budget_bytes or 0, 1
    )
    axes = Axes(
        steps=Range1d(start=0, end=max(steps, 1), bounds=(0, max(steps, 1))),
        live_bytes=Range1d(start=0, end=1.08 * top),
        arena_bytes=Range1d(start=0, end=top),
        cursor=Span(dimension="height", line_color=OUTLINE, line_alpha=0.7, line_width=1),
    )
    found = {}
    for key, view in views.items():
        found[f"memory-{key}"] = _memory(view, axes, key, budget_bytes, is_measured=key in measured)
        found[f"ranges-{key}"] = _ranges(view, axes, key)
    for plot in found.values():
        byte_ticker(plot.yaxis, plot.y_range.end)  # that axis does not zoom
    return found


def byte_ticker(axis: Any, top: float) -> None:
    """Put ticks at round binary sizes from 0 to `top` on an axis of bytes."""
    step = 1 << max(0, int(top).bit_length() - 3)
    ticks = list(range(0, int(top) + 1, step))
    axis.ticker = ticks
    axis.major_label_overrides = {t: format_bytes(t).replace(".00 ", " ") for t in ticks}


def categories_of(views: dict[str, ViewDocument]) -> list[str]:
    """Return the categories with any bytes in any view, in stacking order."""
    used = {c for v in views.values() for c in v.timeline.by_category}
    return [c for c in CATEGORY_COLORS if c in used] + sorted(used - CATEGORY_COLORS.keys())


def blank_plot(name: str, *, height: int, x_label: str, y_label: str, **more: Any) -> Any:
    """Return an empty figure in the page's style: no background, for light and dark mode."""
    plot = figure(
        name=name,
        height=height,
        sizing_mode="stretch_width",
        tools=_TOOLS,
        output_backend="canvas",
        x_axis_label=x_label,
        y_axis_label=y_label,
        **more,
    )
    plot.toolbar.logo = None  # pyright: ignore[reportAttributeAccessIssue]
    plot.toolbar.autohide = True
    plot.background_fill_color = None
    plot.border_fill_color = None
    plot.outline_line_color = None
    plot.axis.minor_tick_line_color = None
    return plot


def wide_plot(
    name: str, *, height: int, x_label: str, y_label: str, x_format: str, **ranges: Range1d
) -> Any:
    """Return a `blank_plot` that zooms horizontally, aligned with the others above and below."""
    plot = blank_plot(
        name, height=height, x_label=x_label, y_label=y_label, active_drag="xbox_zoom", **ranges
    )
    plot.min_border_left = 78
    plot.xgrid.grid_line_color = None
    plot.xaxis.formatter = NumeralTickFormatter(format=x_format)
    return plot


def budget_line(plot: Any, budget_bytes: int) -> None:
    """Draw the budget across a figure of bytes."""
    plot.add_layout(
        Span(
            location=budget_bytes,
            dimension="width",
            line_color=_BUDGET,
            line_dash="dashed",
            line_width=1.8,
        )
    )


def _figure(axes: Axes, *, name: str, y_range: Range1d, height: int, what: str) -> Any:
    plot = wide_plot(
        name,
        height=height,
        x_label="step",
        y_label=what,
        x_format="0,0",
        x_range=axes.steps,
        y_range=y_range,
    )
    plot.add_tools(CrosshairTool(overlay=axes.cursor, dimensions="height", visible=False))
    return plot


def _memory(
    view: ViewDocument, axes: Axes, key: str, budget: int | None, *, is_measured: bool
) -> Any:
    """Draw live bytes at each step, stacked by category, with the budget and the peak.

    The page's script fills `areas-<key>` and `hover-<key>`, again after each zoom.
    """
    plot = _figure(
        axes, name=f"memory-{key}", y_range=axes.live_bytes, height=270, what="live bytes"
    )
    if not view.steps:
        return plot
    areas = ColumnDataSource(name=f"areas-{key}")
    for i, category in enumerate(categories_of({key: view})):
        plot.varea_step(
            x="x",
            y1=f"y{i}",
            y2=f"y{i + 1}",
            source=areas,
            step_mode="after",
            fill_color=CATEGORY_COLORS.get(category, _BAND),
            fill_alpha=0.9,
        )
    if is_measured:
        plot.step(x="x", y="seen", source=areas, mode="after", line_color=OUTLINE, line_width=1.2)
    if budget is not None:
        budget_line(plot, budget)
    plot.text(
        [view.peak_step + 0.5],
        [view.peak_bytes],
        ["▼"],
        text_color=_BUDGET,
        text_font_size="13px",
        text_align="center",
        text_baseline="bottom",
    )
    source = ColumnDataSource(name=f"hover-{key}")
    quads = plot.quad(left="left", right="right", bottom=0, top="top", alpha=0, source=source)
    tips = [("step", "@step"), ("runs", "@operation"), ("live", "@live"), ("largest", "@names")]
    plot.add_tools(
        HoverTool(
            renderers=[quads], mode="vline", tooltips=tips, attachment="horizontal", visible=False
        )
    )
    return plot


def _ranges(view: ViewDocument, axes: Axes, key: str) -> Any:
    """Draw live ranges as rectangles, step by offset in one region; persistent tensors lie at the
    bottom.

    The page's script fills the sources `ranges-<key>-<fate>`, from the data of the lists of residents.
    """
    plot = _figure(
        axes, name=f"ranges-{key}", y_range=axes.arena_bytes, height=330, what="offset in the arena"
    )
    steps, floor = view.steps, view.persistent_bytes
    if floor:
        plot.quad(
            left=0, right=steps, bottom=0, top=floor, fill_color="#4c78a8", fill_alpha=0.35,
            line_color=None,
        )  # fmt: skip
    if not steps:
        return plot
    arena = view.one_region
    axes.arena_bytes.end = max(axes.arena_bytes.end, 1.04 * arena.bytes)
    fates = {r.fate for r in view.live_ranges} | ({"kept"} if arena.workspace else set())
    for fate, hatch in HATCHES.items():
        if fate in fates:
            _rectangles(plot, f"ranges-{key}-{fate}", fate, hatch)
    peak = view.peak_step
    plot.add_layout(BoxAnnotation(left=peak, right=peak + 1, fill_color=_BUDGET, fill_alpha=0.35))
    return plot


def _rectangles(plot: Any, name: str, fate: str, hatch: str) -> None:
    source = ColumnDataSource(name=name)
    quads = plot.quad(
        left="left",
        right="right",
        bottom="bottom",
        top="top",
        source=source,
        fill_color="color",
        fill_alpha=0.55 if fate == "kept" else 0.9,
        line_color="white",
        line_alpha="outline",
        line_width=0.5,
        hatch_pattern=hatch,
        hatch_color="black",
        hatch_alpha=0.4,
        hatch_scale=7,
        hatch_weight=1,
        nonselection_fill_alpha=0.15,
        nonselection_hatch_alpha=0.1,
    )
    tips = [("tensor", "@name"), ("bytes", "@size"), ("is", "@what"), ("steps", "@span")]
    plot.add_tools(HoverTool(renderers=[quads], tooltips=tips, visible=False))
