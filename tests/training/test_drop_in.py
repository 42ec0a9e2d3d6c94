"""A rewritten training model beside the untouched other artifacts, in an unchanged script."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from tests.process import PLANNER
from tests.training.conftest import ROOT, Run

SCRIPT = ROOT / "models" / "scripts" / "train_artifacts.py"
NET, TASK, BATCH = "resnet18", "images", 32
"""`reports/training.md` has 100 steps of this and three more; `test_run` has a GPT's."""

STEPS = 8
UNTOUCHED = ("checkpoint", "eval_model.onnx", "optimizer_model.onnx")
Artifacts = Callable[[str], Path]


@pytest.fixture(scope="module")
def folder(artifacts: Artifacts) -> Path:
    """The net's artifacts."""
    return artifacts(NET)


@pytest.fixture(scope="module")
def planned(training_run: Run, folder: Path) -> Path:
    """The net's training model, planned to 60% of its peak."""
    output = folder / "training_model.planned.onnx"
    options = ["--budget", "60%", "--time-limit", "0.5", "--no-verify"]
    training_run(*PLANNER, "optimize", folder / "training_model.onnx", *options, "-o", output)
    return output


def test_training_goes_on_bit_for_bit(
    training_run: Run, folder: Path, planned: Path, tmp_path: Path
) -> None:
    before = {f: _digest(folder / f) for f in UNTOUCHED}
    losses, files = [], []
    for label, more in (("original", []), ("planned", ["--model", planned])):
        output = tmp_path / label
        output.mkdir()
        options = ["--task", TASK, "--batch", BATCH, "--steps", STEPS, "--threads", 1]
        done = training_run(SCRIPT, folder, *options, *more, "--output", output)
        lines = [x for x in done.stdout.splitlines() if not x.startswith("seconds")]
        losses.append(lines)
        files.append([_digest(output / f) for f in ("trained", "inference.onnx")])
    assert len(losses[0]) == STEPS + 1
    assert losses[0] == losses[1]
    assert len(set(losses[0])) > STEPS // 2  # it learns: the loss moves
    assert files[0] == files[1]  # the checkpoint, and the exported model
    assert {f: _digest(folder / f) for f in UNTOUCHED} == before


def test_the_plan_keeps_what_the_training_api_reads(folder: Path, planned: Path) -> None:
    original = onnx.load(folder / "training_model.onnx")
    rewritten = onnx.load(planned)
    assert rewritten.ir_version == original.ir_version <= 10
    assert rewritten.graph.input == original.graph.input
    assert rewritten.graph.output == original.graph.output
    kinds = [node.op_type for node in rewritten.graph.node]
    assert not {"MemcpyToHost", "MemcpyFromHost"} & set(kinds)
    accumulators = [node.op_type for node in original.graph.node].count("InPlaceAccumulatorV2")
    assert kinds.count("InPlaceAccumulatorV2") == accumulators


def test_order_and_bytes_are_confirmed_by_the_build(
    training_run: Run, folder: Path, planned: Path
) -> None:
    (plan,) = folder.glob("*.plan.json")
    line = ["verify", folder / "training_model.onnx", planned, "--plan", plan, "--json"]
    result = json.loads(training_run(*PLANNER, *line).stdout)
    assert result["passed"]
    assert result["ort_version"] == "1.19.2"
    assert all(check["equal"] for check in result["orders"])
    written = [o["name"] for o in result["outputs"] if o["name"].endswith("(written in place)")]
    assert len(written) == 62 + 40  # gradients, running statistics
    live = {c["model"]: c["live_bytes"] for c in result["memory"]}
    assert live["rewritten"] <= 0.6 * live["original"]
    assert not result["caps"] and any(
        "cannot use planner's pool" in note for note in result["notes"]
    )


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
