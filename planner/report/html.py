"""The page: one HTML file that opens anywhere, with everything it needs inside.

No request leaves the page: scripts and styles are inline, and its content security policy forbids
every other source. Text from a model is escaped by the template, and in the embedded JSON.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from bokeh.document import Document
from bokeh.resources import Resources
from markupsafe import Markup

from planner.onnxio.save import atomic_write
from planner.report.figures import (
    CATEGORY_COLORS,
    GROUP_COLORS,
    HATCHES,
    categories_of,
    page_figures,
)
from planner.report.frontier_figure import frontier_figure
from planner.report.lanes import KIND_NAMES, kinds_of, time_figures
from planner.report.narrative import times_of
from planner.report.pagedata import view_columns
from planner.report.payload import ANALYZE_SCHEMA, analysis_payload, optimize_payload
from planner.report.plain import printable
from planner.results import Analysis, OptimizeResult
from planner.units import format_bytes, format_duration, format_percent, format_share

Payload = dict[str, Any]
ROWS_SHOWN = 100
_BLANK = Markup('<span class="none">–</span>')


def write_report(result: OptimizeResult | Analysis, path: Path) -> None:
    """Write the page of `result` to `path`, whole or not at all."""
    with atomic_write(path) as temporary:
        temporary.write_text(page_of(result), encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What the page shows of the model before and after, which takes most of the time to draw.

    Attributes:
        views: the model, as it is and as planned.
        measured: measured lines of each.
        figures: of memory, live ranges and time, as Bokeh embeds them.
        is_timed: operations and copies are drawn against time.
    """

    views: dict[str, Payload]
    measured: dict[str, Any]
    figures: Payload
    is_timed: bool


def drafted(payload: Payload) -> Draft:
    """The figures of an optimize or analyze document but that of other budgets, which may be missing."""
    if payload["schema"] == ANALYZE_SCHEMA:
        views, budget, measured = {"view": payload["view"]}, None, {}
    else:
        views = {"before": payload["before"], "after": payload["after"]}
        budget = payload["headline"]["budget_bytes"]
        measured = _measured_lines(payload)
    figures = page_figures(views, budget_bytes=budget, measured=measured)
    last, last_view = list(views.items())[-1]
    timed = time_figures(last_view, last, budget_bytes=budget)
    return Draft(
        views=views,
        measured=measured,
        figures=embedded_figures(figures | timed),
        is_timed=bool(timed),
    )


def draft_of(result: OptimizeResult) -> Draft:
    """`drafted`, of a result whose other budgets are still looked at."""
    return drafted(optimize_payload(result))


def page_of(result: OptimizeResult | Analysis, draft: Draft | None = None) -> str:
    """The page of `result`.

    Args:
        draft: what was drawn of it already.
    """
    analysed = isinstance(result, Analysis)
    return render_page(analysis_payload(result) if analysed else optimize_payload(result), draft)


def render_page(payload: Payload, draft: Draft | None = None) -> str:
    """The page of an optimize or analyze document.

    Args:
        draft: what was drawn of it already.
    """
    draft = draft or drafted(payload)
    views, measured, figures = draft.views, draft.measured, draft.figures
    last, last_view = list(views.items())[-1]
    preview = payload["budget_preview"]
    if preview is not None:
        frontier = frontier_figure([preview["frontier"]], chosen=_chosen(payload), height=320)
        more = embedded_figures({"frontier": frontier}, document="budgets")
        figures = {
            "docs": figures["docs"] | more["docs"],
            "items": figures["items"] + more["items"],
        }
    decisions = payload.get("decisions", [])
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            p=payload,
            views=views,
            titles={"before": "Before", "after": "After", "view": "The model as it is"},
            measured=measured,
            categories=categories_of(views),
            colors=CATEGORY_COLORS,
            groups=GROUP_COLORS,
            timed=last if draft.is_timed else None,
            kind_names=KIND_NAMES,
            sections=_sections(payload, is_timed=draft.is_timed),
            kinds=kinds_of(last_view) if draft.is_timed else [],
            fates=[f for f in HATCHES if any(_has_fate(v, f) for v in views.values())],
            largest=sorted(decisions, key=lambda d: -d["bytes"])[:ROWS_SHOWN],
            rows_shown=ROWS_SHOWN,
            steps_json=embedded_json(
                {
                    key: view_columns(view, is_timed=key == last, measured=measured.get(key))
                    for key, view in views.items()
                }
            ),
            decisions_json=embedded_json([_row(d) for d in decisions]),
            figures_json=embedded_json(figures),
            bokeh_js=bokeh_scripts(),
        )
    )


def embedded_json(value: object) -> Markup:
    """JSON for a `<script type="application/json">`: nothing in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)


def embedded_figures(figures: dict[str, Any], *, document: str = "page") -> Payload:
    """What `Bokeh.embed.embed_items` takes: each figure goes into the element `figure-<name>`.

    Args:
        document: its name, of which there is one in a page.
    """
    made = Document()
    with made.models.freeze():  # else every root has all models looked through again
        for root in figures.values():
            made.add_root(root)
    roots = {root.id: f"figure-{name}" for name, root in figures.items()}
    item = {"docid": document, "roots": roots, "root_ids": list(roots)}
    return {"docs": {document: made.to_json(deferred=False)}, "items": [item]}


def bokeh_scripts() -> list[Markup]:
    """Bokeh itself, to stand in the page."""
    resources = Resources(mode="inline", components=["bokeh"], log_level="error")
    return [Markup(js) for js in resources.js_raw]


def _has_fate(view: Payload, fate: str) -> bool:
    return any(r["fate"] == fate for r in view["live_ranges"])


def _sections(payload: Payload, *, is_timed: bool) -> list[tuple[str, str]]:
    """(id, title) of what the page has."""
    optimizes, preview = "plan" in payload, payload["budget_preview"]
    has = [
        ("memory", "Memory", True),
        ("ranges", "Live ranges", True),
        ("time", "Time", is_timed),
        ("peak", "Peak", True),
        ("decisions-title", "Decisions", optimizes),
        ("budgets", "Other budgets" if optimizes else "Budgets", preview is not None),
        ("binds", "What binds", preview is not None and preview["binds"] is not None),
        ("next", "Next", optimizes and bool(payload["next_steps"])),
        ("verification", "Verification", optimizes),
        ("run", "How to run it", optimizes),
        ("trust", "How obtained", True),
    ]
    return [(id_, title) for id_, title, there in has if there]


def _chosen(payload: Payload) -> tuple[int, float] | None:
    """Budget and slowdown of the plan, among the points of the frontier."""
    budget = payload["headline"].get("budget_bytes")
    points = payload["budget_preview"]["frontier"]["points"]
    here = [p for p in points if p["budget_bytes"] == budget and p["peak_bytes"] is not None]
    return (budget, here[0]["slowdown"]) if here else None


def _row(decision: Payload) -> list[object]:
    """A decision as the table's script wants it: what is shown, then what is sorted by."""
    d = decision
    return [
        [d["action"], d["action"]],
        [printable(d["tensor"]), d["tensor"]],
        [format_bytes(d["bytes"]), d["bytes"]],
        [d["category"], d["category"]],
        [f"[{d['start']:,}, {d['end']:,})", d["start"]],
        *[[_duration_text(d[key]), _sortable(d[key])] for key in _COSTS],
        [printable(d["why"]), d["why"]],
    ]


_COSTS = ("cost_us", "recompute_us", "swap_us")


def _sortable(value: float | str | None) -> float:
    return value if isinstance(value, int | float) else -1.0


def _duration_text(value: float | str | None) -> str:
    return "–" if value is None else format_duration(float(value))


def _measured_lines(payload: Payload) -> dict[str, list[int]]:
    """Live bytes that were measured at every step, where the executed nodes are the schedule's."""
    found: dict[str, list[int]] = {}
    checks = payload["verification"]["memory"] if payload["verification"] else []
    for key, model in (("before", "original"), ("after", "rewritten")):
        names = payload[key]["timeline"]["operation"]
        for check in sorted(checks, key=lambda c: c["options"] != "recommended"):
            if check["model"] == model and check["per_node"]["node"] == names and key not in found:
                found[key] = check["per_node"]["measured_bytes"]
    return found


def _budget(value: int | None) -> Markup:
    """A size that someone may type as a budget: rounded up."""
    return _size(value, up=True)


def _size(value: int | None, up: bool = False) -> Markup:
    if value is None:
        return _BLANK
    text, exact = format_bytes(value, up=up), f"{value:,} bytes"
    return Markup('<data value="{}" title="{}">{}</data>').format(value, exact, text)


def _duration(value: float | str | None) -> Markup:
    if value is None:
        return _BLANK
    return Markup('<data value="{}">{}</data>').format(value, format_duration(float(value)))


def _ratio(value: float | str | None) -> Markup:
    if value is None:
        return _BLANK
    return Markup('<data value="{}">×{:.3f}</data>').format(value, float(value))


def _difference(value: float | str) -> str:
    return "0" if value == 0 else f"{float(value):.3g}"


def _share(part: float, whole: float) -> str:
    """`part / whole` as a CSS length, within 0% and 100%."""
    return f"{100 * min(max(part / whole, 0.0), 1.0):.2f}%" if whole else "0%"


def environment() -> jinja2.Environment:
    """The templates of this folder, and the filters that they use."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("planner.report"),
        autoescape=True,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(
        size=_size,
        budget=_budget,
        budget_share=lambda value: format_share(float(value)),
        bytes=format_bytes,
        duration=_duration,
        ratio=_ratio,
        percent=lambda value: format_percent(float(value)),
        count=lambda value: Markup('<data value="{}">{:,}</data>').format(value, value),
        difference=_difference,
        plain=printable,
        times=times_of,
    )
    environment.globals["share"] = _share
    return environment
