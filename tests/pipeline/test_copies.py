"""Copies beside the operations, from `--copies` to the plan file, the page and verification."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest

from planner import analyze, apply, native, optimize, session_options, verify
from planner.cli.main import main
from planner.errors import ModelError, UsageError
from planner.onnxio.kinds import GRANULARITY_BYTES
from planner.pipeline.answer.explain import explain
from planner.pipeline.prepare.prepared import prepare
from planner.pipeline.prepare.settings import BESIDE, Settings, choose_copies, settings_of
from planner.pipeline.record.assemble import plan_to_json, read_plan, schedule_of
from planner.pipeline.solve.orders import base_orders, formulate_in
from planner.plan.problem import ActionKind
from planner.report.document.outcome import optimize_document
from planner.report.page import render_page
from planner.report.remarks import that_matter
from planner.report.terminal.whole import print_optimize
from planner.report.trace import COPY_IN, COPY_OUT, trace_events
from planner.request import Levers, Request
from planner.results import OptimizeResult
from planner.runtime.feeds.inputs import make_inputs
from planner.simulate.simulate import simulate
from planner.simulate.waits import with_waits
from planner.targets import HOST
from planner.targets.cuda import CUDA
from planner.targets.webgpu import WEBGPU

pytestmark = pytest.mark.usefixtures("native_library")

MODEL = Path(__file__).parents[2] / "models" / "zoo" / "mlp_adamw.onnx"
LIMIT_S = 2.0


@pytest.fixture(scope="module")
def serial() -> OptimizeResult:
    return optimize(
        MODEL,
        budget="80%",
        swap="only",
        resident="device",
        time_limit_s=LIMIT_S,
        dry_run=True,
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> OptimizeResult:
    """mlp_adamw at 80% with copies beside the operations, verified."""
    folder = tmp_path_factory.mktemp("overlapped")
    return optimize(
        MODEL,
        budget="80%",
        swap="only",
        resident="device",
        copies="overlapped",
        output=folder / "out.onnx",
        plan_path=folder / "plan.json",
        report_path=folder / "report.html",
        time_limit_s=LIMIT_S,
    )


def test_overlap_never_takes_longer(serial, done):
    assert done.plan.planned.time_us <= serial.plan.planned.time_us * (1 + 1e-9)
    assert done.plan.planned.swapped_tensors and serial.plan.planned.swapped_tensors
    assert done.plan.planned.time_us < (done.plan.one_stream_us or 0)
    assert serial.plan.one_stream_us == pytest.approx(serial.plan.planned.time_us)


def test_the_plan_says_how_its_copies_run(done, serial):
    (said,) = [a for a in done.plan.assumptions if a.startswith(BESIDE)]
    assert "on the stream of the operations the step would take" in said
    assert not any(a.startswith(BESIDE) for a in serial.plan.assumptions)
    assert (done.plan.copies, serial.plan.copies) == ("overlapped", "serial")


def test_times_are_those_of_the_simulator(done):
    prepared = prepare(Request(model=MODEL))
    form, actions = schedule_of(done.plan, prepared, prepared.graph)
    hardware = prepared.hardware
    problem = replace(
        form.problem,
        swap_out_bytes_per_s=hardware.copy_to_host_bytes_per_s,
        swap_in_bytes_per_s=hardware.copy_from_host_bytes_per_s,
        capacity_bytes=done.plan.budget_bytes,
    )
    beside = simulate(replace(problem, overlap=True), actions)
    assert done.plan.planned.time_us == pytest.approx(beside.time_us)
    assert done.plan.one_stream_us == pytest.approx(simulate(problem, actions).time_us)
    assert {a.kind for a in actions} == set(ActionKind)
    assert with_waits(replace(problem, overlap=True), actions) == actions


def test_settings_reach_the_problem_in_every_order():
    prepared = prepare(Request(model=MODEL))
    for copies, overlap in (("serial", False), ("overlapped", True), ("auto", False)):
        request = replace(prepared.request, budget="80%", levers=Levers(copies=copies))
        settings = settings_of(replace(prepared, request=request))
        assert settings.budget_bytes == int(0.8 * prepared.baseline.peak_bytes)
        assert settings.overlap is overlap
        for base in base_orders(prepared, time_limit_s=0.5)[:3]:
            form = formulate_in(prepared, base.order, settings, settings.budget_bytes)
            assert form.problem.overlap is overlap
    assert not Settings(budget_bytes=1).overlap


def test_the_choice_has_a_reason():
    assert choose_copies("serial", "auto", HOST) == (False, "")
    assert choose_copies("overlapped", "auto", HOST) == (True, BESIDE)
    overlap, why = choose_copies("overlapped", "auto", CUDA)
    assert overlap and "not been shown to give the same bits" in why and that_matter([why])
    for target in (HOST, CUDA, WEBGPU):
        overlap, why = choose_copies("auto", "auto", target)
        assert not overlap
        assert f"safe on {target.name}" in why
    with pytest.raises(UsageError, match="on the CPU and CUDA, not on WebGPU"):
        choose_copies("overlapped", "auto", WEBGPU)


def test_the_plan_file_round_trips(done, tmp_path):
    assert done.plan_path is not None
    assert read_plan(done.plan_path) == done.plan
    data = json.loads(plan_to_json(done.plan))
    assert data["copies"] == "overlapped"
    del data["copies"], data["one_stream_us"]  # as in older files
    older = tmp_path / "older.plan.json"
    older.write_text(json.dumps(data))
    assert (read_plan(older).copies, read_plan(older).one_stream_us) == ("serial", None)
    with pytest.raises(ModelError, match="make the plan again"):  # serial copies wait for nothing
        apply(MODEL, older, output=tmp_path / "out.onnx")


def test_apply_makes_the_same_bytes(done, tmp_path):
    again = apply(MODEL, done.plan_path, output=tmp_path / "again.onnx")
    assert again.read_bytes() == done.output_path.read_bytes()


def test_text_json_and_page_say_so(done, capsys):
    payload = optimize_document(done)
    head = payload.headline
    assert head.copies == payload.plan.copies == "overlapped"
    assert "Copies run beside the operations" in head.sentence
    assert head.one_stream_us == done.plan.one_stream_us
    print_optimize(payload)
    assert "Copies run beside" in " ".join(capsys.readouterr().out.split())
    assert head.copies_sentence in render_page(payload)
    assert "session = planner.open_session('out.onnx')" in payload.session_code


def test_lanes_show_the_copies_beside_the_operations(done):
    view = optimize_document(done).after
    line, kinds = view.timeline, view.time_by_kind_us
    ends = [a + d for a, d in zip(line.start_us, line.duration_us, strict=True)]
    assert max(ends) == pytest.approx(view.time_us) == pytest.approx(done.plan.planned.time_us)
    assert kinds["copies_overlapped"] > 0
    slices = [e for e in trace_events(done) if e["ph"] == "X" and e["cat"] == "Node"]
    assert {COPY_OUT, COPY_IN} <= {e["tid"] for e in slices}
    for lane in {e["tid"] for e in slices}:  # each works in the order of the schedule
        own = [e for e in slices if e["tid"] == lane and e["dur"]]
        for first, second in itertools.pairwise(own):
            assert first["ts"] + first["dur"] <= second["ts"] + 0.01


def test_explain_prices_the_problem_that_was_solved(done):
    swapped = next(d.tensor for d in done.plan.decisions if d.action == "swap")
    found = explain(MODEL, done.plan_path, swapped, time_limit_s=1.0)
    assert found.intervals


def test_overlap_without_copies_is_a_usage_error(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for command in (["optimize", "--budget", "80%"], ["sweep"]):
        arguments = [command[0], str(MODEL), *command[1:]]
        assert main([*arguments, "--copies", "overlapped", "--swap", "none"]) == 2
        said = capsys.readouterr().err
        assert "--swap none forbids: leave out one of the two" in said
    with pytest.raises(UsageError, match="leave out one"):
        optimize(MODEL, budget="80%", swap="none", copies="overlapped", dry_run=True)


def test_a_sweep_with_overlap_costs_no_more(capsys):
    found = {}
    for copies in ("serial", "overlapped"):
        options = ["--budgets", "80%", "--swap", "only", "--copies", copies, "--time-limit", "2"]
        assert main(["sweep", str(MODEL), *options, "-j", "1", "--json", "-q"]) == 0
        found[copies] = json.loads(capsys.readouterr().out)
    slower = {c: f["frontiers"][0]["points"][0]["slowdown"] for c, f in found.items()}
    assert slower["overlapped"] <= slower["serial"] + 1e-9
    assert found["overlapped"]["copies"] == "overlapped"
    assert BESIDE in found["overlapped"]["assumptions"]


# -- on ONNX Runtime -----------------------------------------------------------------------------


def test_swaps_are_verified_measured_and_capped(done):
    found = done.verification
    assert found is not None and found.passed, found
    outs = sum(a.kind is ActionKind.SWAP_OUT for a in done.plan.schedule)
    assert found.copies.planned == found.copies.ran == 2 * outs > 0
    # a plan counts buffers rounded up, and may copy small ones
    rounded = done.plan.planned.swap_out_bytes + done.plan.planned.swap_in_bytes
    assert 0 <= rounded - found.copies.planned_bytes < found.copies.planned * GRANULARITY_BYTES
    for check in found.memory:
        assert check.how == "measured" and check.worst == ()
    rewritten = found.memory[-1]
    assert (rewritten.model, rewritten.options) == ("rewritten", "recommended")
    assert rewritten.live_bytes == rewritten.predicted_live_bytes <= done.plan.budget_bytes
    assert [cap.passed for cap in found.caps] == [False, True]
    (said,) = [note for note in found.notes if "watched" in note]
    assert "no violations" in said


def test_a_plan_without_its_waits_is_refused(done, tmp_path):
    data = json.loads(done.plan_path.read_text())
    data["schedule"] = [a for a in data["schedule"] if a["kind"] != "swap-out-done"]
    path = tmp_path / "old.plan.json"
    path.write_text(json.dumps(data))
    with pytest.raises(ModelError, match="make the plan again"):
        apply(done.model_path, path, output=tmp_path / "out.onnx")


def test_readers_that_do_not_wait_fail_verification(done, tmp_path):
    """The control: who reads y, not z, reads it while the copy still writes."""
    model = onnx.load(done.output_path)
    wait = next(n for n in model.graph.node if n.op_type == "SwapInDone")
    coming, whole = wait.input[0], wait.output[0]
    for node in model.graph.node:
        for at, name in enumerate(node.input):
            if name == whole:
                node.input[at] = coming
    path = tmp_path / "early.onnx"
    onnx.save(model, path)
    found = verify(done.model_path, path, plan=done.plan_path)
    assert not found.passed
    assert any(failure.startswith("on a slow link") for failure in found.failures)


def test_a_wait_that_reads_no_tensor_is_refused(done, tmp_path):
    """The control: what keeps a buffer until its copy is done is an input of SwapOutDone."""
    model = onnx.load(done.output_path)
    node = next(n for n in model.graph.node if n.op_type == "SwapOutDone")
    del node.input[1]
    path = tmp_path / "bare.onnx"
    onnx.save(model, path)
    options = session_options(path)
    with pytest.raises(Exception, match="SwapOutDone"):
        session = ort.InferenceSession(path, options)
        session.run(None, make_inputs(MODEL, seed=0)[0])


def test_a_file_with_swaps_is_not_planned_again(done):
    with pytest.raises(ModelError, match="plan the model that this file was made of"):
        analyze(done.output_path)


def test_without_the_library_it_is_said_first(done, monkeypatch, tmp_path):
    monkeypatch.setattr(native, "SOURCES", tmp_path)
    with pytest.raises(UsageError, match=r"python -m planner\.native"):
        optimize(done.model_path, budget="60%", dry_run=True)
    with pytest.raises(UsageError, match=r"python -m planner\.native"):
        analyze(done.model_path)
    with pytest.raises(UsageError, match=r"python -m planner\.native"):
        session_options(done.output_path)
