"""Micro-batches of training artifacts: their own accumulation stays, and adds up to the whole batch's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from tests.process import PLANNER
from tests.training.conftest import Run

BATCH, RUNS = 64, 4


@pytest.fixture(scope="module")
def symbolic(artifacts: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The training model of an MLP, its batch a symbolic dim."""
    model = onnx.load(artifacts("mlp") / "training_model.onnx")
    del model.graph.value_info[:]
    for value in model.graph.input[:2]:
        dim = value.type.tensor_type.shape.dim[0]
        dim.Clear()
        dim.dim_param = "batch"
    path = tmp_path_factory.mktemp("symbolic") / "training_model.onnx"
    onnx.save(model, path)
    return path


def test_gradients_enter_the_accumulators_scaled(
    training_run: Run, symbolic: Path, tmp_path: Path
) -> None:
    output = tmp_path / "planned.onnx"
    options = ["--budget", "100%", "--dim", f"batch={BATCH}", "--micro-batch", RUNS, "--json"]
    done = training_run(
        *PLANNER, "optimize", symbolic, *options, "-o", output, "--time-limit", "0.5"
    )
    payload = json.loads(done.stdout)
    micro, check = payload["plan"]["micro"], payload["verification"]["micro"]
    assert micro["runs"] == RUNS and not micro["accumulators"]
    before, after = onnx.load(symbolic), onnx.load(output)
    names = [[v.name for v in m.graph.input] for m in (before, after)]
    assert names[0] == names[1]
    assert [v.name for v in before.graph.output] == [v.name for v in after.graph.output]
    scaled = {n.input[1] for n in after.graph.node if n.op_type == "InPlaceAccumulatorV2"}
    made = {o: n for n in after.graph.node for o in n.output}
    assert len(scaled) == len(micro["scaled"]) > 0
    assert {made[name].op_type for name in scaled} == {"Mul"}
    assert payload["verification"]["passed"] and not check["far"]
    assert len(check["outputs"]) == len(scaled)
