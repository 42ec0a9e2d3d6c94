"""The page in a browser: `python -m reports.page` writes `page.md`, and the pictures in `page/`.

Training graphs of three sizes are built (PyTorch needed) and planned; each page is opened in Chromium
(Debian's `chromium`, driven by playwright) and timed, from the first byte to where it answers clicks.
"""

from __future__ import annotations

import io
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from playwright.sync_api import Browser, Page, ViewportSize
from rich.console import Console

from models.build import main as build
from planner import analyze, optimize
from planner.files.structuring import json_text
from planner.report.document import D, Document
from planner.report.document.analysis import analyze_document
from planner.report.document.outcome import optimize_document
from planner.report.page import render_page, write_page
from planner.report.terminal.brief import print_analysis_brief, print_optimize_brief
from reports.shared import FOLDER, ZOO, chromium, program

SAMPLE = ZOO / "gpt.onnx"
LAYERS = (5, 25, 108)
NET = ["--batch", "4", "--seq", "64", "--width", "64", "--heads", "4", "--vocabulary", "512"]
RUNS = 3
PICTURES = FOLDER / "page"
PARTS = ("ranges", "peak", "budgets")
FLAGS = ("--disable-gpu", "--no-first-run", "--disable-background-networking")
_LOOK = ViewportSize(width=1180, height=820)
_TALL = ViewportSize(width=1180, height=1480)


def measured(layers: int, folder: Path, browser: Browser) -> dict[str, Any]:
    """Measure the sizes of one graph and of its page, and the speed of the page."""
    model, report = folder / f"gpt{layers}.onnx", folder / f"gpt{layers}.html"
    build(["gpt2", "--layers", str(layers), *NET, "-o", str(model)])
    result = optimize(
        model, budget="60%", swap="none", report_path=report, force=True, progress=_progress
    )
    start = time.perf_counter()
    write_page(optimize_document(result), report)
    written_s = time.perf_counter() - start
    times = [_times(browser, report) for _ in range(RUNS)]
    return {
        "layers": layers,
        "tensors": len(result.after.graph.tensors),
        "steps": len(result.after.timeline.order),
        "buffers": len(result.before.timeline.ranges) + len(result.after.timeline.ranges),
        "decisions": len(result.plan.decisions),
        "mb": report.stat().st_size / 1e6,
        "written_s": written_s,
        **{name: min(row[name] for row in times) for name in times[0]},
    }


def _times(browser: Browser, report: Path) -> dict[str, float]:
    page = _opened(browser, report)
    ready_s = page.evaluate("performance.now()") / 1e3
    click_s = _after(page, lambda: page.fill("#step-at", "7"))
    search_s = _after(page, lambda: page.fill("#decisions-search", "gelu"))
    sort_s = _after(page, lambda: page.click("#decisions th:nth-child(5) button"))
    page.close()
    return {"ready_s": ready_s, "step_s": click_s, "search_s": search_s, "sort_s": sort_s}


def _opened(browser: Browser, report: Path, **options: Any) -> Page:
    page = browser.new_page(viewport=_LOOK, **options)
    page.goto(report.as_uri())
    page.wait_for_selector("html[data-ready=true]", timeout=60_000)
    return page


def _after(page: Page, act: Callable[[], Any]) -> float:
    """Return the seconds until a change is painted."""
    start = time.perf_counter()
    act()
    page.evaluate("new Promise((r) => requestAnimationFrame(() => setTimeout(r, 0)))")
    return time.perf_counter() - start


def pictures(browser: Browser, folder: Path) -> None:
    """Take pictures of the sample's page, and of the terminal's output."""
    PICTURES.mkdir(exist_ok=True)
    report = folder / "gpt.report.html"
    # planned under the name that a user would type
    model = folder / SAMPLE.name
    for file in SAMPLE.parent.glob(f"{SAMPLE.stem}.*"):
        shutil.copyfile(file, folder / file.name)
    result = optimize(
        model,
        budget="60%",
        output=folder / "gpt.planned.onnx",
        plan_path=folder / "gpt.plan.json",
        report_path=report,
        progress=_progress,
    )
    shown = _renamed(optimize_document(result), folder)
    report.write_text(render_page(shown), encoding="utf-8")
    for scheme in ("light", "dark"):
        page = _opened(browser, report, color_scheme=scheme)
        page.set_viewport_size(_TALL)
        page.wait_for_timeout(500)
        page.screenshot(path=PICTURES / f"report-{scheme}.png")
        page.set_viewport_size(_LOOK)
        if scheme == "light":
            for part in PARTS:
                page.evaluate("(id) => document.getElementById(id).scrollIntoView()", part)
                page.wait_for_timeout(500)
                page.screenshot(path=PICTURES / f"{part}-{scheme}.png")
        page.close()
    analysis = _renamed(analyze_document(analyze(model, progress=_progress)), folder)
    _terminal("analyze", "planner analyze gpt.onnx", print_analysis_brief, analysis)
    title = "planner optimize gpt.onnx --budget 60%"
    _terminal("optimize", title, print_optimize_brief, shown)


def _renamed(document: D, folder: Path) -> D:
    """Return the document without the name of its folder."""
    text = json_text(document).replace(f"{folder}/", "")
    return msgspec.json.decode(text, type=type(document))


def _terminal(name: str, title: str, show: Callable[..., None], document: Document) -> None:
    console = Console(
        record=True, width=112, highlight=False, markup=False, emoji=False, file=io.StringIO(),
        force_terminal=True,
    )  # fmt: skip
    show(document, console)
    svg = re.sub(r"@font-face \{.*?\}\n", "", console.export_svg(title=title), flags=re.DOTALL)
    # no font is fetched
    (PICTURES / f"{name}.svg").write_text(svg, encoding="utf-8")


def table(rows: list[dict[str, Any]], version: str) -> str:
    """Return the report."""
    lines = [
        "# The page, measured",
        "",
        "Written by `python -m reports.page`: training graphs of GPT-2's form with some layers, each",
        "planned at 60% of its peak by recompute. *Interactive*: from the start of the navigation until",
        "all figures are drawn and clicks are answered. *Step*, *search*, *sort*: until the list of",
        "residents, and the table of decisions, are painted anew. The least of "
        f"{RUNS} runs in headless",
        f"Chromium {version}, two cores without a GPU.",
        "",
        "| layers | tensors | steps | buffers drawn | decisions | HTML, MB | written, s | interactive, s "
        "| step, s | search, s | sort, s |",
        "|" + "---:|" * 11,
    ]
    for r in rows:
        lines.append(
            f"| {r['layers']} | {r['tensors']:,} | {r['steps']:,} | {r['buffers']:,} "
            f"| {r['decisions']:,} | {r['mb']:.1f} | {r['written_s']:.1f} | {r['ready_s']:.2f} "
            f"| {r['step_s']:.2f} | {r['search_s']:.2f} | {r['sort_s']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def _progress(text: str) -> None:
    print(f"\r\x1b[K{text[:100]}", end="", file=sys.stderr, flush=True)


def main() -> None:
    """Measure, write the table, and take the pictures."""
    parser = program("reports.page", __doc__)
    parser.add_argument("--pictures-only", action="store_true")
    options = parser.parse_args()
    with chromium(*FLAGS) as browser, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not options.pictures_only:
            rows = [measured(layers, folder, browser) for layers in LAYERS]
            text = table(rows, browser.version)
            (FOLDER / "page.md").write_text(text, encoding="utf-8")
            print(text)
        pictures(browser, folder)


if __name__ == "__main__":
    main()
