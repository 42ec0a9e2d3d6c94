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
TASKS = {"resnet18": ("images", 32), "gpt": ("each", 16)}
"""Task and batch; `reports/training.md` has 100 steps of these and two more."""

STEPS = 20
UNTOUCHED = ("checkpoint", "eval_model.onnx", "optimizer_model.onnx")
Artifacts = Callable[[str], Path]


@pytest.fixture(scope="module")
def planned(training_run: Run, artifacts: Artifacts) -> Callable[[str], Path]:
    """A function from a net's name to its training model, planned to 60% of its peak."""

    def made(name: str) -> Path:
        folder = artifacts(name)
        output = folder / "training_model.planned.onnx"
        if not output.exists():
            options = ["--budget", "60%", "--time-limit", "3", "--no-verify"]
            training_run(
                *PLANNER, "optimize", folder / "training_model.onnx", *options, "-o", output
            )
        return output

    return made


@pytest.mark.parametrize("name", sorted(TASKS))
def test_training_goes_on_bit_for_bit(
    training_run: Run,
    artifacts: Artifacts,
    planned: Callable[[str], Path],
    tmp_path: Path,
    name: str,
) -> None:
    folder, model = artifacts(name), planned(name)
    before = {f: _digest(folder / f) for f in UNTOUCHED}
    losses, files = [], []
    for label, more in (("original", []), ("planned", ["--model", model])):
        output = tmp_path / label
        output.mkdir()
        task, batch = TASKS[name]
        options = ["--task", task, "--batch", batch, "--steps", STEPS, "--threads", 1]
        done = training_run(SCRIPT, folder, *options, *more, "--output", output)
        lines = [x for x in done.stdout.splitlines() if not x.startswith("seconds")]
        losses.append(lines)
        files.append([_digest(output / f) for f in ("trained", "inference.onnx")])
    assert len(losses[0]) == STEPS + 1
    assert losses[0] == losses[1]
    assert len(set(losses[0])) > STEPS // 2  # it learns: the loss moves
    assert files[0] == files[1]  # the checkpoint, and the exported model
    assert {f: _digest(folder / f) for f in UNTOUCHED} == before


@pytest.mark.parametrize("name", sorted(TASKS))
def test_the_plan_keeps_what_the_training_api_reads(
    artifacts: Artifacts, planned: Callable[[str], Path], name: str
) -> None:
    original = onnx.load(artifacts(name) / "training_model.onnx")
    rewritten = onnx.load(planned(name))
    assert rewritten.ir_version == original.ir_version <= 10
    assert rewritten.graph.input == original.graph.input
    assert rewritten.graph.output == original.graph.output
    kinds = [node.op_type for node in rewritten.graph.node]
    assert not {"MemcpyToHost", "MemcpyFromHost"} & set(kinds)
    accumulators = [node.op_type for node in original.graph.node].count("InPlaceAccumulatorV2")
    assert kinds.count("InPlaceAccumulatorV2") == accumulators


def test_order_and_bytes_are_confirmed_by_the_build(
    training_run: Run, artifacts: Artifacts, planned: Callable[[str], Path]
) -> None:
    folder, model = artifacts("resnet18"), planned("resnet18")
    (plan,) = folder.glob("*.plan.json")
    line = ["verify", folder / "training_model.onnx", model, "--plan", plan, "--json"]
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
