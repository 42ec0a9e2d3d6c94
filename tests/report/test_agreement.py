"""One number for one thing: outcome, page, JSON, plan file, diff, other budgets and what to do next say
the same of one plan, where times are measured and nodes that pin the order and the caches count."""

from __future__ import annotations

import contextlib
import html
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from planner import optimize, sweep
from planner.cli.main import main
from planner.plan.points import Point, PointPlan, Written
from planner.report.document.outcome import OptimizeDocument, optimize_document
from planner.report.terminal import wide_console
from planner.report.terminal.brief import print_optimize_brief
from planner.report.terminal.whole import print_optimize
from planner.units import format_bytes, format_duration, format_percent
from tests.report.examples import as_json

ZOO = Path(__file__).parents[2] / "models" / "zoo"


class Run(NamedTuple):
    """Everything that one call wrote."""

    payload: dict[str, Any]
    plan: dict[str, Any]
    page: str
    brief: str
    whole: str
    difference: dict[str, Any]
    explained: dict[str, Any]


def _printed(show, document: OptimizeDocument) -> str:
    console = wide_console()
    with console.capture() as capture:
        show(document, console)
    return " ".join(capture.get().split())


@pytest.fixture(
    scope="module",
    params=[("mlp_adamw", "80%"), ("gpt", "60%"), ("gpt", "45%"), ("resnet18", "75%")],
    ids=" ".join,
)
def run(request, tmp_path_factory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("agreement")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))  # no other test measures in between
        yield _run(*request.param, folder)


def _run(name: str, budget: str, folder: Path) -> Run:
    page, plan = folder / "page.html", folder / "a.plan.json"
    model = ZOO / f"{name}.onnx"
    result = optimize(
        model,
        budget=budget,
        output=folder / "a.onnx",
        plan_path=plan,
        report_path=page,
        calibrate=True,
        time_limit_s=1.0,
        seed=1,
        verify=False,
    )
    document = optimize_document(result)
    text = re.sub(r"<(script|style).*?</\1>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    with contextlib.redirect_stdout(io.StringIO()) as difference:
        assert main(["diff", str(plan), str(plan), "--json"]) == 0
    written = json.loads(plan.read_text(encoding="utf-8"))
    tensor = written["decisions"][0]["tensor"]
    with contextlib.redirect_stdout(io.StringIO()) as explained:
        assert main(["explain", str(model), str(plan), "--tensor", tensor, "--json", "-q"]) == 0
    return Run(
        payload=as_json(document),
        plan=written,
        explained=json.loads(explained.getvalue()),
        page=" ".join(html.unescape(re.sub("<[^>]+>", " ", text)).split()),
        brief=_printed(print_optimize_brief, document),
        whole=_printed(print_optimize, document),
        difference=json.loads(difference.getvalue()),
    )


def test_one_step_one_ratio_and_one_peak(run: Run):
    head, plan = run.payload["headline"], run.plan
    step_us = plan["planned"]["time_us"] + plan["planned"]["cache_us"]
    ratio = step_us / plan["baseline"]["time_us"]
    assert head["time_after_us"] == pytest.approx(step_us)
    assert head["predicted_time_ratio"] == pytest.approx(ratio)
    assert run.difference["planned"]["step_us"]["a"] == pytest.approx(step_us)
    assert plan["one_stream_us"] == pytest.approx(step_us)  # nothing is copied
    peak = plan["planned"]["peak_bytes"]
    assert head["peak_after_bytes"] == run.payload["after"]["peak_bytes"] == peak
    assert run.difference["planned"]["peak_bytes"]["b"] == plan["peak"]["persistent_bytes"] + sum(
        [r["bytes"] for r in plan["peak"]["residents"]], plan["peak"]["workspace_bytes"]
    )
    for text in (run.page, run.brief, run.whole):
        assert f"{ratio:.3f}" in text
        assert format_duration(step_us) in text
        assert format_bytes(peak) in text


def test_what_is_held_is_the_same_everywhere(run: Run):
    head = run.payload["headline"]
    assert head["held_bytes"] <= head["budget_bytes"] == run.plan["budget_bytes"]
    for text in (run.page, run.brief, run.whole):
        assert format_bytes(head["held_bytes"]) in text
        assert format_bytes(head["default_held_bytes"]) in text


def test_other_budgets_stand_beside_this_plan(run: Run):
    head = run.payload["headline"]
    points = run.payload["budget_preview"]["frontier"]["points"]
    (here,) = [p for p in points if p["budget_bytes"] == run.plan["budget_bytes"]]
    added = max(0.0, head["predicted_time_ratio"] - 1)
    assert here["slowdown"] <= added + 1e-9  # a plan for a smaller budget may be found quicker
    if here["peak_bytes"] == head["peak_after_bytes"]:
        assert here["slowdown"] == pytest.approx(added, abs=1e-9)
    shares = [p["slowdown"] for p in points if p["slowdown"] is not None]
    assert shares == sorted(shares, reverse=True)
    for text in (step["text"] for step in run.payload["next_steps"]):
        for saved in re.findall(r"would save ([0-9.]+%)", text):
            assert saved in {format_percent(here["slowdown"] - share) for share in shares}


def test_a_tensor_is_explained_with_the_costs_of_the_plan(run: Run):
    decision, found = run.plan["decisions"][0], run.explained
    assert found["budget_bytes"] == run.plan["budget_bytes"]
    assert found["bytes"] == decision["bytes"]
    ways = [way for interval in found["intervals"] for way in interval["ways"]]
    costs = [way["cost_us"] for way in ways if way["action"] == decision["action"]]
    assert decision["action"] == "recompute" and costs
    assert any(cost == pytest.approx(decision["recompute_us"]) for cost in costs)


def test_a_sweep_counts_what_is_run_again_and_nothing_less(tmp_path: Path):
    """Measured, the GPT sample's views take 1% of its step: a plan that runs operations again takes
    longer by just these."""
    found = sweep(
        ZOO / "gpt.onnx", budgets=["90%", "80%", "70%"], calibrate=True, time_limit_s=1.0, jobs=1
    )
    (frontier,) = found.frontiers
    plans = [point.plan for point in frontier.points if point.plan is not None]
    assert any(plan.recomputed_us for plan in plans)
    for plan in plans:
        assert plan.time_us - frontier.base_us == pytest.approx(
            plan.recomputed_us, abs=2e-3 * frontier.base_us
        )


@pytest.mark.parametrize("step_us", [90.0, 105.0, 118.0, 125.0])
def test_what_a_file_takes_beside_its_schedule_grows_with_what_it_adds(step_us: float):
    written = Written(base_us=100.0, schedule_us=120.0, step_us=step_us)
    plan = PointPlan(peak_bytes=1, time_us=120.0, engine="greedy", order=0)
    point = written.of(Point(capacity_bytes=1, plan=plan, bound_us=float("inf")))
    assert point.plan is not None and point.is_impossible
    assert point.plan.time_us == max(step_us, 100.0)  # never below the model as it is
    assert written.us(100.0) == 100.0
    times = [written.us(100.0 + added_us) for added_us in range(40)]
    assert times == sorted(times)
