"""The plan file: read back as it was written, refused where it does not fit, and enough to rebuild
the rewritten model from the original."""

from __future__ import annotations

import json
import shutil
from dataclasses import fields, replace
from pathlib import Path

import jsonschema
import pytest

from planner import apply, optimize
from planner.errors import ModelError
from planner.pipeline.record.assemble import plan_digest, plan_to_json, read_plan
from planner.plan.planfile import Plan, PlannedAction, PredictedCost
from planner.plan.planschema import plan_schema
from planner.results import OptimizeResult

ZOO = Path(__file__).parents[2] / "models" / "zoo"


@pytest.fixture(scope="module", params=["none", "auto"])
def done(request, tmp_path_factory) -> OptimizeResult:
    """mlp_adamw at 90%, without swaps and with them."""
    folder = tmp_path_factory.mktemp(f"plan_{request.param}")
    return optimize(
        ZOO / "mlp_adamw.onnx",
        budget="90%",
        swap=request.param,
        output=folder / "out.onnx",
        plan_path=folder / "plan.json",
        time_limit_s=1.0,
        verify=False,
    )


def plan_path(done: OptimizeResult) -> Path:
    assert done.plan_path is not None
    return done.plan_path


def test_a_plan_is_read_back_as_it_was_written(done):
    plan = read_plan(plan_path(done))
    assert plan == done.plan
    assert plan_to_json(plan) == plan_path(done).read_text(encoding="utf-8")
    assert plan_digest(plan) == plan_digest(done.plan)


def test_the_file_names_every_field(done):
    data = json.loads(plan_path(done).read_text(encoding="utf-8"))
    assert list(data) == [field.name for field in fields(Plan)]
    assert {action["kind"] for action in data["schedule"]} <= {"run", "swap-out", "swap-in"}


def test_the_file_is_as_its_schema_says(done):
    data = json.loads(plan_path(done).read_text(encoding="utf-8"))
    jsonschema.validate(data, plan_schema(), cls=jsonschema.Draft202012Validator)


def test_what_is_resident_at_the_peak_adds_up_to_it(done):
    peak = done.plan.peak
    assert peak is not None
    here = sum(r.bytes for r in peak.residents)
    assert peak.persistent_bytes + peak.workspace_bytes + here == done.plan.planned.peak_bytes
    line = done.after.timeline
    assert (peak.step, peak.node) == (
        line.peak_step,
        done.after.graph.operations[line.order[line.peak_step]].name,
    )
    originals = {tensor.name: tensor.bytes for tensor in done.before.graph.tensors}
    for r in peak.residents:  # what is none of the original's is the result of an anchor
        assert originals.get(r.tensor, 8) == r.bytes


def test_apply_rebuilds_the_rewritten_model_byte_for_byte(done, tmp_path):
    assert json.loads(plan_path(done).read_text())["default_differ"] is None
    again = apply(ZOO / "mlp_adamw.onnx", plan_path(done), output=tmp_path / "again.onnx")
    assert done.output_path is not None
    assert again.read_bytes() == done.output_path.read_bytes()


def test_apply_refuses_another_model(done, tmp_path):
    with pytest.raises(ModelError, match="belongs to another model"):
        apply(ZOO / "gpt.onnx", plan_path(done), output=tmp_path / "again.onnx")
    assert not list(tmp_path.iterdir())


def test_apply_of_an_unchanged_plan_copies_the_model(tmp_path):
    model = tmp_path / "model.onnx"
    shutil.copyfile(ZOO / "mlp_adamw.onnx", model)
    result = optimize(
        model,
        budget="1TB",
        output=tmp_path / "out.onnx",
        plan_path=tmp_path / "plan.json",
        verify=False,
    )
    assert result.plan.unchanged
    again = apply(model, tmp_path / "plan.json", output=tmp_path / "again.onnx")
    assert again.read_bytes() == model.read_bytes() == (tmp_path / "out.onnx").read_bytes()


def tampered(done: OptimizeResult, folder: Path, **changes) -> Path:
    path = folder / "plan.json"
    path.write_text(plan_to_json(replace(done.plan, **changes)), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "content",
    ["", "no JSON", "[]", "{}", "null", '{"version": 1}', '{"version": 2}', '{"version": "1"}'],
)
def test_what_is_no_plan_is_refused(content, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(content)
    with pytest.raises(ModelError, match=r"plan\.json is not a"):
        read_plan(path)


def test_a_plan_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "plan.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModelError, match="is not a plan file"):
        read_plan(path)


def test_a_plan_of_another_version_is_refused(done, tmp_path):
    with pytest.raises(ModelError, match=r"of version 2, newer than 1; update planner"):
        read_plan(tampered(done, tmp_path, version=2))
    with pytest.raises(ModelError, match=r"not a plan file of version 1 \(it says 0\)"):
        read_plan(tampered(done, tmp_path, version=0))


def test_what_older_files_lack_and_newer_ones_add_is_no_matter(done, tmp_path):
    data = json.loads(plan_path(done).read_text(encoding="utf-8"))
    del data["peak"]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**data, "of_a_later_release": [1]}))
    assert read_plan(path) == replace(done.plan, peak=None)


def test_a_field_of_a_wrong_type_is_refused(done, tmp_path):
    data = json.loads(plan_path(done).read_text(encoding="utf-8"))
    for name, value in (("schedule", "everything"), ("baseline", 3), ("dims", [1])):
        path = tmp_path / "plan.json"
        path.write_text(json.dumps({**data, name: value}))
        with pytest.raises(ModelError, match="not a valid plan file"):
            read_plan(path)


def other(kind: str, target: str) -> PlannedAction:
    return PlannedAction(kind=kind, target=target)


def _misfits(plan: Plan) -> dict[str, tuple[PlannedAction, ...]]:
    whole = plan.schedule
    return {
        "a node that is not there": (other("run", "nobody"), *whole),
        "a tensor that is not there": (*whole, other("swap-out", "nothing")),
        "an operation left out": tuple(a for a in whole if a.target != whole[0].target),
        "no kind of action": (other("fly", whole[0].target), *whole[1:]),
        "empty": (),
        "backwards": tuple(reversed(whole)),
        "swapped in before out": (other("swap-in", "relu"), *whole),
    }


@pytest.mark.parametrize(
    "what",
    [
        "a node that is not there",
        "a tensor that is not there",
        "an operation left out",
        "no kind of action",
        "empty",
        "backwards",
        "swapped in before out",
    ],
)
def test_a_schedule_that_does_not_fit_the_model_is_refused(what, done, tmp_path):
    path = tampered(done, tmp_path, schedule=_misfits(done.plan)[what])
    output = tmp_path / "again.onnx"
    with pytest.raises(ModelError):
        apply(ZOO / "mlp_adamw.onnx", path, output=output)
    assert not output.exists()


def test_a_digest_is_of_what_the_plan_decides(done):
    cost = PredictedCost(peak_bytes=1, time_us=1.0)
    assert plan_digest(done.plan) == plan_digest(replace(done.plan, baseline=cost, solve_s=9.0))
    assert plan_digest(done.plan) != plan_digest(replace(done.plan, order_target="priority"))
    assert plan_digest(done.plan) != plan_digest(
        replace(done.plan, schedule=done.plan.schedule[::-1])
    )
