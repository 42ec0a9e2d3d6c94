"""Swaps to a disk: `python -m reports.disk --disk DIR [MODEL.onnx:PERCENT...]`.

Each model (the samples at 60 and 40% of their peak) is planned for the CPU with swaps alone, to a file in
DIR (the least budget that has a plan, where that one has none), and verified. The rewritten file then
runs in turns with the original in one process, one compute thread, new inputs in each step: once at the
disk's own speed, once on a link that is throttled each way. Every output is compared bit for bit. Rows go
to `reports/disk.json`, the page to `reports/disk.md`.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnxruntime as ort

import planner
from planner.disk import default_folder
from planner.errors import InfeasibleBudgetError
from planner.files.structuring import fields_of
from planner.pipeline.record.rebuild import prepared_for, rebuild
from planner.runtime.feeds.inputs import make_inputs
from planner.runtime.options import Opening, stop_spinning
from planner.runtime.swapping import LINK_MBPS
from planner.simulate.simulate import simulate
from planner.units import format_bytes
from reports.overlap import THREADS, profiled

FOLDER = Path(__file__).parent
RESULT, PAGE = FOLDER / "disk.json", FOLDER / "disk.md"
ZOO = FOLDER.parent / "models" / "zoo"
STEPS, MBPS, TIME_LIMIT_S = 50, 300, 10.0
_ABOVE = 1.03
"""Times the least budget that has a plan: it was found by a search, and the next one may find less."""

Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="reports.disk", description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*")
    parser.add_argument("--disk", type=Path, default=default_folder(), metavar="DIR")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="for the rows and the page")
    asked = parser.parse_args(arguments)
    models = asked.models or [f"{p}:{n}" for p in sorted(ZOO.glob("*.onnx")) for n in (60, 40)]
    result = asked.folder / RESULT.name
    rows: dict[str, Row] = json.loads(result.read_text()) if result.exists() else {}
    for text in models:
        name, _, percent = text.rpartition(":")
        key = f"{Path(name).stem}, {percent}%"
        with tempfile.TemporaryDirectory() as folder:
            rows[key] = measured(Path(name), percent, Path(folder), asked.disk)
        print(key, json.dumps(rows[key]), flush=True)
        result.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        (asked.folder / PAGE.name).write_text(page(rows), encoding="utf-8")
    return 0


def measured(model: Path, percent: str, folder: Path, disk: Path) -> Row:
    """The row of one model at a share of its peak."""
    profile = profiled(model, folder)
    done = _planned(model, f"{percent}%", folder, profile, disk)
    plan, check = done.plan, done.verification
    assert check is not None and done.output_path is not None and plan.disk is not None
    held = next(c for c in check.memory if (c.model, c.options) == ("rewritten", "recommended"))
    assert held.held_bytes is not None and held.predicted_held_bytes is not None
    assert check.passed, check.failures
    base_us, cost = plan.baseline.time_us, plan.planned
    throttled_us = _throttled_us(model, plan, profile)
    return {
        "budget_bytes": plan.budget_bytes,
        "live_bytes": cost.peak_bytes,
        "predicted_bytes": held.predicted_held_bytes + held.beside_bytes,
        "held_bytes": held.held_bytes + held.beside_bytes,
        "file_bytes": cost.host_bytes,
        "swaps": cost.swapped_tensors,
        "moved_bytes": cost.swap_out_bytes + cost.swap_in_bytes,
        "disk": fields_of(plan.disk) | {"folder": ""},
        "predicted": {"own": cost.time_us / base_us, "throttled": throttled_us / base_us},
    } | _steps(model, done.output_path, disk)


def _planned(
    model: Path, budget: str, folder: Path, profile: Path, disk: Path
) -> planner.OptimizeResult:
    """The plan for a budget, or for the least that has one."""
    output, limit_s = folder / "planned.onnx", TIME_LIMIT_S
    settings: Row = {"swap": "only", "profile": profile, "force": True, "time_limit_s": limit_s}
    try:
        return planner.optimize(model, budget=budget, disk=disk, output=output, **settings)
    except InfeasibleBudgetError as error:
        least = f"{int(_ABOVE * (error.least_peak_bytes or 0))}B"
        return _planned(model, least, folder, profile, disk)


def _throttled_us(model: Path, plan: planner.Plan, profile: Path) -> float:
    """What the simulator says of the plan on the throttled link."""
    with prepared_for(model, plan, profile=profile) as prepared:
        built = rebuild(prepared, plan)
    rate = 1e6 * MBPS
    problem = replace(
        built.formulation.problem, swap_out_bytes_per_s=rate, swap_in_bytes_per_s=rate
    )
    return simulate(problem, built.actions).time_us


def _steps(model: Path, output: Path, disk: Path) -> Row:
    """Steps in turns: times as ratios of the least ones, and what the file leaves in the cache."""

    def opened(mbps: int) -> ort.InferenceSession:
        options = Opening(threads=THREADS, entries=((LINK_MBPS, str(mbps)),)).options()
        stop_spinning(options)
        return planner.open_session(output, options, disk=disk)

    plain = Opening(threads=THREADS, memory="recommended").options()
    stop_spinning(plain)
    original = ort.InferenceSession(model, plain)  # before the pools: it has an arena of its own
    sessions = {"own": opened(0), "throttled": opened(MBPS), "original": original}
    times: dict[str, list[float]] = {name: [] for name in sessions}
    differing = 0
    for turn in range(STEPS):
        feeds, _ = make_inputs(model, seed=turn)
        results: dict[str, list[bytes]] = {}
        for name, session in sessions.items():
            began = time.perf_counter()
            found = ort.InferenceSession.run(session, None, feeds)  # results stay in the pool
            times[name].append(time.perf_counter() - began)
            results[name] = [array.tobytes() for array in found]
            del found
        differing += any(found != results["original"] for found in results.values())
    base = min(times["original"])
    return {
        "differing": differing,
        "cached_bytes": _cached_bytes(),
        "measured": {name: min(times[name]) / base for name in ("own", "throttled")},
    }


def _cached_bytes() -> int:
    """Bytes of this process's swap files that the system's cache holds (mincore(2))."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{name}"
        if not os.path.islink(path) or "planner-swap-" not in os.readlink(path):
            continue
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
            there = (ctypes.c_ubyte * (len(view) // mmap.PAGESIZE))()
            at = ctypes.addressof(ctypes.c_char.from_buffer(view))
            assert not ctypes.CDLL(None).mincore(ctypes.c_void_p(at), len(view), there)
            found += mmap.PAGESIZE * sum(page & 1 for page in there)
    return found


_HEAD = """# Swaps to a disk

Written by `python -m reports.disk`: plans for the CPU with swaps alone, to a file in a folder
(`--disk`), verified; then {steps} steps with new inputs each, in turns with the original in one process,
one compute thread.

- *held*: all that a session holds that `planner.open_session` opens, the budget's measure: predicted, and
  measured in a process of its own. What is on disk is in none of it.
- *file*: bytes of the file. *moved*: bytes that a step writes and reads.
- *bits*: steps in which any output differed from the original's, at either speed.
- *step*: its time over the original's (the least of the steps), measured and, in parentheses, predicted:
  at the disk's own speed, and on a link throttled to {mbps} MB/s each way. Predictions rest on a profile
  of the original that was taken just before, and on the folder's speed, measured for each plan:
  {speeds}.

{cache}
Other work shared the two cores and the disk, a virtual one whose host may have a cache of its own: single
ratios are far off, and show the direction alone.

"""
_COLUMNS = (
    "plan",
    "budget",
    "live",
    "held: predicted",
    "measured",
    "file",
    "moved",
    "swaps",
    "bits",
)
_STEPS = ("step, disk's own speed", "step, throttled")


def page(rows: dict[str, Row]) -> str:
    """The page."""
    found = list(rows.values())
    rates = [
        [row["disk"][f"{way}_bytes_per_s"] / 1e6 for row in found] for way in ("write", "read")
    ]
    speeds = " and ".join(
        f"{min(each):,.0f} to {max(each):,.0f} MB/s {way}"
        for each, way in zip(rates, ("written", "read"), strict=True)
    )
    if all(row["disk"]["kind"] == "direct" for row in found):
        cached = max(row["cached_bytes"] for row in found)
        cache = (
            "Files are read and written past the system's cache (O_DIRECT). After the steps it held "
            f"{cached:,} bytes of them (mincore).\n"
        )
    else:
        cache = "The folder's files are not read and written directly: nothing here is of a disk.\n"
    head = _HEAD.format(steps=STEPS, mbps=MBPS, speeds=speeds, cache=cache)
    columns = (*_COLUMNS, *_STEPS)
    lines = [_line(name, row) for name, row in rows.items()]
    return "\n".join(
        (f"{head}| {' | '.join(columns)} |", f"|---{'|---:' * (len(columns) - 1)}|", *lines, "")
    )


def _line(name: str, row: Row) -> str:
    sizes = ("budget", "live", "predicted", "held", "file", "moved")
    cells = (
        name,
        *(format_bytes(row[f"{size}_bytes"]) for size in sizes),
        str(row["swaps"]),
        f"{row['differing']} of {STEPS}",
        *(f"{row['measured'][at]:.2f} ({row['predicted'][at]:.2f})" for at in row["measured"]),
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
