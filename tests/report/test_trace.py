"""The trace of a plan: what the plan says, in the form in which ONNX Runtime says it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import onnxruntime as ort
import pytest

from planner import optimize
from planner.errors import UsageError
from planner.graph.model import Role
from planner.report.trace import COMPUTE, COPY_IN, COPY_OUT, trace_events
from planner.results import OptimizeResult
from planner.runtime.feeds.inputs import make_inputs
from planner.runtime.profile import read_profile
from tests.report import examples

ZOO = Path(__file__).parents[2] / "models" / "zoo"
MODEL = ZOO / "mlp_adamw.onnx"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("trace")


@pytest.fixture(scope="module")
def done(folder) -> OptimizeResult:
    """mlp_adamw with swaps only, and its trace."""
    return optimize(
        MODEL,
        budget="80%",
        swap="only",
        resident="device",
        output=folder / "out.onnx",
        trace_path=folder / "trace.json",
        time_limit_s=0.5,
        verify=False,
    )


@pytest.fixture(scope="module")
def events(done, folder) -> list[dict]:
    return json.loads((folder / "trace.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def profile(done, folder) -> list[dict]:
    """What ONNX Runtime itself says of the rewritten model."""
    feeds, _ = make_inputs(MODEL, 0, {}, None)
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    session = ort.InferenceSession(done.output_path, options, providers=["CPUExecutionProvider"])
    session.run(None, feeds)
    return json.loads(Path(session.end_profiling()).read_text())


def nodes(events: list[dict]) -> list[dict]:
    return [e for e in events if e.get("cat") == "Node" and e["name"].endswith("_kernel_time")]


def test_events_have_the_form_of_onnx_runtimes_own(events, profile):
    ours, theirs = nodes(events), nodes(profile)
    assert set(theirs[0]) == set(ours[0])
    said = {"op_name", "provider", "node_index", "output_size", "parameter_size", "activation_size"}
    for node in (*ours, *theirs):
        assert said <= set(node["args"])
        assert all(isinstance(node["args"][key], str) for key in said)
        assert isinstance(node["pid"], int) and isinstance(node["tid"], int)
        assert node["ph"] == "X" and node["dur"] >= 0 and node["ts"] >= 0
    for kind in (events, profile):
        (run,) = [e for e in kind if e["name"] == "model_run"]
        assert (run["cat"], run["ph"], run["args"]) == ("Session", "X", {})


def test_nodes_are_those_that_onnx_runtime_runs_in_that_order(events, profile):
    assert [(e["name"], e["args"]["op_name"]) for e in nodes(events)] == [
        (e["name"], e["args"]["op_name"]) for e in sorted(nodes(profile), key=lambda e: e["ts"])
    ]
    of_ours = {e["name"]: e["args"]["output_size"] for e in nodes(events)}
    for event in nodes(profile):
        if event["args"]["output_size"] != "0":
            assert of_ours[event["name"]] == event["args"]["output_size"]


def test_planners_own_reader_of_profiles_reads_it(events, folder, done):
    (run,) = read_profile(folder / "trace.json")
    line = done.after.timeline
    names = [done.after.graph.operations[op].name for op in line.order]
    assert sorted(e.name for e in run) == sorted(names)


def test_times_add_up_to_the_planned_time(events, done):
    total = sum(e["dur"] for e in nodes(events))
    assert total == pytest.approx(done.plan.planned.time_us, rel=1e-9, abs=0.01)
    (run,) = [e for e in events if e["name"] == "model_run"]
    assert run["dur"] == pytest.approx(total, abs=0.01)
    by_lane = {
        lane: sum(e["dur"] for e in nodes(events) if e["tid"] == lane)
        for lane in (COMPUTE, COPY_OUT, COPY_IN)
    }
    assert by_lane[COPY_OUT] > 0 and by_lane[COPY_IN] > 0
    copies = by_lane[COPY_OUT] + by_lane[COPY_IN]
    assert copies == pytest.approx(done.plan.planned.swap_us, abs=0.01)


def test_slices_follow_each_other(events):
    slices = sorted((e["ts"], e["ts"] + e["dur"]) for e in nodes(events))
    for (_, end), (start, _) in itertools.pairwise(slices):
        assert start >= end - 1e-6


def test_lanes_have_names(events):
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert set(names) == {e["tid"] for e in events if e["ph"] == "X"}
    kinds = {(e["args"]["op_name"], e["tid"]) for e in nodes(events)}
    assert {("MemcpyToHost", COPY_OUT), ("MemcpyFromHost", COPY_IN)} <= kinds


def test_counters_show_the_peak_and_the_budget(events, done):
    counters = [e for e in events if e["ph"] == "C"]
    totals = {e["ts"]: e["args"]["bytes"] for e in counters if e["name"] == "live bytes"}
    assert max(totals.values()) == done.plan.planned.peak_bytes
    parts = {e["ts"]: e["args"] for e in counters if e["name"] == "live bytes by category"}
    assert {ts: sum(p.values()) for ts, p in parts.items()} == totals
    budget = [e["args"]["bytes"] for e in counters if e["name"] == "budget"]
    assert budget == [done.plan.budget_bytes] * 2
    run_us = next(e["dur"] for e in events if e["name"] == "model_run")
    assert min(totals) == 0 and max(totals) == run_us


def test_actions_say_why(events, done):
    told = {e["args"]["step"]: e["args"] for e in nodes(events)}
    assert done.plan.decisions
    for decision in done.plan.decisions:
        assert told[decision.end]["action"] == "swap-in"
        assert f"{decision.tensor}: {decision.why}" in told[decision.end]["why"]
    runs = [a for a in told.values() if a["action"] == "run"]
    originals = [o for o in done.after.graph.operations if o.role is Role.ORIGINAL]
    assert len(runs) == len(originals)


def test_any_name_is_carried():
    events = trace_events(examples.optimize_result())
    json.dumps(events, allow_nan=False)
    assert any("🚀" in e["args"].get("tensor", "") for e in nodes(events))
    assert {"recompute", "swap-in", "swap-out", "run"} <= {
        e["args"]["action"] for e in nodes(events)
    }


def test_a_trace_is_not_written_over(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text("mine")
    with pytest.raises(UsageError, match=r"trace\.json exists"):
        optimize(MODEL, budget="80%", trace_path=path)
    assert path.read_text() == "mine"
