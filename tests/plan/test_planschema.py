"""The documents of the plan file say what the code does."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import planner.plan
from planner.disk import Disk
from planner.errors import ModelError
from planner.pipeline.record.assemble import read_plan
from planner.plan import planfile
from planner.plan.planschema import plan_schema, schema_text
from planner.plan.problem import ActionKind
from planner.plan.statistics import EngineStatistics

FOLDER = Path(next(iter(planner.plan.__path__)))
CLASSES = (
    planfile.Plan,
    Disk,
    planfile.PlannedAction,
    planfile.Decision,
    planfile.Barred,
    planfile.SplitRegion,
    planfile.SizeBound,
    EngineStatistics,
    planfile.PredictedCost,
    planfile.PeakMoment,
    planfile.Resident,
    planfile.MicroBatches,
    planfile.Accumulator,
    planfile.Arena,
    planfile.Pool,
)


def test_the_schema_file_is_that_of_the_dataclasses():
    assert (FOLDER / "plan.schema.json").read_text(encoding="utf-8") == schema_text()


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(plan_schema())
    names = {cls.__name__ for cls in (*CLASSES, ActionKind)}
    assert {"Plan", *plan_schema()["$defs"]} == names


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_the_description_names_every_field(cls):
    text = (FOLDER / "planfile.md").read_text(encoding="utf-8")
    quoted = set(re.findall(r"`([a-z_0-9]+)`", text))
    assert {field.name for field in fields(cls)} <= quoted
    assert f"# The plan file, version {planfile.PLAN_VERSION}\n" in text


COST = {"peak_bytes": 1, "time_us": 2.5}
PLAN = {"version": 1, "dims": {}, "baseline": COST, "best_order": COST, "planned": COST}
CHECK = jsonschema.Draft202012Validator(plan_schema())


def test_the_schema_tells_plans_from_others():
    assert CHECK.is_valid(PLAN)
    assert CHECK.is_valid({**PLAN, "of_a_later_release": 1})
    for name in PLAN:
        assert not CHECK.is_valid({k: v for k, v in PLAN.items() if k != name})


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": 2},
        {"dims": {"batch": "x"}},
        {"dims": {"batch": 0}},
        {"planned": {"peak_bytes": 1}},
        {"planned": {**COST, "swap_us": -1}},
        {"planned": {**COST, "time_us": 1e300}},
        {"schedule": [{"kind": "fly", "target": "x"}]},
        {"schedule": [{"kind": "run", "target": "x", "copy": "0"}]},
        {"decisions": [{}]},
        {"binding": [["x", 1, 2]]},
        {"binding": [["x"]]},
        {"binding": [["x", -1]]},
        {"peak": {}},
        {"bound_us": "much"},
        {"budget_bytes": 1 << 63},
        {"seed": 1 << 31},
        {"swap_mode": "sometimes"},
        {"device": "tpu"},
        {"copies": "later"},
        {"order_target": None},
        {"unchanged": 1},
    ],
    ids=str,
)
def test_what_the_schema_refuses_is_not_read(wrong: dict[str, Any], tmp_path: Path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN))
    assert read_plan(path).planned.time_us == COST["time_us"]
    path.write_text(json.dumps({**PLAN, **wrong}))
    assert not CHECK.is_valid(json.loads(path.read_text()))
    with pytest.raises(ModelError, match=r"plan\.json is not a") as raised:
        read_plan(path)
    assert "\n" not in str(raised.value)
