"""The documents behind `--json` and the page: shape, plain types, and agreement with the types."""

import ast
import dataclasses
import subprocess
import sys

import msgspec
import pytest

from planner.files.structuring import json_text
from planner.plan.planfile import Arena
from planner.report.document.analysis import analyze_document
from planner.report.document.outcome import OptimizeDocument, optimize_document, with_preview
from planner.report.document.verification import verify_document
from planner.report.document.views import view_document
from planner.report.session_code import script_line, session_code
from planner.targets import target_named
from tests.report import examples


@pytest.fixture(scope="module")
def result():
    return examples.optimize_result()


@pytest.fixture(scope="module")
def payload(result):
    return examples.as_json(optimize_document(result))


def shape_of(value):
    """The keys and types of a document; lists by their first item, series by their type."""
    if isinstance(value, dict):
        return {key: shape_of(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape_of(value[0])] if value else []
    return type(value).__name__


def test_the_shape_of_each_document(payload, result, snapshot):
    assert shape_of(payload) == snapshot(name="optimize")
    analysis = examples.as_json(analyze_document(examples.analysis()))
    assert shape_of(analysis) == snapshot(name="analyze")
    verification = examples.as_json(verify_document(result.verification))
    assert shape_of(verification) == snapshot(name="verify")


@pytest.mark.parametrize("verified", [True, False])
def test_a_document_that_is_read_again_is_the_same(verified):
    document = optimize_document(examples.optimize_result(verified=verified))
    text = json_text(document)
    assert text.isascii()
    assert msgspec.json.decode(text, type=OptimizeDocument) == document


def test_a_document_is_made_once_and_no_replacement_of_the_result_takes_it_over():
    result = examples.optimize_result()
    document = optimize_document(result)
    assert optimize_document(result) is document
    unverified = optimize_document(dataclasses.replace(result, verification=None))
    assert unverified.verification is None and document.verification is not None
    alone = dataclasses.replace(result, budget_preview=None)
    later = dataclasses.replace(alone, budget_preview=result.budget_preview)
    document = with_preview(optimize_document(alone), later)
    assert optimize_document(later) is document
    assert document == optimize_document(dataclasses.replace(later))  # as if it were made at once


def test_what_json_cannot_hold_is_text():
    before = examples.view(examples.chain(4))
    document = verify_document(examples.verification(before, before, passed=False))
    worst = examples.as_json(document)["outputs"][0]
    assert (worst["max_abs_diff"], worst["max_rel_diff"]) == ("inf", "nan")


def test_headline_is_the_plan(payload, result):
    headline, plan = payload["headline"], result.plan
    assert headline["peak_before_bytes"] == plan.baseline.peak_bytes
    assert headline["peak_after_bytes"] == plan.planned.peak_bytes
    assert headline["budget_bytes"] == plan.budget_bytes
    assert headline["predicted_time_ratio"] == plan.planned.time_us / plan.baseline.time_us
    assert headline["measured_time_ratio"] == result.verification.time.ratio
    assert headline["measured_time_after_us"] == 330.0
    assert headline["measured_peak_after_bytes"] == plan.planned.peak_bytes + 128
    assert headline["measured_peak_after_how"] == "replayed"


@pytest.mark.parametrize("key", ["before", "after"])
def test_categories_add_up_at_every_step(payload, key):
    line = payload[key]["timeline"]
    assert [sum(parts) for parts in zip(*line["by_category"].values(), strict=True)] == (
        line["live_bytes"]
    )
    peak = payload[key]["peak_step"]
    assert line["live_bytes"][peak] == payload[key]["peak_bytes"] == max(line["live_bytes"])
    assert sum(payload[key]["composition_at_peak"].values()) == payload[key]["peak_bytes"]


@pytest.mark.parametrize("key", ["before", "after"])
def test_rectangles_of_the_one_region_do_not_overlap(payload, key):
    view = payload[key]
    packed = view["one_region"]
    assert packed["fragmentation"] == pytest.approx(packed["bytes"] / view["peak_bytes"] - 1)
    places = [(r["start"], r["end"], r["offset"], r["bytes"]) for r in view["live_ranges"]]
    places += [(w["step"], w["step"] + 1, w["offset"], w["bytes"]) for w in packed["workspace"]]
    assert packed["workspace"]
    for step in range(view["steps"]):
        here = sorted((at, size) for start, end, at, size in places if start <= step < end)
        top = view["persistent_bytes"]
        for at, size in here:
            assert at >= top
            top = at + size
        assert top <= packed["bytes"]
        held = view["persistent_bytes"] + sum(size for _, size in here)
        assert held == view["timeline"]["live_bytes"][step]


@pytest.mark.parametrize("key", ["before", "after"])
def test_the_taxonomy_and_the_time_add_up(payload, key):
    view = payload[key]
    assert sum(view["taxonomy_at_peak"].values()) == view["peak_bytes"]
    spent = view["time_by_kind_us"]
    overlapped = spent.pop("copies_overlapped")
    assert sum(spent.values()) - overlapped == pytest.approx(sum(view["timeline"]["duration_us"]))
    roles = view["timeline"]["role"]
    assert bool(spent["recompute"]) == ("recompute" in roles) == (key == "after")
    assert bool(spent["copy_in"]) == ("swap-in" in roles) == (key == "after")


def test_nodes_as_predicted_are_counted(payload):
    for check in payload["verification"]["memory"]:
        rows = check["per_node"]
        same = zip(rows["predicted_bytes"], rows["measured_bytes"], strict=True)
        assert check["nodes"] == len(rows["node"])
        assert 0 < check["nodes_equal"] == sum(a == b for a, b in same) < check["nodes"]


def test_durations_are_by_step():
    view = examples.view(examples.chain(3))
    steps = len(view.timeline.order)
    view = dataclasses.replace(
        view,
        duration_us=tuple(float(i) for i in range(steps)),
        timeline=dataclasses.replace(view.timeline, order=view.timeline.order[::-1]),
    )
    found = view_document(view).timeline.duration_us
    assert list(found) == [float(i) for i in reversed(range(steps))]


@pytest.mark.parametrize("key", ["before", "after"])
def test_residents_at_the_peak_are_all_there_is(payload, key):
    residents = payload[key]["residents_at_peak"]
    assert sum(r["bytes"] for r in residents) == payload[key]["peak_bytes"]
    assert [r["bytes"] for r in residents] == sorted((r["bytes"] for r in residents), reverse=True)
    assert any(r["persistent"] for r in residents)


def test_residents_left_out_are_counted():
    view = examples.as_json(optimize_document(examples.optimize_result(300)))["before"]
    omitted = view["residents_at_peak_omitted"]
    assert omitted["count"] > 0
    assert len(view["residents_at_peak"]) == 200
    shown = sum(r["bytes"] for r in view["residents_at_peak"])
    assert shown + omitted["bytes"] == view["peak_bytes"]


def test_fates_follow_the_decisions_and_the_added_operations(payload):
    after = {r["tensor"]: r["fate"] for r in payload["after"]["live_ranges"]}
    for decision in payload["decisions"]:
        assert (
            after[decision["tensor"]]
            == {"recompute": "recomputed", "swap": "swapped"}[decision["action"]]
        )
    assert after["act4__again"] == "recomputed"
    assert after["act9__back"] == "swapped"
    assert after["dloss"] == "kept"


@pytest.mark.parametrize(
    ("changes", "verified", "verdict"),
    [
        ({}, None, "Fits, not verified"),
        ({}, True, "Fits, verified"),
        ({}, False, "Verification failed"),
        ({"budget_bytes": 1}, True, "Does not fit"),
        ({"unchanged": True}, True, "Fits as it is"),
        ({"reserve_bytes": 1 << 40}, True, "Does not fit"),
    ],
)
def test_verdicts(changes, verified, verdict):
    result = examples.optimize_result(verified=verified is not None)
    plan = dataclasses.replace(result.plan, **{"budget_bytes": 1 << 34, **changes})
    verification = result.verification
    if verification:
        verification = dataclasses.replace(verification, passed=bool(verified))
    result = dataclasses.replace(result, plan=plan, verification=verification)
    assert optimize_document(result).headline.verdict == verdict


def test_no_claim_of_proof_without_a_run():
    headline = optimize_document(examples.optimize_result(verified=False)).headline
    assert headline.sentence.endswith("these are predictions.")
    assert headline.verified is None
    assert headline.measured_time_ratio is None
    assert "(predicted)" in headline.sentence


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("order", ["default", "priority"])
def test_session_code_compiles_and_quotes_the_name(device, order):
    code = session_code(
        "a 'b' \"c\".onnx", order_target=order, target=target_named(device), budget_bytes=123
    )
    compile(code, "code", "exec")
    assert repr("a 'b' \"c\".onnx") in code
    assert ("PRIORITY_BASED" in code) == (order == "priority")
    assert ('"max_mem": 123' in code) == (device == "cuda")
    arena = Arena(max_bytes=4560, first_region_bytes=780)
    code = session_code("m.onnx", target=target_named(device), budget_bytes=123, arena=arena)
    assert '"max_mem": 4560, "initial_chunk_size_bytes": 1024' in code


def relu_of(code: str, folder) -> str:
    """What a session that `code` opens makes of m.onnx, in a process of its own: an arena is registered
    for all of one."""
    from onnx import TensorProto, helper, save

    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    opset = [helper.make_opsetid("", 17)]
    save(helper.make_model(graph, opset_imports=opset, ir_version=8), folder / "m.onnx")
    code += "\nprint(session.run(None, {'x': __import__('numpy').float32([-1, 2])})[0])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_session_code_runs(tmp_path):
    assert relu_of(session_code("m.onnx", order_target="priority"), tmp_path) == "[0. 2.]"


def test_the_line_for_a_script_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = script_line(str(tmp_path / "m.onnx"), None)
    assert "'m.onnx'" in line
    assert relu_of("\n".join(["import planner", line]), tmp_path) == "[0. 2.]"


def test_the_line_for_a_script_names_the_file_whatever_it_is_called():
    call = ast.parse(script_line("a 'b'.onnx", None)).body[0].value  # type: ignore[attr-defined]
    assert [ast.literal_eval(argument) for argument in call.args] == ["a 'b'.onnx"]
