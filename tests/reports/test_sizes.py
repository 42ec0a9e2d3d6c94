"""A network of a size that people have, from its configuration to a report that opens; nothing is run."""

from __future__ import annotations

import argparse
import shutil
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from planner.pipeline.record.assemble import read_plan
from planner.plan.planfile import MicroBatches
from reports.sizes import networks, step
from reports.sizes.page import page
from reports.sizes.watched import watched


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> argparse.Namespace:
    """Llama 7B's own widths, in one layer."""
    return argparse.Namespace(
        model=tmp_path_factory.mktemp("llama") / "llama.onnx",
        network="llama-7b",
        optimizer="adamw",
        batch=4,
        hardware="rtx-4090",
        budget="6GB",
        time_limit=1.0,
    )


@pytest.fixture(scope="module")
def exported(options: argparse.Namespace) -> step.Found:
    known = dict(networks.NETWORKS)
    whole = known["llama-7b"]
    known["llama-7b"] = replace(whole, sizes={**whole.sizes, "num_hidden_layers": 1})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(networks, "NETWORKS", known)
        return step.export(options)


def test_a_network_without_weights_becomes_a_small_file(exported: step.Found) -> None:
    assert exported["parameters"] == 464_531_456
    assert exported["file_bytes"] < 64 << 20


def test_it_is_planned_for_a_card_that_holds_less_than_its_gradients(
    exported: step.Found, options: argparse.Namespace
) -> None:
    found = step.optimize(options)
    assert found["fits"] and found["peak_bytes"] <= 6e9 < 4 * exported["parameters"] * 4
    assert found["baseline_bytes"] > 16e9
    plan = read_plan(options.model.parent / "plan.json")
    assert isinstance(plan.micro, MicroBatches) and plan.micro.runs == found["runs"] > 1
    assert {a.scale for a in plan.micro.accumulators} == {1.0, None}


def test_its_report_opens(exported: step.Found, options: argparse.Namespace) -> None:
    pytest.importorskip("playwright", reason="playwright is not installed")
    if shutil.which("chromium") is None:
        pytest.skip("chromium is not installed")
    if not (options.model.parent / "report.html").exists():
        step.optimize(options)
    found = step.opened(options)
    assert not found["errors"] and found["headline"]


def test_a_process_is_watched_with_what_it_starts() -> None:
    found = watched("json.tool", "--help-me")
    assert "failed" in found and found["wall_s"] > 0


def test_the_page_is_written_of_rows() -> None:
    row = {
        "network": "gpt2-xl",
        "optimizer": "none",
        "batch": 8,
        "card": "rtx-4090",
        "export": {"parameters": 10, "nodes": 5, "file_bytes": 1, "trace_s": 1.0, "wall_s": 2.0,
                   "held_bytes": 1 << 30},
        "optimize": {"fits": False, "said": "no plan fits", "least_bytes": 1 << 35, "wall_s": 3.0,
                     "held_bytes": 1 << 30},
    }  # fmt: skip
    text = page({"limit_s": 1.0, "rows": [row]})
    assert "no plan; least found 32.0" in text and "no plan fits" in text
