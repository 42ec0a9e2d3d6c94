"""A hard cap: test whether a model runs in a pool of a given size.

The budget covers everything on the device. On the CPU, feeds are not in the pool, nor are
initializers above 127 bytes; `planner.runtime.memory.arena.arena_cap` subtracts them. A kernel's
workspace and the rounding to pages are in the pool; nothing else is lost
(`planner.runtime.memory.paged`).
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
from planner.runtime.memory.paged import PAGE_BYTES
from planner.runtime.options import Opening
from planner.units import format_bytes

_REFUSED = re.compile(
    r"(\d+) bytes were asked for; the pool has \d+, of which \d+ are in use \((\d+) free"
)
_OPENING = Opening(threads=1)
_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Capped:
    """The outcome of a model's runs in a pool.

    Attributes:
        message: why it failed; "" where it did not.
        refused: whether the pool had no room, as opposed to another failure.
        spilled_bytes: peak of the bytes outside of a pool that spills.
    """

    passed: bool
    message: str = ""
    refused: bool = False
    spilled_bytes: int = 0


def run_capped(
    model_path: Path,
    inputs: Mapping[str, npt.NDArray[Any]],
    pool_bytes: int,
    opening: Opening = _OPENING,
    *,
    runs: int = 2,
    spills: bool = False,
) -> Capped:
    """Run `model_path` in a process of its own, in a pool of `pool_bytes`.

    Args:
        pool_bytes: see `planner.runtime.memory.arena.arena_cap`.
        opening: order, level and threads (convolutions take a buffer for each) of the session.
        runs: consecutive runs that must all succeed; results are dropped in between.
        spills: whether requests beyond the pool's size are served from outside of it.
    """
    if pool_bytes < PAGE_BYTES:
        why = "graph inputs and initializers alone exceed the budget"
        return Capped(passed=False, message=why, refused=True)
    with temporary_folder() as folder:
        files: dict[str, str] = {}
        for index, (key, array) in enumerate(inputs.items()):
            files[key] = f"{index}.npy"
            np.save(folder / files[key], array)
        request = {
            "model": str(Path(model_path).resolve()),
            "inputs": files,
            "pool_bytes": pool_bytes,
            "spills": spills,
            "order": opening.order,
            "level": opening.level,
            "threads": opening.threads,
            "runs": runs,
        }
        (folder / "request.json").write_text(json.dumps(request))
        command = [
            sys.executable,
            "-m",
            "planner.runtime.judge.cap.worker",
            str(folder / "request.json"),
        ]
        try:
            done = run_child(command, timeout_s=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            why = f"the capped process did not finish within {_TIMEOUT_S:.0f} s"
            return Capped(passed=False, message=why)
    if done.returncode:
        tail = (done.stderr.strip().splitlines() or ["no message"])[-1]
        why = f"the capped process ended with status {done.returncode}: {tail}"
        return Capped(passed=False, message=why)
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    message = str(answer["message"])
    return Capped(
        passed=not message,
        message=shortened(message),
        refused=is_refusal(message),
        spilled_bytes=answer["spilled_bytes"],
    )


def is_refusal(message: str) -> bool:
    """Tell whether ONNX Runtime's message says that the pool had no room."""
    return _REFUSED.search(message) is not None


def shortened(message: str) -> str:
    """Return ONNX Runtime's message in one line; for a pool's refusal, the node, the request and the
    free bytes."""
    found = _REFUSED.search(message)
    if found is None:
        return message.strip().splitlines()[0] if message.strip() else ""
    node = re.search(r"running (\S+) node\. Name:'([^']*)'", message)
    where = f"at {node[1]} node {node[2]!r}: " if node else ""
    wanted, free = int(found[1]), int(found[2])
    return f"{where}{format_bytes(wanted)} requested, {format_bytes(free)} free in the pool"
