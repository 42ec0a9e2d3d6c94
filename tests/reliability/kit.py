"""Good files to spoil: a model, its plans and rewritten models, its problem, a profile of it."""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.reliability.graphs import SIDE, diamond, node, proto, save


@functools.cache
def kit() -> Path:
    """The folder of the good files, made once in a process.

    `model.onnx`, `plan.json` and `planned.onnx` with recompute; `swaps.json` and `swapped.onnx` with
    copies; `other.onnx` and `other.json` of another model; `problem.json`; `profile.json`;
    `inputs.npz`; `recipes.json`; `hardware.toml`.
    """
    folder = Path(tempfile.mkdtemp(prefix="misuse-kit-"))
    atexit.register(_remove, folder, os.getpid())
    # in a process of its own, since ONNX Runtime's threads do not survive a fork
    subprocess.run([sys.executable, "-m", __name__, str(folder)], check=True)
    return folder


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a fork leaves it
        shutil.rmtree(folder, ignore_errors=True)


def fill(folder: Path) -> None:
    """Make the good files in `folder`."""
    from planner import optimize
    from planner.cli.main import main

    model = folder / "model.onnx"
    save(proto(diamond(9)), model)
    save(proto([*diamond(9), node("Exp", ["y"], ["z"])]), folder / "other.onnx")
    for source, plan, written, swap in (
        ("model", "plan", "planned", "none"),
        ("model", "swaps", "swapped", "only"),
        ("other", "other", "other.planned", "none"),
    ):
        optimize(
            folder / f"{source}.onnx",
            budget="70%",
            output=folder / f"{written}.onnx",
            plan_path=folder / f"{plan}.json",
            swap=swap,
            time_limit_s=3,
            verify=False,
        )
    main(["problem", str(model), "-o", str(folder / "problem.json"), "-q"])
    _profile(model, folder / "profile.json")
    np.savez(folder / "inputs.npz", x=np.ones((SIDE, SIDE), np.float32))
    recipe = {"x": {"dtype": "float32", "shape": [SIDE, SIDE], "kind": "normal", "std": 0.1}}
    (folder / "recipes.json").write_text(json.dumps(recipe))
    (folder / "hardware.toml").write_text(_hardware())


def take(*names: str, into: Path) -> None:
    """Copies of good files."""
    for name in names:
        shutil.copy(kit() / name, into / name)


def document(name: str) -> Any:
    """A good file's JSON, to be changed."""
    return json.loads((kit() / name).read_text(encoding="utf-8"))


def _profile(model: Path, path: Path) -> None:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(path.with_suffix(""))
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    for _ in range(2):
        session.run(None, {"x": np.ones((SIDE, SIDE), np.float32)})
    Path(session.end_profiling()).rename(path)


def _hardware() -> str:
    from importlib import resources

    return (resources.files("planner.cost") / "profiles" / "cpu.toml").read_text()


if __name__ == "__main__":
    fill(Path(sys.argv[1]))
