"""One number for one thing: outcome, page, JSON, plan file, diff, other budgets and what to do next say
the same of one plan, where times are measured and nodes that pin the order and the caches count."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from planner import sweep
from planner.plan.points import Point, PointPlan, Written
from planner.units import format_percent
from reports.agreement import Run, differing, everything

ZOO = Path(__file__).parents[2] / "models" / "zoo"


@pytest.fixture(
    scope="module",
    params=[("mlp_adamw", "80%"), ("gpt", "45%"), ("resnet18", "75%")],
    ids=" ".join,
)
def run(request, tmp_path_factory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("agreement")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))  # no other test measures in between
        found = everything(ZOO / f"{request.param[0]}.onnx", request.param[1], folder)
        assert found is not None
        yield found


def test_all_outputs_agree(run: Run):
    compared, off = differing(run)
    assert compared > 20 and off == []


def test_an_output_that_says_something_else_is_named(run: Run):
    headline = {**run.payload["headline"], "peak_after_bytes": 1}
    _, off = differing(run._replace(payload={**run.payload, "headline": headline}, brief=""))
    assert off[0] == "peak, JSON" and "ratio, outcome" in off
    assert len(off) == 1 + 5


def test_a_step_is_its_plan_and_the_caches_share(run: Run):
    plan, peak = run.plan, run.difference["planned"]["peak_bytes"]["b"]
    step_us = plan["planned"]["time_us"] + plan["planned"]["cache_us"]
    assert plan["one_stream_us"] == pytest.approx(step_us)  # nothing is copied
    assert peak == plan["peak"]["persistent_bytes"] + sum(
        [r["bytes"] for r in plan["peak"]["residents"]], plan["peak"]["workspace_bytes"]
    )
    assert run.payload["headline"]["held_bytes"] <= plan["budget_bytes"]


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
        ZOO / "gpt.onnx", budgets=["90%", "80%", "70%"], calibrate=True, time_limit_s=0.5, jobs=1
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
