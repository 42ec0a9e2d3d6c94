"""The documents of the plan file say what the code does."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path

import jsonschema
import pytest

import planner.plan
from planner.plan import planfile
from planner.plan.planschema import _schema, plan_schema, schema_text
from planner.plan.statistics import EngineStatistics

FOLDER = Path(next(iter(planner.plan.__path__)))
CLASSES = (
    planfile.Plan,
    planfile.PlannedAction,
    planfile.Decision,
    planfile.Barred,
    EngineStatistics,
    planfile.PredictedCost,
    planfile.PeakMoment,
    planfile.Resident,
)


def test_the_schema_file_is_that_of_the_dataclasses():
    assert (FOLDER / "plan.schema.json").read_text(encoding="utf-8") == schema_text()


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(plan_schema())
    assert {"Plan", *plan_schema()["$defs"]} == {cls.__name__ for cls in CLASSES}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_the_description_names_every_field(cls):
    text = (FOLDER / "planfile.md").read_text(encoding="utf-8")
    quoted = set(re.findall(r"`([a-z_0-9]+)`", text))
    assert {field.name for field in fields(cls)} <= quoted
    assert f"# The plan file, version {planfile.PLAN_VERSION}\n" in text


def test_the_schema_tells_plans_from_others():
    check = jsonschema.Draft202012Validator(plan_schema())
    cost = {"peak_bytes": 1, "time_us": 2.5}
    plan = {"version": 1, "dims": {}, "baseline": cost, "best_order": cost, "planned": cost}
    assert check.is_valid(plan)
    assert check.is_valid({**plan, "of_a_later_release": 1})
    for name in plan:
        assert not check.is_valid({k: v for k, v in plan.items() if k != name})
    for wrong in (
        {"version": 2},
        {"dims": {"batch": "x"}},
        {"planned": {"peak_bytes": 1}},
        {"schedule": [{"kind": "fly", "target": "x"}]},
        {"binding": [["x", 1, 2]]},
        {"bound_us": "much"},
    ):
        assert not check.is_valid({**plan, **wrong})


def test_a_type_that_json_cannot_hold_is_an_error():
    @dataclass
    class Odd:
        what: set[int]

    with pytest.raises(TypeError, match="cannot hold"):
        _schema(Odd, {})
