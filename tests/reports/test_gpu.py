"""The checks for a GPU, rehearsed on the CPU: they hold, and rows are kept as they should be."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from reports.gpu import __main__ as program
from reports.gpu import basics, fused
from reports.gpu.graphs import Where
from reports.gpu.large import CASES, in_half
from reports.shared import read_rows, write_rows

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


def test_a_plan_whose_files_are_gone_is_made_again_and_what_reads_it_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(program, "RESULT", tmp_path / "gpu.json")
    monkeypatch.setattr(program, "device_names", lambda: ("a card",))
    plan, steps, pool, *_ = CASES[0].checks
    title = CASES[0].name
    write_rows(program.RESULT, {plan: {"cards": ["a card"], "holds": True}})
    asked: list[str] = []

    def measured(name: str, _asked: object, work: Path, _limit_s: float) -> dict:
        asked.append(name)
        if name == plan and asked.count(plan) > 1:
            (work / title).mkdir(parents=True)
            write_rows(work / title / "facts.json", {})
        return {"holds": name != plan or asked.count(plan) > 1}

    monkeypatch.setattr(program, "measured", measured)
    for status in (1, 0, 0):
        assert program.main(["load", steps, pool, "--work", str(tmp_path / "work")]) == status
    assert asked == ["load", plan, plan, steps, pool]
    assert [*read_rows(program.RESULT, {})] == [plan, "load", steps, pool]


@pytest.mark.skipif(not Path("/proc").exists(), reason="processes are found by /proc")
def test_a_check_that_is_too_slow_leaves_no_process(tmp_path: Path):
    asked = argparse.Namespace(graphs=tmp_path, rehearse=True)

    def running(check: str) -> list[int]:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"reports.gpu.child\0{check}" in (process / "cmdline").read_bytes().decode():
                    found.append(int(process.name))
        return found

    slow = threading.Thread(target=program.measured, args=("pool", asked, tmp_path, 60.0))
    slow.start()
    while not running("memory:") and slow.is_alive():
        time.sleep(0.01)
    os.kill(*running("pool"), signal.SIGKILL)  # as at the end of its time
    slow.join()
    time.sleep(0.5)
    assert not running("memory:")


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
