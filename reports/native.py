"""Memory to the byte: `python -m reports.native [MODEL.onnx:PERCENT...]`.

    python -m reports.native                              the samples at 60 and 40% of their peak
    python -m reports.native graph.onnx:60 --steps 20     another training graph, at 60%

Each is planned for the CPU thrice, with a budget of live bytes (the least that has a plan, where that
one has none): recompute only, swaps only, and both; swaps run beside the operations. The rewritten file
then runs by `planner.open_session(file, pool=SIZE)` in a process of its own for each size: in the pool
that is predicted, in one a page smaller, and, where these do not tell it, in others until the least
pool that runs is known. In that one many steps with new inputs are compared with the original's, bit
for bit. Beside it: the least arena of ONNX Runtime's that the plan has room in, by its replay; the
order in which the nodes run at each of ONNX Runtime's levels; and how far the process grows, with what
of that is not the pool. Rows go to `reports/native.json`, the page to `reports/native.md`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal

import onnxruntime as ort

from planner.graph.schedule import OpId
from planner.results import OptimizeResult
from planner.runtime.feeds.inputs import make_inputs
from planner.runtime.memory.paged import PAGE_BYTES, pool_bytes
from planner.runtime.options import most_threads
from planner.runtime.profile import read_profile
from planner.runtime.swapping import register_for
from reports.native_page import page
from reports.planned import feasible
from reports.shared import FOLDER, ZOO, Row, program, read_rows, write_rows
from tests.runtime.support import least_cap

RESULT, PAGE = FOLDER / "native.json", FOLDER / "native.md"
STEPS = 200
LEVELS = (0, 1, 2, 3, 99)
_GROWING = 6
"""The number of steps after which a process no longer grows."""

_GIVES_BACK = {
    "MALLOC_MMAP_THRESHOLD_": "16384", "MALLOC_MMAP_MAX_": "1000000",
    "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_TOP_PAD_": "0",
}  # fmt: skip
"""Makes malloc return memory as it is freed: sizes that never coexist are then not added up."""

Levers = Literal["none", "only", "auto"]
WAYS: dict[Levers, str] = {"none": "recompute", "only": "swaps", "auto": "both"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write the page."""
    parser = program("reports.native", __doc__)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="for the rows and the page")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds for each plan")
    parser.add_argument("--steps", type=int, default=STEPS, help="with new inputs")
    options = parser.parse_args(arguments)
    asked = options.models or [
        f"{p}:{share}" for p in sorted(ZOO.glob("*.onnx")) for share in (60, 40)
    ]
    result = options.folder / RESULT.name
    rows: dict[str, Row] = read_rows(result, {})
    for text in asked:
        name, _, share = text.rpartition(":")
        for swap, way in WAYS.items():
            key = f"{Path(name).stem}, {share}%, {way}"
            rows[key] = measured(Path(name), int(share), swap, options.time_limit, options.steps)
            print(key, json.dumps(rows[key]), flush=True)
            write_rows(result, rows)
            (options.folder / PAGE.name).write_text(page(rows), encoding="utf-8")
    return 0


def measured(model: Path, percent: int, swap: Levers, time_limit_s: float, steps: int) -> Row:
    """Measure one model at a share of its peak."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "planned.onnx"
        copies = None if swap == "none" else "overlapped"
        made: Row = {"swap": swap, "copies": copies, "output": output, "time_limit_s": time_limit_s}
        done = feasible(model, f"{percent}%", force=True, verify=False, **made)
        graph, order = done.after.graph, tuple(OpId(op) for op in done.after.timeline.order)
        predicted = pool_bytes(graph, order, threads=most_threads(), host_in_pool=True)
        least, found = _least(model, output, predicted)
        bits = _run(model, output, f"{least}B", steps, "new")
        wanted = _run(model, model, "default", steps, "new")["digests"]
        return {
            "budget_bytes": done.plan.budget_bytes,
            "peak_bytes": done.plan.planned.peak_bytes,
            "predicted_bytes": predicted,
            "least_bytes": least,
            "asked_bytes": found["asked_most_bytes"],
            "arena_bytes": least_cap(graph, order, threads=most_threads()),
            "steps": steps,
            "different": sum(a != b for a, b in zip(bits["digests"], wanted, strict=True)),
            "outputs": len(wanted[0]),
            "copies": bits["copies"] // steps,
            "levels": len(LEVELS),
            "levels_in_order": sum(_is_in_order(done, level, Path(folder)) for level in LEVELS),
            "grown": found,
            "original": _run(model, model, "default"),
        }


def _is_in_order(done: OptimizeResult, level: int, folder: Path) -> bool:
    """Tell whether a session at an optimization level runs the file's nodes in the planned order."""
    assert done.output_path is not None
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel(level)
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    register_for(options, done.output_path)
    session = ort.InferenceSession(done.output_path, options)
    session.run(None, make_inputs(done.model_path, seed=0)[0])
    (run,) = read_profile(Path(session.end_profiling()))
    planned = [done.after.graph.operations[op].name for op in done.after.timeline.order]
    return [event.name for event in run] == planned


def _least(model: Path, output: Path, predicted: int) -> tuple[int, Row]:
    """Find the least pool, in whole pages, in which the file runs, and the figures of that run."""
    least = predicted
    while not (found := _run(model, output, f"{least}B")):
        least += PAGE_BYTES
    while less := _run(model, output, f"{least - PAGE_BYTES}B"):
        least, found = least - PAGE_BYTES, less
    return least, found


@cache
def _run(
    model: Path,
    file: Path,
    way: str,
    steps: int = _GROWING,
    inputs: Literal["new", "same"] = "same",
) -> Row:
    """Return the figures of steps in a separate process, once for the same; {} where the pool is too
    small."""
    command = [sys.executable, "-m", "reports.native_run", model, file, way, str(steps), inputs]
    given = os.environ | (_GIVES_BACK if inputs == "same" else {})
    done = subprocess.run(
        [*map(str, command)], env=given, capture_output=True, text=True, check=False
    )
    if done.returncode == 3:
        return {}
    if done.returncode:
        raise SystemExit(f"{file.name} in a pool of {way}: {done.stderr[-2000:]}")
    found: Row = json.loads(done.stdout.splitlines()[-1])
    if inputs == "same":
        del found["digests"]
    return found


if __name__ == "__main__":
    sys.exit(main())
