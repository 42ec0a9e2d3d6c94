"""The page in a real browser: no request, no error, figures drawn, tables that sort and search.

Needs Debian's `chromium` and the `playwright` package; skipped by name where either is missing.
"""

import contextlib
import functools
import itertools
import shutil
from pathlib import Path

import pytest

from planner import optimize
from planner.report.document.analysis import analyze_document
from planner.report.document.outcome import optimize_document
from planner.report.document.sweep import sweep_document
from planner.report.page import write_page
from planner.report.page.figures import CATEGORY_COLORS, page_figures
from planner.report.page.lanes import KIND_NAMES
from planner.report.page.sweep import write_sweep
from planner.units import format_bytes, format_duration, format_percent
from tests.report import examples

CHROMIUM = shutil.which("chromium")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

ZOO = Path(__file__).parents[2] / "models" / "zoo"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PAINTED = """(name) => {
  const layers = [];
  const walk = (node) => {
    for (const child of node.children) {
      if (child.tagName === "CANVAS") layers.push(child);
      if (child.shadowRoot) walk(child.shadowRoot);
      walk(child);
    }
  };
  walk(document.getElementById(name));
  const colors = new Set();
  for (const canvas of layers) {
    if (!canvas.width || !canvas.height) continue;
    const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    for (let i = 0; i < data.length; i += 4 * 97) colors.add(data.slice(i, i + 4).join());
  }
  return colors.size;
}"""


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as p:
        found = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


def write_report(result, path):
    write_page(optimize_document(result), path)


def document_of(result):
    return examples.as_json(optimize_document(result))


@functools.cache
def example():
    """The example of the usual size, the same for all tests, whose page is written once."""
    return examples.optimize_result()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A function from a result to its page, which is written when it is asked for first."""
    pages = []

    def path_of(result, write):
        for known, path in pages:
            if known is result:
                return path
        path = tmp_path_factory.mktemp("page") / "report.html"
        write(result, path)
        pages.append((result, path))
        return path

    return path_of


@contextlib.contextmanager
def opening(browser, written):
    """Opens results' pages, and checks at the end that they made no request and no error."""
    trouble, pages = [], []

    def opened(result, write=write_report, **options):
        path = written(result, write)
        page = browser.new_page(viewport={"width": 1280, "height": 900}, **options)
        page.on("request", lambda r: trouble.append(r.url) if r.url != path.as_uri() else None)
        page.on("pageerror", lambda e: trouble.append(str(e)))
        page.on(
            "console",
            lambda m: trouble.append(m.text) if m.type in ("error", "warning") else None,
        )
        page.on("dialog", lambda d: trouble.append(d.message))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready=true]", timeout=30_000)
        pages.append(page)
        return page

    yield opened
    for page in pages:
        page.close()
    assert [t for t in trouble if not t.startswith(("data:", "blob:"))] == []


@pytest.fixture
def open_page(browser, written):
    """A function that opens a result's page, for one test."""
    with opening(browser, written) as opened:
        yield opened


@pytest.fixture(scope="module")
def example_page(browser, written):
    """The example's page, for tests that only look at it."""
    with opening(browser, written) as opened:
        yield opened(example())


FIGURES = ["memory-before", "memory-after", "ranges-before", "ranges-after"]
TIMED = ["lanes-after", "clock-after"]
DATA = (
    "(name) => { const s = Bokeh.documents[0].get_model_by_name(name); return s ? s.data : null; }"
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_figure_is_drawn(open_page, scheme):
    page = open_page(example(), color_scheme=scheme)
    for name in (*FIGURES, *TIMED, "frontier"):
        assert page.evaluate(PAINTED, f"figure-{name}") > 4, name
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light")


def test_an_analysis_is_drawn(open_page):
    page = open_page(analyze_document(examples.analysis()), write=write_page)
    for name in ("memory-view", "ranges-view", "lanes-view", "clock-view", "frontier"):
        assert page.evaluate(PAINTED, f"figure-{name}") > 4, name


def test_the_page_of_a_real_plan(open_page, tmp_path):
    result = optimize(
        ZOO / "mlp_adamw.onnx",
        budget="75%",
        swap="none",
        report_path=tmp_path / "written.html",
        time_limit_s=0.5,
    )
    page = open_page(result)
    for name in (*FIGURES, *TIMED, "frontier"):
        assert page.evaluate(PAINTED, f"figure-{name}") > 4, name
    document = document_of(result)
    text = page.inner_text("body")
    assert document["headline"]["sentence"] in text
    for group, size in document["before"]["taxonomy_at_peak"].items():
        assert not size or f"{group} {format_bytes(size)}" in text
    shown = page.locator("#decisions tbody tr").all_inner_texts()
    assert {row.split("\t")[1] for row in shown} == {d.tensor for d in result.plan.decisions}


def test_hover_shows_names_as_text(open_page):
    page = open_page(example())
    page.locator("#figure-memory-before").scroll_into_view_if_needed()
    box = page.locator("#figure-memory-before").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.45, box["y"] + box["height"] * 0.5)
    tip = page.locator(".bk-Tooltip .bk-tooltip-content").first
    tip.wait_for(timeout=5000)
    assert "live" in tip.inner_text()
    assert tip.locator("b").count() == 0


def test_a_click_lists_what_is_resident_there(open_page):
    result = example()
    page = open_page(result)
    view = document_of(result)["after"]
    assert page.input_value("#step-at") == str(view["peak_step"])
    page.locator("#figure-memory-before").scroll_into_view_if_needed()
    box = page.locator("#figure-memory-before").bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.5)
    page.wait_for_function("document.getElementById('step-view').value === 'before'")
    step = int(page.input_value("#step-at"))
    ranges = document_of(result)["before"]["live_ranges"]
    here = [r for r in ranges if r["start"] <= step < r["end"]]
    here.sort(key=lambda r: -r["bytes"])
    shown = page.locator("#step-residents tbody tr").all_inner_texts()
    assert "inputs and parameters together" in shown[0]
    assert len(shown) == 1 + len(here)
    assert [row.split("\t")[2] for row in shown[1:]] == [r["category"] for r in here]
    page.fill("#step-at", "0")
    assert page.locator("#step-residents tbody tr").count() == 2


def test_every_live_range_is_a_rectangle_where_the_arena_has_it(example_page):
    result, page = example(), example_page
    for key in ("before", "after"):
        view = document_of(result)[key]
        drawn = [
            (*corners, size)
            for fate in ("kept", "recomputed", "swapped")
            if (data := page.evaluate(DATA, f"ranges-{key}-{fate}"))
            for *corners, size in zip(
                *(data[c] for c in ("left", "right", "bottom", "top", "size")), strict=True
            )
        ]
        wanted = [
            (r["start"], r["end"], r["offset"], r["offset"] + r["bytes"], format_bytes(r["bytes"]))
            for r in view["live_ranges"]
        ] + [
            (
                w["step"],
                w["step"] + 1,
                w["offset"],
                w["offset"] + w["bytes"],
                format_bytes(w["bytes"]),
            )
            for w in view["one_region"]["workspace"]
        ]
        assert sorted(drawn) == sorted(wanted)


def test_operations_and_copies_lie_one_after_another_in_time(example_page):
    result, page = example(), example_page
    view = document_of(result)["after"]
    slices = []
    for kind in ("compute", "recompute", "copy_out", "copy_in"):
        data = page.evaluate(DATA, f"lanes-after-{kind}")
        spent = sum(b - a for a, b in zip(data["left"], data["right"], strict=True))
        assert spent * 1e3 == pytest.approx(
            view["time_by_kind_us"][kind]
        ) or spent == pytest.approx(view["time_by_kind_us"][kind])
        slices += zip(data["left"], data["right"], data["name"], strict=True)
    slices.sort()
    assert [name for *_, name in slices] == view["timeline"]["operation"]
    for (_, end, _), (start, _, _) in itertools.pairwise(slices):
        assert start == pytest.approx(end)
    text = page.inner_text("body")
    for kind, name in KIND_NAMES.items():
        assert f"{name} {format_duration(view['time_by_kind_us'][kind])}" in text


def test_the_frontier_and_what_binds(open_page):
    result = example()
    page = open_page(result)
    document = document_of(result)
    page.locator("text=Every budget tried").click()
    text = page.inner_text("body")
    for point in document["budget_preview"]["frontier"]["points"]:
        assert format_bytes(point["budget_bytes"]) in text
        assert format_percent(point["slowdown"]) in text
    bind = document["budget_preview"]["binds"][0]
    page.get_by_role("button", name=bind["node"], exact=True).click()
    assert page.input_value("#step-at") == str(bind["step"])
    for step in document["next_steps"]:
        assert step["text"] in text
        assert step["command"] is None or step["command"] in text


def test_a_tensor_chosen_in_a_table_stands_out(open_page):
    result = example()
    page = open_page(result)
    row = page.locator("#decisions tbody tr").first
    name = row.locator("td").nth(1).inner_text()
    row.locator("td").nth(3).click()
    selected = """(name) => {
      const s = Bokeh.documents[0].get_model_by_name(name);
      return s.selected.indices.map((i) => s.data.name[i] ?? null);
    }"""
    fate = {"recompute": "recomputed", "swap": "swapped"}[row.locator("td").first.inner_text()]
    assert set(page.evaluate(selected, f"ranges-before-{fate}")) == {name}
    assert page.evaluate(selected, "ranges-before-kept") == [None]
    assert "chosen" in row.get_attribute("class")
    row.locator("td").nth(3).click()
    assert page.evaluate(selected, f"ranges-before-{fate}") == []


def test_decisions_sort_and_search(open_page):
    result = examples.optimize_result(300)
    page = open_page(result)
    rows = page.locator("#decisions tbody tr")
    assert rows.count() == 100
    sizes = sorted((d.bytes for d in result.plan.decisions), reverse=True)
    assert rows.first.locator("td").nth(2).inner_text() == f"{sizes[0] / 2**20:.2f} MiB"
    page.get_by_role("button", name="absent in steps").click()
    assert rows.first.locator("td").nth(4).get_attribute("class") == "num"
    page.get_by_role("button", name="absent in steps").click()
    first = min(result.plan.decisions, key=lambda d: d.start)
    assert rows.first.locator("td").nth(4).inner_text() == f"[{first.start}, {first.end})"
    page.fill("#decisions-search", "<SCRIPT>")
    assert "alert('x')" in rows.first.inner_text()
    shown = page.locator("#decisions-shown").inner_text()
    assert shown == f"{rows.count()} of {rows.count()} shown"
    page.fill("#decisions-search", "")
    page.locator("#decisions-more").click()
    assert rows.count() == len(result.plan.decisions)


def test_twenty_thousand_tensors_are_drawn_in_bins_that_keep_the_peak_and_in_steps_where_it_is_zoomed(
    open_page,
):
    result = examples.optimize_result(3400)
    page = open_page(result)
    assert page.evaluate(PAINTED, "figure-ranges-after") > 4
    assert page.locator("#decisions tbody tr").count() == 100
    view = document_of(result)["after"]
    steps, line = view["steps"], view["timeline"]
    assert steps > 1500

    def drawn():
        found = page.evaluate(DATA, "areas-after")
        heights = [k for k in found if k.startswith("y")]
        return found, [max(column) for column in zip(*(found[k] for k in heights), strict=True)]

    whole, tops = drawn()
    assert len(whole["x"]) == 1501 and whole["x"][0] == 0 and whole["x"][-1] == steps
    assert max(tops) == view["peak_bytes"]
    names = page.evaluate(DATA, "hover-after")["names"]
    assert len(names) == 1500 and all(names)
    first, end = steps // 2, steps // 2 + 40
    page.evaluate(
        """([first, end]) => {
          const axis = Bokeh.documents[0].get_model_by_name("memory-after").x_range;
          axis.setv({ start: first, end });
        }""",
        [first, end],
    )
    for _ in range(100):  # drawn anew a moment after the zoom
        if len(page.evaluate(DATA, "areas-after")["x"]) < 1500:
            break
        page.wait_for_timeout(100)
    near, _ = drawn()
    at = near["x"].index(first)
    assert near["x"][at : at + 40] == list(range(first, end))
    categories = [c for c in CATEGORY_COLORS if c in line["by_category"]]
    for i, category in enumerate(categories):
        shown = [near[f"y{i + 1}"][at + s] - near[f"y{i}"][at + s] for s in range(end - first)]
        assert shown == line["by_category"][category][first:end], category


def test_what_is_drawn_is_what_the_document_says(example_page):
    result, page = example(), example_page
    document = document_of(result)
    for key in ("before", "after"):
        line = document[key]["timeline"]
        drawn = page.evaluate(DATA, f"areas-{key}")
        for i, category in enumerate(c for c in CATEGORY_COLORS if c in line["by_category"]):
            top, bottom = drawn[f"y{i + 1}"], drawn[f"y{i}"]
            shown = [a - b for a, b in zip(top, bottom, strict=True)]
            assert shown[:-1] == line["by_category"][category]
        hover = page.evaluate(DATA, f"hover-{key}")
        assert hover["top"] == line["live_bytes"]
        assert hover["live"] == [format_bytes(b) for b in line["live_bytes"]]
        step = document[key]["peak_step"]
        biggest = max(
            (r for r in document[key]["live_ranges"] if r["start"] <= step < r["end"]),
            key=lambda r: r["bytes"],
        )
        assert format_bytes(biggest["bytes"]) in hover["names"][step].split(", ")[0]
    seen = page.evaluate(DATA, "areas-before")["seen"]
    assert seen[:-1] == document["verification"]["memory"][0]["per_node"]["measured_bytes"]
    clock = page.evaluate(DATA, "elapsed-after")
    assert clock["live"][:-1] == document["after"]["timeline"]["live_bytes"]
    assert clock["x"][0] == 0 and clock["x"] == sorted(clock["x"])


def test_zoom_moves_every_figure(open_page):
    page = open_page(example())
    page.locator("#figure-memory-before").scroll_into_view_if_needed()
    box = page.locator("#figure-memory-before").bounding_box()
    y = box["y"] + box["height"] * 0.5
    page.mouse.move(box["x"] + box["width"] * 0.3, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, y, steps=5)
    page.mouse.up()
    starts = page.evaluate(
        "(names) => names.map((n) => Bokeh.documents[0].get_model_by_name(n).x_range.start)",
        FIGURES,
    )
    assert len(starts) == 4 and starts[0] > 0 and len(set(starts)) == 1


def test_copy_button_and_print(open_page, tmp_path):
    page = open_page(example())
    page.locator("button[data-copies=session-code]").click()
    assert "onnxruntime" in page.evaluate("getSelection().toString()")
    page.emulate_media(media="print", color_scheme="dark")
    style = "(at) => getComputedStyle(document.querySelector(at)).%s"
    assert page.evaluate(style % "backgroundColor", "body") == "rgb(255, 255, 255)"
    assert page.evaluate(style % "printColorAdjust", ".stack i") == "exact"
    assert page.evaluate(style % "display", "nav") == "none"
    printed = Path(tmp_path / "page.pdf")
    page.pdf(path=printed)
    assert printed.stat().st_size > 10_000


def test_a_sweep_draws_its_frontier_and_the_largest_sizes(open_page):
    swept = sweep_document(examples.swept())
    page, document = open_page(swept, write=write_sweep), examples.as_json(swept)
    for name in ("frontier", "largest"):
        assert page.evaluate(PAINTED, f"figure-{name}") > 10
    text = page.inner_text("body")
    assert document["sentence"] in text
    for frontier in document["frontiers"]:
        for point in frontier["points"]:
            assert format_bytes(point["budget_bytes"]) in text
            if point["slowdown"] is not None:
                assert format_percent(point["slowdown"]) in text
    assert page.locator("table.points").count() == len(document["frontiers"])
    assert "proved impossible" in text
    assert "<b>model</b>" in text  # shown, not obeyed


def test_a_chart_reaches_what_was_measured_and_the_budget():
    """ONNX Runtime's line may be above all that was predicted."""
    views = optimize_document(example()).views
    most = max(view.peak_bytes for view in views.values())
    for measured, budget in ((3 * most, 0), (0, 2 * most), (0, 0)):
        lines = {"before": (0, measured)} if measured else {}
        plots = page_figures(views, budget_bytes=budget, measured=lines)
        assert plots["memory-before"].y_range.end >= max(measured, budget, most)


@pytest.mark.parametrize("width", [1400, 800, 390])
def test_nothing_is_wider_than_the_window(open_page, width):
    """On a desk, a tablet and a telephone: cards wrap, and wide tables scroll by themselves."""
    page = open_page(example())
    page.set_viewport_size({"width": width, "height": 900})
    page.wait_for_function(f"window.innerWidth === {width}")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    cards = page.locator(".card")
    assert cards.count() > 3
    for i in range(cards.count()):
        box = cards.nth(i).bounding_box()
        assert box is None or (box["x"] >= 0 and box["x"] + box["width"] <= width)
