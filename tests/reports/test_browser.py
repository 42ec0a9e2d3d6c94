"""The rewritten model on onnxruntime-web in Chromium: the same bits, and in less memory.

Needs npm (and its registry) for onnxruntime-web, Debian's `chromium` and the `playwright` package;
skipped by name where one of them is missing.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from models import zoo
from planner.runtime.options import Opening
from planner.runtime.profiled import profile

CHROMIUM = shutil.which("chromium")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

from reports import browser_runs as runs  # noqa: E402

MIB = 1 << 20


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """A folder with onnxruntime-web."""
    folder = tmp_path_factory.mktemp("npm")
    try:
        runs.install(folder)
    except runs.NoRuntimeError as error:
        pytest.skip(str(error))
    return folder / "node_modules"


@pytest.fixture(scope="module")
def browser(package):
    with playwright.sync_playwright() as p:
        found = p.chromium.launch(executable_path=CHROMIUM, args=[*runs.FLAGS])
        yield found
        found.close()


@pytest.fixture
def site(package, tmp_path) -> Path:
    (tmp_path / "node_modules").symlink_to(package)
    return tmp_path


def test_the_original_fails_where_the_rewritten_model_trains(browser, site):
    options = {"budget": "40%", "swap": "none", "verify": False, "time_limit_s": 3}
    options["reproducible"] = True  # a worse plan of a slow machine ends in the heap's same step
    plan = runs.lay_out(site, zoo.path("gpt"), zoo.feeds("gpt"), **options).plan
    with runs.served(site) as address:
        plain = runs.trained(browser, address, steps=2)
        one, two = plain["original"], plain["rewritten"]
        assert one["failed"] is None and two["failed"] is None
        assert runs.compared(one, two) == {"outputs": 53, "identical": 53, "losses_equal": True}
        assert len(set(two["losses"])) == 2  # it does train
        saved = plan.baseline.peak_bytes - plan.planned.peak_bytes
        assert one["peak"] > two["peak"]
        # the heap grows by a fifth at a time, unless it may not
        cap = int(one["peak"] - saved / 4) // MIB
        capped = runs.trained(browser, address, steps=2, cap=cap)
    assert "bad_alloc" in capped["original"]["failed"] and not capped["original"]["losses"]
    assert capped["rewritten"]["failed"] is None
    assert capped["rewritten"]["losses"] == two["losses"]
    assert capped["rewritten"]["peak"] <= cap * MIB


def test_order_and_state_of_a_step_with_its_update(browser, site):
    """mlp_adamw makes its new parameters and its optimizer's state itself; they are fed back."""
    options = {"budget": "75%", "swap": "none", "verify": False, "time_limit_s": 2}
    feeds = zoo.feeds("mlp_adamw")
    runs.lay_out(site, zoo.path("mlp_adamw"), feeds, **options)
    with runs.served(site) as address:
        found = runs.trained(browser, address, steps=4, profile=1)
    assert runs.compared(found["original"], found["rewritten"])["losses_equal"]
    losses = found["rewritten"]["losses"]
    assert losses[-1] < losses[0]
    for name in runs.BOTH:  # onnxruntime-web's level is all, unless it is told another
        (events,) = profile(site / f"{name}.onnx", feeds, Opening(level="all"))
        assert found[name]["nodes"] == 4 * [event.name for event in events]


def test_the_page_says_which_package_it_is_for():
    said = (runs.PAGE.parent / "browser.md").read_text(encoding="utf-8")
    assert f"npm install --prefix docs/browser {runs.PACKAGE}" in said
