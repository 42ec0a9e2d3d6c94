"""100 training steps with the original and with the planned training model; prints JSON rows.

    .venv-training/bin/python -m reports.training.runs

Each net's artifacts are generated, the training model is planned to 60% of its peak and verified, and
`models/scripts/train_artifacts.py` trains with both in turns, twice each.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from models.artifacts.generate import generate
from models.artifacts.nets import NETS
from planner import api
from planner.graph.liveness import timeline
from planner.results import OptimizeResult
from planner.runtime.feeds.inputs import make_inputs
from reports.least_arena import least_arenas

SCRIPT = Path(__file__).parents[2] / "models" / "scripts" / "train_artifacts.py"
TASKS = {"mlp": ("digits", 512), "resnet18": ("images", 32), "encoder": ("next", 16)}
TASKS["gpt"] = ("each", 16)
BUDGET, STEPS, TURNS = "60%", 100, 2
SEARCH_S = 30.0


def row(name: str, folder: Path) -> dict[str, Any]:
    """Everything about one net."""
    generate(NETS[name](), folder)
    original, planned = folder / "training_model.onnx", folder / "planned.onnx"
    result = api.optimize(
        original,
        budget=BUDGET,
        output=planned,
        time_limit_s=SEARCH_S,
        swap="none",
        verify="thorough",
    )
    verification = result.verification
    assert verification is not None
    live = {c.model: c.live_bytes for c in verification.memory if c.options == "recommended"}
    arenas = _arenas(result, original, planned)
    trained = [_train(name, folder, m) for _ in range(TURNS) for m in (original, planned)]
    seconds = [
        min(t["seconds"] for t in trained[which::2])
        for which in (0, 1)  # the original's turns, the planned one's
    ]
    return {
        "net": name,
        "nodes": len(result.before.graph.operations),
        "live_bytes": [live["original"], live["rewritten"]],
        "arena_bytes": arenas,
        "identical_outputs": sum(c.identical for c in verification.outputs),
        "outputs": len(verification.outputs),
        "order": all(check.equal for check in verification.orders),
        "recomputed": result.plan.planned.recomputed_ops,
        "losses_identical": len({tuple(t["losses"]) for t in trained}) == 1,
        "first_loss": trained[0]["losses"][0],
        "last_loss": trained[0]["losses"][STEPS - 1],
        "files_identical": len({tuple(t["files"]) for t in trained}) == 1,
        "time_ratio": seconds[1] / seconds[0],
        "ort_version": verification.ort_version,
    }


def _arenas(result: OptimizeResult, original: Path, planned: Path) -> list[int]:
    """Least bytes with which each model runs: graph inputs and initializers, and the least arena."""
    feeds, _ = make_inputs(original)
    models = [(original, feeds), (planned, feeds)]
    most = 2 * result.before.timeline.peak_bytes
    arenas = least_arenas(models, most_bytes=most, level="extended")
    fixed = [
        timeline(view.graph, view.timeline.order).persistent_bytes
        for view in (result.before, result.after)
    ]
    return [a + b for a, b in zip(arenas, fixed, strict=True)]


def _train(name: str, folder: Path, model: Path) -> dict[str, Any]:
    task, batch = TASKS[name]
    options = ["--task", task, "--batch", batch, "--steps", STEPS, "--threads", 1]
    command = [sys.executable, SCRIPT, folder, *options, "--model", model]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    *losses, evaluated = [x for x in done.stdout.splitlines() if not x.startswith("seconds")]
    (seconds,) = (x for x in done.stdout.splitlines() if x.startswith("seconds"))
    files = [folder / "trained", folder / "inference.onnx"]
    return {
        "losses": [float.fromhex(x) for x in losses],
        "files": [evaluated, *(hashlib.sha256(f.read_bytes()).hexdigest() for f in files)],
        "seconds": float(seconds.split()[1]),
    }


def main() -> None:
    """All nets, one after the other."""
    with tempfile.TemporaryDirectory(prefix="planner-") as folder:
        rows = [row(name, Path(folder) / name) for name in NETS]
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
