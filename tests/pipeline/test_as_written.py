"""A file says how it is opened; with no plan file at hand, verification opens it so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from planner import api, session_options
from planner.cli.main import main
from planner.targets.keys import (
    LEVEL_KEY,
    ORDER_KEY,
    PACKED_KEY,
    POOL_KEY,
    SESSION_KEYS,
    TARGET_KEY,
)
from tests.pipeline.test_residence import SIDE, stored

MLP = Path(__file__).parents[2] / "models" / "zoo" / "mlp_adamw.onnx"


def props(path: Path) -> dict[str, str]:
    found = {p.key: p.value for p in onnx.load(path, load_external_data=False).metadata_props}
    return {k: v for k, v in found.items() if k in SESSION_KEYS and k != POOL_KEY}


@pytest.mark.parametrize(
    ("asked", "key", "value", "level"),
    [
        ({"ort_optimize": False}, LEVEL_KEY, "disabled", "disabled"),
        ({"order": "priority"}, ORDER_KEY, "priority", "all"),
    ],
)
def test_a_file_is_verified_as_it_was_planned(
    asked: dict[str, Any], key: str, value: str, level: str, tmp_path: Path
):
    planned, again = tmp_path / "m.onnx", tmp_path / "again.onnx"
    plan = tmp_path / "m.plan.json"
    options = {"budget": "80%", "swap": "none", "time_limit_s": 1.0, "verify": False}
    api.optimize(MLP, output=planned, plan_path=plan, **options, **asked)
    assert props(planned) == {TARGET_KEY: "cpu", key: value}
    found = api.verify(MLP, planned, fast=True)
    assert found.passed, found.failures
    assert {check.level for check in found.orders} >= {level}
    api.apply(MLP, plan, output=again)
    assert again.read_bytes() == planned.read_bytes()


def test_metadata_that_no_planner_writes_is_one_line(tmp_path: Path, capsys):
    model = onnx.load(MLP)
    onnx.helper.set_model_props(model, {TARGET_KEY: "cpu", ORDER_KEY: "any"})
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    assert main(["verify", str(MLP), str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(path) in line and ORDER_KEY in line


def test_weights_that_no_kernel_packs_are_said_to_be_so(tmp_path: Path):
    """Opened as the file says, its numbers are those that were verified."""
    path, planned = stored(tmp_path), tmp_path / "planned.onnx"
    api.optimize(
        path,
        budget="40%",
        output=planned,
        time_limit_s=1.0,
        resident="host",
        verify=False,
    )
    assert props(planned)[PACKED_KEY] == "0"
    unpacked = ort.SessionOptions()
    unpacked.add_session_config_entry("session.disable_prepacking", "1")
    feeds = {"x": np.random.default_rng(3).normal(size=(4, SIDE)).astype("f4")}
    (expected,) = ort.InferenceSession(str(path), unpacked).run(None, feeds)
    (found,) = ort.InferenceSession(str(planned), session_options(planned)).run(None, feeds)
    assert found.tobytes() == expected.tobytes()
