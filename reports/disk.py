"""Swaps to a disk: `python -m reports.disk --disk DIR`.

Each sample is planned, at 60 and 40% of its peak, for the CPU with swaps alone, to a file in DIR
(the least budget that has a plan, where that one has none), and verified. The rewritten file then runs in
turns with the original in one process, at the disk's own speed and on a throttled link. Every output is
compared bit for bit. Rows go to `reports/disk.json`, the page to `reports/disk.md`.

With `--beyond 32GiB`, a step alone whose swaps are about as large, more than the machine has of memory:
no cache of it can hold them. It takes some minutes, and the page says why where it could not be run.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

import planner
from planner import native
from planner.disk import RESERVE_BYTES, default_folder
from planner.files.structuring import fields_of
from planner.pipeline.record.rebuild import prepared_for, rebuild
from planner.runtime.machine import proc_bytes
from planner.simulate.simulate import simulate
from planner.units import format_bytes, parse_bytes
from reports.overlap import WARM, in_turns, profiled, throttled
from reports.planned import feasible
from reports.shared import FOLDER, MIB, ZOO, Row, line, program, read_rows, write_rows
from tests.native.graphs import long_chain, of_long_chain

RESULT, PAGE = FOLDER / "disk.json", FOLDER / "disk.md"
STEPS, MBPS = 50, 300
BEYOND, _IN_MEMORY = "beyond memory", 8
"""The row of the large step, and how many of its tensors its budget holds."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write the page."""
    parser = program("reports.disk", __doc__)
    parser.add_argument("--disk", type=Path, default=default_folder(), metavar="DIR")
    parser.add_argument("--beyond", metavar="SIZE", help="the large step alone: 32GiB")
    asked = parser.parse_args(arguments)
    disk, rows = asked.disk, read_rows(RESULT, {})
    if asked.beyond:
        rows[BEYOND] = beyond(parse_bytes(asked.beyond), disk)
        print(json.dumps(rows[BEYOND]))
    for model in () if asked.beyond else sorted(ZOO.glob("*.onnx")):
        for percent in ("60%", "40%"):
            with tempfile.TemporaryDirectory() as folder:
                found = measured(model, percent, Path(folder), disk)
            rows[f"{model.stem}, {percent}"] = found
            print(model.stem, percent, json.dumps(found), flush=True)
    write_rows(RESULT, rows)
    PAGE.write_text(page(rows), encoding="utf-8")
    return 0


def beyond(size_bytes: int, disk: Path, tensor_mib: int = 256) -> Row:
    """Run a step whose swaps take about so many bytes of the disk, twice, or say why it could not."""
    memory, free = proc_bytes(Path("/proc/meminfo"), "MemTotal") or 0, shutil.disk_usage(disk).free
    layers, kept = size_bytes // (tensor_mib * MIB), _IN_MEMORY * tensor_mib * MIB
    if size_bytes - kept <= memory or size_bytes + RESERVE_BYTES > free:
        has, asked = map(format_bytes, (memory, free)), format_bytes(size_bytes)
        return {
            "why": f"memory of {next(has)} and a disk with {next(has)} free, for swaps of {asked}"
        }
    with tempfile.TemporaryDirectory() as folder:
        model, output = Path(folder) / "model.onnx", Path(folder) / "planned.onnx"
        onnx.save(long_chain(layers, tensor_mib), model)
        made: Row = {
            "swap": "only",
            "disk": disk,
            "hardware": "cpu",
            "verify": False,
            "output": output,
        }
        plan = planner.optimize(
            model, budget=f"{kept}B", budget_of="live", time_limit_s=5.0, **made
        ).plan
        session, cost = planner.open_session(output, disk=disk), plan.planned
        seconds, wrong = list[float](), 0
        for fed in (3.0, 5.0):
            x, began = np.full((tensor_mib, MIB // 4), fed, np.float32), time.perf_counter()
            (found,) = session.run(None, {"h0": x})
            seconds.append(time.perf_counter() - began)
            wrong += int((np.asarray(found) != of_long_chain(layers, fed)).sum())
        return {
            "memory_bytes": memory,
            "file_bytes": native.counts().file_bytes,
            "moved_bytes": cost.swap_out_bytes + cost.swap_in_bytes,
            "peak_bytes": cost.peak_bytes,
            "seconds": seconds,
            "wrong": wrong,
            "cached_bytes": _cached_bytes(),
        }


def measured(model: Path, percent: str, folder: Path, disk: Path) -> Row:
    """Measure one model at a share of its peak."""
    profile = profiled(model, folder)
    output = folder / "planned.onnx"
    files: Row = {"profile": profile, "output": output, "disk": disk}
    done = feasible(model, percent, swap="only", time_limit_s=10.0, **files)
    plan, check = done.plan, done.verification
    assert plan.disk is not None
    assert check is not None and check.passed, check
    held = next(c for c in check.memory if (c.model, c.options) == ("rewritten", "recommended"))
    assert held.held_bytes is not None and held.predicted_held_bytes is not None
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
    } | _steps(model, output, disk)


def _throttled_us(model: Path, plan: planner.Plan, profile: Path) -> float:
    """Simulate the plan's time on the throttled link."""
    with prepared_for(model, plan, profile=profile) as prepared:
        built = rebuild(prepared, plan)
    rates = {"swap_out_bytes_per_s": 1e6 * MBPS, "swap_in_bytes_per_s": 1e6 * MBPS}
    form = built.formulation
    return simulate(replace(form.problem, **rates), built.actions, form.paging).time_us


def _steps(model: Path, output: Path, disk: Path) -> Row:
    """Run steps in turns; return ratios of the least times, and bytes of the file left in the cache."""
    sessions = {"original": ort.InferenceSession(model, throttled(0))}
    for name, mbps in (("own", 0), ("throttled", MBPS)):
        sessions[name] = planner.open_session(output, throttled(mbps), disk=disk)
    ratios, differing = in_turns(model, sessions, WARM + STEPS)
    return {"differing": differing, "cached_bytes": _cached_bytes(), "measured": ratios}


def _cached_bytes() -> int:
    """Count the bytes of this process's swap files in the system's cache (mincore(2))."""
    found = 0
    for path in Path("/proc/self/fd").iterdir():
        if not path.is_symlink() or "planner-swap-" not in str(path.readlink()):
            continue
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as view:
            there = (ctypes.c_ubyte * (len(view) // mmap.PAGESIZE))()
            at = ctypes.addressof(ctypes.c_char.from_buffer(view))
            size = ctypes.c_size_t(len(view))
            assert not ctypes.CDLL(None).mincore(ctypes.c_void_p(at), size, there)
            found += mmap.PAGESIZE * sum(page & 1 for page in there)
    return found


_HEAD = """# Swaps to a disk

Written by `python -m reports.disk`: plans for the CPU with swaps alone, to a file in a folder
(`--disk`), verified; then {steps} steps with new inputs each, in turns with the original in one process,
one compute thread.

- *held*: all that a session holds that `planner.open_session` opens, the budget's measure, as *predicted*
  and in a process of its own. What is on disk is in none of it.
- *file*: bytes of the file. *moved*: bytes that a step writes and reads.
- *bits*: steps in which any output differed from the original's, at either speed.
- *step*: its time over the original's (the least of the steps), measured and, in parentheses, predicted:
  at the disk's own speed, and on a link throttled to {mbps} MB/s each way. Predictions rest on a profile
  of the original that was taken just before, and on the folder's speed, measured for each plan:
  {speeds}.

{cache}
Other work shared the two cores and the disk, a virtual one whose host may have a cache of its own: single
ratios are far off.

| plan | budget | live | predicted | held | file | moved | swaps | bits | step, own speed | throttled |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|
"""


_BEYOND = """A chain whose swaps take {file_bytes} of the disk, on a machine
with {memory_bytes} of memory, within {peak_bytes} of live bytes: a step moved {moved_bytes} in {each} s,
{rate:,.0f} MB/s both ways together. {wrong} elements were wrong, {cached_bytes} of it in the cache."""


def page(rows: dict[str, Row]) -> str:
    """Return the page."""
    large, rows = rows.get(BEYOND), {name: row for name, row in rows.items() if name != BEYOND}
    speeds = []
    for key, unit in (("write_bytes_per_s", "MB/s written"), ("read_bytes_per_s", "MB/s read")):
        each = [row["disk"][key] / 1e6 for row in rows.values()]
        speeds.append(f"{min(each):,.0f} to {max(each):,.0f} {unit}")
    kinds = {row["disk"]["kind"] for row in rows.values()}
    cached = max(row["cached_bytes"] for row in rows.values())
    cache = f"The system's cache held {cached:,} bytes of the files after the steps (mincore)."
    if kinds != {"direct"}:
        cache += " Not all are read and written directly: nothing here is of a disk."
    head = _HEAD.format(steps=STEPS, mbps=MBPS, speeds=" and ".join(speeds), cache=cache)
    head += "".join(_line(name, row) for name, row in rows.items())
    return head if large is None else head + _beyond(large)


def _beyond(row: Row) -> str:
    """Return the section on the large step."""
    text = f"Not measured: {row.get('why')}."
    if "why" not in row:
        of = {key: format_bytes(size) for key, size in row.items() if key.endswith("_bytes")}
        each = " and ".join(f"{seconds:.0f}" for seconds in row["seconds"])
        rate = row["moved_bytes"] / min(row["seconds"]) / 1e6
        text = _BEYOND.format(**of, each=each, rate=rate, wrong=row["wrong"])
    return f"\n## More than the machine's memory\n\nBy `python -m reports.disk --beyond SIZE`. {text}\n"


def _line(name: str, row: Row) -> str:
    sizes = ("budget", "live", "predicted", "held", "file", "moved")
    cells = (
        name,
        *(format_bytes(row[f"{size}_bytes"]) for size in sizes),
        str(row["swaps"]),
        f"{row['differing']} of {STEPS}",
        *(f"{row['measured'][at]:.2f} ({row['predicted'][at]:.2f})" for at in row["measured"]),
    )
    return f"{line(*cells)}\n"


if __name__ == "__main__":
    sys.exit(main())
