"""The report page: one self-contained HTML file that opens anywhere.

No request leaves the page: scripts and styles are inline, and its content security policy forbids
every other source. Text from a model is escaped by the template, and in the embedded JSON.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
from bokeh.document import Document
from bokeh.resources import Resources
from markupsafe import Markup

from planner.onnxio.save import atomic_write
from planner.report.document.analysis import AnalyzeDocument
from planner.report.document.outcome import DecisionRow, OptimizeDocument
from planner.report.narrative import paged, times_of
from planner.report.page.budgets import frontier_figure
from planner.report.page.columns import view_columns
from planner.report.page.figures import (
    CATEGORY_COLORS,
    GROUP_COLORS,
    HATCHES,
    categories_of,
    page_figures,
)
from planner.report.page.lanes import KIND_NAMES, kinds_of, time_figures, total_us
from planner.report.plain import printable
from planner.units import counted, format_bytes, format_duration, format_percent, format_share

Report = OptimizeDocument | AnalyzeDocument
ROWS_SHOWN = 100
_BLANK = Markup('<span class="none">–</span>')


def write_page(document: Report, path: Path) -> None:
    """Write the page of a document atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(render_page(document), encoding="utf-8")


def drawn(document: Report) -> dict[str, Any]:
    """Draw a document's figures as Bokeh embeds them, except that of other budgets, which may be
    missing.

    They take most of a page's time.
    """
    views = document.views
    budget, measured = None, {}
    if isinstance(document, OptimizeDocument):
        budget, measured = document.headline.budget_bytes, document.measured_lines
    figures = page_figures(views, budget_bytes=budget, measured=measured)
    last, last_view = list(views.items())[-1]
    return embedded_figures(figures | time_figures(last_view, last, budget_bytes=budget))


def render_page(document: Report, figures: dict[str, Any] | None = None) -> str:
    """Render the page of a document.

    Args:
        figures: the result of `drawn`, where it is already known.
    """
    figures = figures or drawn(document)
    optimized = document if isinstance(document, OptimizeDocument) else None
    views, measured = document.views, optimized.measured_lines if optimized else {}
    last, last_view = list(views.items())[-1]
    is_timed = total_us(last_view) > 0
    fates = {r.fate for view in views.values() for r in view.live_ranges}
    preview = document.budget_preview
    if preview is not None:
        frontier = frontier_figure([preview.frontier], chosen=_chosen(document), height=320)
        more = embedded_figures({"frontier": frontier}, document="budgets")
        figures = {
            "docs": figures["docs"] | more["docs"],
            "items": figures["items"] + more["items"],
        }
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            p=document,
            optimizes=optimized is not None,
            views=views,
            titles={"before": "Before", "after": "After", "view": "The model as it is"},
            measured=measured,
            categories=categories_of(views),
            colors=CATEGORY_COLORS,
            groups=GROUP_COLORS,
            timed=last if is_timed else None,
            kind_names=KIND_NAMES,
            sections=_sections(document, is_timed=is_timed),
            kinds=kinds_of(last_view) if is_timed else [],
            fates=[fate for fate in HATCHES if fate in fates],
            rows_shown=ROWS_SHOWN,
            steps_json=embedded_json(
                {
                    key: view_columns(view, is_timed=key == last, measured=measured.get(key))
                    for key, view in views.items()
                }
            ),
            decisions_json=embedded_json(
                [_row(d) for d in optimized.decisions] if optimized else []
            ),
            figures_json=embedded_json(figures),
            bokeh_js=bokeh_scripts(),
        )
    )


def embedded_json(value: object) -> Markup:
    """Return JSON for a `<script type="application/json">`: nothing in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)


def embedded_figures(figures: dict[str, Any], *, document: str = "page") -> dict[str, Any]:
    """Make the argument of `Bokeh.embed.embed_items`: each figure goes into the element
    `figure-<name>`.

    Args:
        document: the name of the Bokeh document, unique in a page.
    """
    made = Document()
    with made.models.freeze():  # otherwise every root triggers a search of all models
        for root in figures.values():
            made.add_root(root)
    roots = {root.id: f"figure-{name}" for name, root in figures.items()}
    item = {"docid": document, "roots": roots, "root_ids": list(roots)}
    return {"docs": {document: made.to_json(deferred=False)}, "items": [item]}


def bokeh_scripts() -> list[Markup]:
    """Return Bokeh's own scripts, to embed in the page."""
    resources = Resources(mode="inline", components=["bokeh"], log_level="error")
    return [Markup(js) for js in resources.js_raw]


def _sections(document: Report, *, is_timed: bool) -> list[tuple[str, str]]:
    """List (id, title) of the page's sections."""
    preview = document.budget_preview
    optimizes = isinstance(document, OptimizeDocument)
    has = [
        ("memory", "Memory", True),
        ("ranges", "Live ranges", True),
        ("time", "Time", is_timed),
        ("peak", "Peak", True),
        ("decisions-title", "Decisions", optimizes),
        ("budgets", "Other budgets" if optimizes else "Budgets", preview is not None),
        ("binds", "What binds", preview is not None and preview.binds is not None),
        ("next", "Next", optimizes and bool(document.next_steps)),
        ("verification", "Verification", optimizes),
        ("run", "How to run it", optimizes),
        ("trust", "How obtained", True),
    ]
    return [(id_, title) for id_, title, there in has if there]


def _chosen(document: Report) -> tuple[int, float] | None:
    """Return the budget and slowdown of the plan among the frontier's points; None where it is not
    there."""
    preview = document.budget_preview
    if preview is None or isinstance(document, AnalyzeDocument):
        return None
    points = ((budget, slowdown) for budget, slowdown, _ in preview.frontier.planned)
    return next((p for p in points if p[0] == document.headline.budget_bytes), None)


def _row(d: DecisionRow) -> list[object]:
    """Return a decision for the table's script: pairs of (shown text, sort key)."""
    costs = (d.cost_us, d.recompute_us, d.swap_us)
    return [
        [d.action, d.action],
        [printable(d.tensor), d.tensor],
        [format_bytes(d.bytes), d.bytes],
        [d.category, d.category],
        [f"[{d.start:,}, {d.end:,})", d.start],
        *(["–", -1.0] if us is None else [format_duration(us), us] for us in costs),
        [printable(d.why), d.why],
    ]


def _budget(value: int | None) -> Markup:
    """Format a size that someone may type as a budget: rounded up."""
    return _size(value, up=True)


def _size(value: int | None, up: bool = False) -> Markup:
    if value is None:
        return _BLANK
    text, exact = format_bytes(value, up=up), f"{value:,} bytes"
    return Markup('<data value="{}" title="{}">{}</data>').format(value, exact, text)


def _duration(value: float | None) -> Markup:
    if value is None:
        return _BLANK
    return _data(value, format_duration(value))


def _ratio(value: float | None) -> Markup:
    if value is None:
        return _BLANK
    return _data(value, f"×{value:.3f}")


def _data(value: float, text: str) -> Markup:
    """Mark a text up as that of a number."""
    return Markup('<data value="{}">{}</data>').format(value, text)


def _share(part: float, whole: float) -> str:
    """Return `part / whole` as a CSS length, within 0% and 100%."""
    return f"{100 * min(max(part / whole, 0.0), 1.0):.2f}%" if whole else "0%"


def environment() -> jinja2.Environment:
    """Return the environment of this folder's templates, with their filters."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("planner.report.page"),
        autoescape=True,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(
        size=_size,
        budget=_budget,
        budget_share=format_share,
        bytes=format_bytes,
        duration=_duration,
        ratio=_ratio,
        percent=format_percent,
        count=lambda value: _data(value, f"{value:,}"),
        counted=lambda value, *words: _data(value, counted(value, *words)),
        paged=lambda value: _data(value, paged(value)),
        difference="{:.3g}".format,
        plain=printable,
        times=times_of,
    )
    environment.globals["share"] = _share
    return environment
