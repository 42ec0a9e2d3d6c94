"""Operations and copies on a time axis, and the live bytes below them.

The page's script fills the sources `lanes-<key>-<kind>`, one row for each step that takes time:
operations in the first lane (recomputed ones hatched), copies each way in lanes of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from bokeh.models import ColumnDataSource, HoverTool, Range1d

from planner.report.document.views import ViewDocument
from planner.report.page.figures import OUTLINE, budget_line, byte_ticker, wide_plot

LANES = {"compute": 2, "recompute": 2, "copy_out": 1, "copy_in": 0}
KINDS = tuple(LANES)
KIND_NAMES = {
    "compute": "operations",
    "recompute": "recomputed operations",
    "copy_out": "copies to the host",
    "copy_in": "copies from the host",
}
LANE_NAMES = {2: "operations", 1: "to host", 0: "from host"}
COLORS = {"compute": "#7d8fa8", "recompute": "#f0923b", "copy_out": "#8b5fb0", "copy_in": "#2d8f93"}
HATCHES = {
    "compute": " ",
    "recompute": "right_diagonal_line",
    "copy_out": "horizontal_line",
    "copy_in": "vertical_line",
}
_UNITS = ((1e6, "s"), (1e3, "ms"), (1.0, "µs"))


def time_figures(view: ViewDocument, key: str, *, budget_bytes: int | None) -> dict[str, Any]:
    """Draw `lanes-<key>` and `clock-<key>` on one axis of time; none where no step takes time."""
    whole_us = total_us(view)
    if whole_us <= 0:
        return {}
    scale_us, unit = time_unit(whole_us)
    clock = Range1d(start=0, end=whole_us / scale_us, bounds=(0, whole_us / scale_us))
    plot = partial(wide_plot, x_label=f"time, {unit}", x_format="0,0.[00]", x_range=clock)
    return {
        f"lanes-{key}": _lanes(view, key, plot),
        f"clock-{key}": _live(view, key, plot, budget_bytes),
    }


def total_us(view: ViewDocument) -> float:
    """Return the time from the start of the first step to the end of the last one, in microseconds."""
    line = view.timeline
    return max(map(sum, zip(line.start_us, line.duration_us, strict=True)), default=0.0)


def time_unit(whole_us: float) -> tuple[float, str]:
    """Return (microseconds in a unit, its name) of the largest unit that fits into `whole_us`."""
    return next(((us, name) for us, name in _UNITS if whole_us >= us), _UNITS[-1])


def kinds_of(view: ViewDocument) -> list[str]:
    """Return the kinds of slices that the view has, in the order of `LANES`."""
    return [kind for kind in KINDS if view.time_by_kind_us[kind] > 0]


def _lanes(view: ViewDocument, key: str, over_time: Callable[..., Any]) -> Any:
    """Draw the steps in their lanes; `over_time` makes an empty figure."""
    kinds = kinds_of(view)
    lowest = min(LANES[kind] for kind in kinds)
    height, y_range = 70 + 45 * (3 - lowest), Range1d(start=lowest, end=3)
    plot = over_time(f"lanes-{key}", height=height, y_label="", y_range=y_range)
    lanes = range(lowest, 3)
    plot.yaxis.ticker = [lane + 0.5 for lane in lanes]
    plot.yaxis.major_label_overrides = {lane + 0.5: LANE_NAMES[lane] for lane in lanes}
    plot.ygrid.grid_line_color = None
    for kind in kinds:
        source = ColumnDataSource(name=f"lanes-{key}-{kind}")
        quads = plot.quad(
            left="left",
            right="right",
            bottom="bottom",
            top="top",
            source=source,
            fill_color=COLORS[kind],
            line_color="white",
            line_alpha=0.25,
            line_width=0.5,
            hatch_pattern=HATCHES[kind],
            hatch_color="black",
            hatch_alpha=0.45,
            hatch_scale=6,
            hatch_weight=1,
        )
        tips = [("runs", "@name"), ("is", "@what"), ("time", "@time"), ("live", "@live")]
        plot.add_tools(HoverTool(renderers=[quads], tooltips=tips, visible=False))
    return plot


def _live(
    view: ViewDocument, key: str, over_time: Callable[..., Any], budget_bytes: int | None
) -> Any:
    """Draw live bytes over time."""
    top = 1.08 * max(view.peak_bytes, budget_bytes or 0, 1)
    y_range = Range1d(start=0, end=top)
    plot = over_time(f"clock-{key}", height=170, y_label="live bytes", y_range=y_range)
    plot.varea_step(
        x="x",
        y1=0,
        y2="live",
        source=ColumnDataSource(name=f"elapsed-{key}"),
        step_mode="after",
        fill_color=OUTLINE,
        fill_alpha=0.55,
    )
    if budget_bytes is not None:
        budget_line(plot, budget_bytes)
    byte_ticker(plot.yaxis, top)
    return plot
