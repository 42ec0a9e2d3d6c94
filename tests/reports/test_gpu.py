"""The checks for a GPU, rehearsed on the CPU: they hold, and rows are kept as they should be."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from reports.gpu import __main__ as program
from reports.gpu import basics, fused
from reports.gpu.graphs import Where
from reports.gpu.large import CASES, in_half

pytestmark = pytest.mark.usefixtures("native_library")
CPU = Where(False)


def answers(text: str) -> dict[str, dict]:
    return {row["check"]: row for row in map(json.loads, text.splitlines())}


CHECKS = basics.CHECKS | fused.CHECKS


@pytest.mark.parametrize("name", [n for n in CHECKS if n != "pool"])
def test_a_check_holds_in_rehearsal(name: str):
    found = CHECKS[name](CPU)
    assert found["holds"], found
    json.dumps(found)


def test_without_a_gpu_nothing_is_claimed(capfd: pytest.CaptureFixture[str]):
    before = program.RESULT.exists()
    if program.device_names():
        pytest.skip("there is a GPU")
    assert program.main([]) == 2
    assert "no NVIDIA GPU is here" in capfd.readouterr().err
    assert program.RESULT.exists() == before


def test_a_rehearsal_runs_each_check_in_a_process_and_writes_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(program, "RESULT", tmp_path / "gpu.json")
    names = ["pool", "mlp_adamw 50%: plan", "mlp_adamw 50%: steps"]
    assert program.main(["--rehearse", "--work", str(tmp_path / "work"), *names]) == 0
    found = answers(capfd.readouterr().out)
    assert [*found] == names and all(row["holds"] for row in found.values())
    assert found[names[2]]["swaps"]["swaps_in"] > 0
    assert not program.RESULT.exists()


def test_rows_are_kept_as_they_are_measured_and_the_next_call_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(program, "RESULT", tmp_path / "gpu.json")
    monkeypatch.setattr(program, "device_names", lambda: ("a card",))
    asked: list[str] = []

    def measured(name: str, *_: object) -> dict:
        asked.append(name)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return {"holds": name != "bits"}

    monkeypatch.setattr(program, "measured", measured)
    with pytest.raises(KeyboardInterrupt):
        program.main(["load", "bits", "control"])
    assert [*json.loads(program.RESULT.read_text())] == ["load", "bits"]
    assert program.main(["load", "bits", "control"]) == 0
    assert asked == ["load", "bits", "control", "control"]
    assert program.main(["bits", "--again"]) == 1
    with pytest.raises(SystemExit):
        program.main(["no such check"])
    assert "there is no check 'no such check'" in capfd.readouterr().err


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_a_graph_in_half_has_no_float_left_and_is_valid(kind: str):
    number = {"bf16": TensorProto.BFLOAT16, "fp16": TensorProto.FLOAT16}[kind]
    zoo = Path(__file__).parents[2] / "models" / "zoo"
    model = in_half(onnx.load(zoo / "gpt.onnx"), number)
    onnx.checker.check_model(model)
    found = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    values = (*found.graph.value_info, *found.graph.output)
    kinds = {v.name: v.type.tensor_type.elem_type for v in values}
    assert number in kinds.values()
    floats = {name for name, kind in kinds.items() if kind == TensorProto.FLOAT}
    assert all(name.endswith("__float32") for name in floats)  # statistics, which are cast at once
    arrays = (onnx.numpy_helper.to_array(t).astype(float) for t in model.graph.initializer)
    assert all(np.isfinite(array).all() for array in arrays)


def test_every_case_of_the_device_has_checks_of_its_own():
    names = program.names_of(cuda=True)
    assert len(names) == len(set(names)) == len(CHECKS) + sum(len(c.checks) for c in CASES)
