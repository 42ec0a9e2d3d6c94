"""A hard cap: does a model run where the CPU arena may not exceed a number of bytes?

The budget covers everything on the device. On the CPU, feeds are not in the arena, nor are
initializers above 127 bytes; `arena_cap` takes them off. Within the cap the arena's regions double, split
without waste, from a first region that `planner.runtime.arena.first_region` picks by replaying the
allocator: a small one keeps small, long-lived buffers from breaking up large regions. An arena that
grows by what is requested never merges its regions, and fails plans that fit by far
(reports/ort_facts.md).

What can still be lost is 256-byte rounding and fragmentation, and a kernel's workspace, which the
arena holds too; all are in the replay.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.children import run_child
from planner.graph.model import TrainingGraph
from planner.results import CapCheck
from planner.runtime.arena import MAX_FIRST_REGION, reserved_bytes
from planner.runtime.options import Level, Order
from planner.temporary import temporary_folder
from planner.units import format_bytes

_REFUSAL = "not yet taken by the arena"


def arena_cap(graph: TrainingGraph, budget_bytes: int) -> int:
    """The arena's share of a budget: less graph inputs and the initializers outside the arena.

    Not positive where these alone exceed the budget.
    """
    persistent = sum(t.bytes for t in graph.tensors if t.is_persistent and not t.on_host)
    return budget_bytes - persistent + reserved_bytes(graph)


def run_capped(
    model_path: Path,
    inputs: Mapping[str, npt.NDArray[Any]],
    cap_bytes: int,
    *,
    order: Order = "default",
    level: Level = "extended",
    threads: int = 1,
    runs: int = 2,
    model: str = "rewritten",
    expected: bool | None = None,
    over_budget_bytes: int = 0,
    first_region_bytes: int | None = None,
    timeout_s: float = 3600.0,
) -> CapCheck:
    """Run `model_path` in a process of its own whose arena may not exceed `cap_bytes`.

    Args:
        cap_bytes: of the arena: see `arena_cap`.
        threads: intra-operator threads (convolutions take a buffer for each).
        runs: consecutive runs that must all succeed; results are dropped in between.
        model, expected, over_budget_bytes: copied into the result.
        first_region_bytes: of the arena, whose regions double; None makes one region of the cap.
    """

    def result(passed: bool, message: str) -> CapCheck:
        return CapCheck(
            model=model,
            cap_bytes=cap_bytes,
            passed=passed,
            expected=expected,
            message=message,
            over_budget_bytes=over_budget_bytes,
            first_region_bytes=first_region_bytes or cap_bytes,
        )

    if cap_bytes <= 0:
        # a limit below what is reserved at creation underflows in ONNX Runtime and caps nothing
        return result(False, "graph inputs and initializers alone exceed the budget")
    with temporary_folder() as folder:
        files: dict[str, str] = {}
        for index, (key, array) in enumerate(inputs.items()):
            files[key] = f"{index}.npy"
            np.save(folder / files[key], array)
        request = {
            "model": str(Path(model_path).resolve()),
            "inputs": files,
            "cap_bytes": cap_bytes,
            "first_region_bytes": first_region_bytes or min(cap_bytes, MAX_FIRST_REGION),
            "order": order,
            "level": level,
            "threads": threads,
            "runs": runs,
        }
        (folder / "request.json").write_text(json.dumps(request))
        command = [sys.executable, "-m", "planner.runtime.cap_worker", str(folder / "request.json")]
        try:
            done = run_child(command, timeout_s=timeout_s)
        except subprocess.TimeoutExpired:
            return result(False, f"the capped process did not finish within {timeout_s:.0f} s")
    if done.returncode:
        tail = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return result(False, f"the capped process ended with status {done.returncode}: {tail}")
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    return result(bool(answer["passed"]), _shorten(str(answer["message"])))


def refused_by_arena(check: CapCheck) -> bool:
    """Whether the arena had no room, rather than the process coming to grief otherwise."""
    return not check.passed and check.message.endswith(_REFUSAL)


def _shorten(message: str) -> str:
    """The arena's refusal in one line: which node, how much was left, how much it wanted."""
    found = re.search(
        r"Available memory of (\d+) is smaller than requested bytes of (\d+)", message
    )
    if found is None:
        return message.strip().splitlines()[0] if message.strip() else ""
    node = re.search(r"running (\S+) node\. Name:'([^']*)'", message)
    where = f"at {node[1]} node {node[2]!r}: " if node else ""
    free, wanted = int(found[1]), int(found[2])
    return f"{where}{format_bytes(wanted)} requested, {format_bytes(free)} {_REFUSAL}"
