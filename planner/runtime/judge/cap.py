"""A hard cap: does a model run where the CPU arena may not exceed a number of bytes?

The budget covers everything on the device. On the CPU, feeds are not in the arena, nor are
initializers above 127 bytes; `planner.runtime.memory.arena.arena_cap` takes them off. Within the cap the
arena's regions double, split without waste, from a first region that `first_region` there picks by
replaying the allocator: a small one keeps small, long-lived buffers from breaking up large regions. An
arena that grows by what is requested never merges its regions, and fails plans that fit by far
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.files.temporary import temporary_folder
from planner.processes.children import run_child
from planner.results import CapCheck
from planner.runtime.options import MAX_FIRST_REGION, Opening
from planner.units import format_bytes

_REFUSAL = "not yet taken by the arena"
_OPENING = Opening(threads=1)
_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Capped:
    """How a model fared under a cap; `message` says why it failed."""

    passed: bool
    message: str


def run_capped(
    model_path: Path,
    inputs: Mapping[str, npt.NDArray[Any]],
    cap_bytes: int,
    opening: Opening = _OPENING,
    *,
    runs: int = 2,
    first_region_bytes: int | None = None,
) -> Capped:
    """Run `model_path` in a process of its own whose arena may not exceed `cap_bytes`.

    Args:
        cap_bytes: of the arena: see `arena_cap`.
        opening: order, level and threads (convolutions take a buffer for each) of the session.
        runs: consecutive runs that must all succeed; results are dropped in between.
        first_region_bytes: of the arena, whose regions double; None makes one region of the cap.
    """
    if cap_bytes <= 0:
        # a limit below what is reserved at creation underflows in ONNX Runtime and caps nothing
        return Capped(False, "graph inputs and initializers alone exceed the budget")
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
            "order": opening.order,
            "level": opening.level,
            "threads": opening.threads,
            "runs": runs,
        }
        (folder / "request.json").write_text(json.dumps(request))
        command = [
            sys.executable,
            "-m",
            "planner.runtime.judge.cap_worker",
            str(folder / "request.json"),
        ]
        try:
            done = run_child(command, timeout_s=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return Capped(False, f"the capped process did not finish within {_TIMEOUT_S:.0f} s")
    if done.returncode:
        tail = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Capped(False, f"the capped process ended with status {done.returncode}: {tail}")
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    return Capped(bool(answer["passed"]), _shorten(str(answer["message"])))


def refused_by_arena(check: Capped | CapCheck) -> bool:
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
