"""planner run on onnxruntime-training: Module opens the planned training model, with what it needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process import PLANNER
from tests.training.conftest import ROOT, Run

SCRIPT = ROOT / "models" / "scripts" / "train_artifacts.py"
STEPS = 6
SEEN = f"""
import runpy, sys, types
sys.modules["onnxruntime.training.optim"] = types.ModuleType("onnxruntime.training.optim")
from onnxruntime.training.api import module

theirs = module.C.Module

def shown(training, state, evaluation, device, options):
    print("opened", training, options.enable_mem_pattern, options.enable_mem_reuse)
    return theirs(training, state, evaluation, device, options)

module.C.Module = shown
sys.argv[0] = {str(SCRIPT)!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""The training script, which says what ONNX Runtime is given."""


def test_training_goes_on_bit_for_bit_within_a_budget(
    training_run: Run,
    artifacts: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder, script = artifacts("gpt"), tmp_path / "seen.py"
    script.write_text(SEEN)
    options = ["--task", "each", "--steps", STEPS, "--threads", 1, "--output", tmp_path]
    plan = ["run", "--budget", "60%", "--time-limit", "0.5", "--no-verify", "--explain"]
    plain = training_run(script, folder, *options)
    files = [(tmp_path / name).read_bytes() for name in ("trained", "inference.onnx")]
    first = training_run(*PLANNER, *plan, script, folder, *options)
    again = training_run(*PLANNER, *plan, script, folder, *options)
    assert _losses(first.stdout) == _losses(again.stdout) == _losses(plain.stdout)
    assert len(set(_losses(plain.stdout))) > STEPS // 2
    assert [(tmp_path / name).read_bytes() for name in ("trained", "inference.onnx")] == files
    model = folder / "training_model.onnx"
    assert f"opened {model} True True" in plain.stdout
    assert "planned now" in first.stderr and "kept from an earlier start" in again.stderr
    planned = again.stderr.splitlines()[0].rpartition("opened as ")[2]
    assert f"opened {planned} False False" in again.stdout and Path(planned) != model
    ours = training_run(*PLANNER, "run", script, folder, "--model", planned, *options)
    assert _losses(ours.stdout) == _losses(plain.stdout)
    assert f"opened {planned} False False" in ours.stdout


def _losses(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith(("seconds", "opened"))]
