"""The page as text: one file, no request, everything escaped, every number of the headline."""

import dataclasses
import json
import re
from html.parser import HTMLParser

import msgspec
import pytest

from planner.errors import UsageError
from planner.report.document.analysis import analyze_document
from planner.report.document.outcome import optimize_document
from planner.report.page import embedded_json, render_page, write_page
from tests.report import examples


class Page(HTMLParser):
    """Text, elements and `<data>` values of a page; scripts and styles apart."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.text, self.scripts, self.values = "", [], set()
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag == "data":
            self.values.add(dict(attrs)["value"])

    def handle_data(self, data):
        tag = self.elements[-1][0] if self.elements else ""
        if tag == "script" and self.get_starttag_text().startswith("<script"):
            self.scripts.append(data)
        elif tag != "style":
            self.text += data


@pytest.fixture(scope="module")
def payload():
    return optimize_document(examples.optimize_result())


@pytest.fixture(scope="module")
def source(payload):
    return render_page(payload)


@pytest.fixture(scope="module")
def page(source):
    return Page(source)


def test_nothing_is_fetched(page, source):
    for tag, attributes in page.elements:
        assert tag not in {"link", "iframe", "object", "embed", "img", "base"}
        assert not {"src", "srcset", "action", "data", "poster"} & attributes.keys()
        assert attributes.get("href", "#").startswith("#")
        assert not any(name.startswith("on") for name in attributes)
    policy = next(a["content"] for _, a in page.elements if a.get("http-equiv"))
    assert policy.startswith("default-src 'none'; script-src 'unsafe-inline';")
    assert "http" not in policy
    style = source[source.index("<style>") : source.index("</style>")]
    assert "url(" not in style and "@import" not in style


def test_our_own_text_names_no_address(source):
    ours = re.sub(r"<script>.*?</script>", "", source, flags=re.DOTALL)
    assert not re.search(r"https?://", ours)


def test_every_number_of_the_headline_is_on_the_page(page, payload):
    headline = {
        key: value
        for key, value in msgspec.structs.asdict(payload.headline).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    assert len(headline) > 15
    shown_as_percent = {"gap"}
    shown_where_not_zero = {"reserve_bytes"}
    for key in headline.keys() - shown_as_percent - shown_where_not_zero:
        assert str(headline[key]) in page.values, key
    assert payload.headline.sentence in page.text
    assert "at most 1.01% above" in page.text


def test_every_number_of_an_analysis_headline_is_on_the_page():
    payload = analyze_document(examples.analysis())
    page = Page(render_page(payload))
    for key, value in msgspec.structs.asdict(payload.headline).items():
        if isinstance(value, int | float):
            assert str(value) in page.values, key
    assert payload.headline.sentence in page.text


def test_names_are_shown_as_text(page, payload):
    shown = {r.tensor for r in payload.before.live_ranges}
    for name in examples.ODD_NAMES:
        assert name in shown
        visible = name.replace("\n", r"\n").replace("\x1b", r"\x1b")
        assert visible in page.text
    assert "models/<chain> & co.onnx" in page.text
    assert not [a for tag, a in page.elements if tag == "b"]


def test_embedded_data_cannot_end_its_element(page, source, payload):
    assert "</script><script>x" not in source
    assert "<script>alert" not in source
    data = [s for s in page.scripts if s.lstrip().startswith(("[[", "{"))]
    rows = json.loads(next(s for s in data if s.startswith("[[")))
    assert len(rows) == len(payload.decisions)
    assert {row[1][1] for row in rows} == {d.tensor for d in payload.decisions}


def test_embedded_json_round_trips():
    odd = [*examples.ODD_NAMES, "<!--", "]]>", "\u2028", "&amp;"]
    text = embedded_json(odd)
    assert json.loads(text) == odd
    assert not set("<>&\u2028") & set(text)


@pytest.mark.parametrize("verified", [True, False])
@pytest.mark.parametrize("swaps", [True, False])
def test_pages_with_and_without_swaps_and_verification(verified, swaps):
    page = Page(
        render_page(optimize_document(examples.optimize_result(verified=verified, swaps=swaps)))
    )
    assert ("Not run: the model was planned with verification off" in page.text) != verified
    assert (("i", {"class": "swapped"}) in page.elements) == swaps


def test_one_of_a_kind_is_counted_in_the_singular():
    result = examples.optimize_result(4)
    bad = examples.verification(result.before, result.after, passed=False)
    text = Page(render_page(optimize_document(result))).text
    assert "1 operation run again, " in text and "1 tensor; " in text
    text = Page(render_page(optimize_document(dataclasses.replace(result, verification=bad)))).text
    assert "1 check did not hold" in text


def test_a_failed_verification_says_so_first():
    result = examples.optimize_result()
    bad = examples.verification(result.before, result.after, passed=False)
    text = Page(render_page(optimize_document(dataclasses.replace(result, verification=bad)))).text
    assert "Verification failed" in text[: text.index("Peak device memory goes")]
    assert "output dx0 differs by inf" in text
    assert "ONNX Runtime confirmed it" not in text


@pytest.mark.parametrize(("held_bytes", "said"), [(1 << 40, True), (1 << 20, False)])
def test_default_options_over_the_budget_are_not_hidden(held_bytes, said):
    result = examples.optimize_result()
    default = dataclasses.replace(
        result.verification.memory[1], options="default", held_bytes=held_bytes
    )
    memory = (*result.verification.memory, default)
    verification = dataclasses.replace(result.verification, memory=memory)
    payload = optimize_document(dataclasses.replace(result, verification=verification))
    assert payload.headline.measured_default_held_bytes == held_bytes
    page = Page(render_page(payload))
    assert str(held_bytes) in page.values
    assert ("more than the budget" in page.text) == said


def test_a_plan_that_changed_nothing():
    result = examples.optimize_result()
    plan = dataclasses.replace(
        result.plan, unchanged=True, decisions=(), planned=result.plan.baseline, engine="",
        budget_bytes=result.plan.baseline.peak_bytes, gap=None, bound_us=None,
    )  # fmt: skip
    text = Page(
        render_page(optimize_document(dataclasses.replace(result, plan=plan, after=result.before)))
    ).text
    assert "it was copied unchanged" in text
    assert "Every tensor is kept." in text


def test_a_graph_without_operations():
    result = examples.optimize_result()
    empty = examples.view(examples.GraphBuilder().build("empty"))
    plan = dataclasses.replace(result.plan, decisions=())
    result = dataclasses.replace(result, plan=plan, before=empty, after=empty, verification=None)
    assert "at step 0 of 0" in Page(render_page(optimize_document(result))).text


def test_thousands_of_steps_make_a_page_of_a_few_megabytes():
    source = render_page(optimize_document(examples.optimize_result(2600)))
    assert len(source) < 5e6


def test_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    document = analyze_document(examples.analysis())
    write_page(document, path)
    assert path.read_text(encoding="utf-8").endswith("</html>\n")
    monkeypatch.setattr("planner.report.page.render_page", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_page(document, tmp_path / "other.html")
    with pytest.raises((UsageError, ZeroDivisionError)):
        write_page(document, tmp_path / "no" / "other.html")
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
