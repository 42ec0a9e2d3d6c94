"""One model, run with default options in a process of its own: what it holds, and by how much it grows.

    python -m reports.held.worker MODEL INPUTS.npz [profiled] [nopattern] [noreuse]

Prints JSON: `growth_bytes` after each run, the high-water mark of the process's resident memory less
what was resident once the session and the inputs were there; `held_bytes` after each run, by ONNX
Runtime's own profile (which itself takes memory, so that growth is measured without it); `digest` of
the outputs.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

RUNS = 3


def resident_bytes(field: str) -> int:
    """`VmRSS` or `VmHWM` of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {field} in /proc/self/status")


def held_bytes(profile: Path) -> list[int]:
    """The most that the arena held in each run."""
    from planner.runtime.profile import read_profile

    return [max(event.held or 0 for event in run) for run in read_profile(profile)]


def main(model: str, inputs: str, *words: str) -> dict[str, Any]:
    """Run, and say what was measured."""
    feeds = dict(np.load(inputs))
    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.enable_mem_pattern = "nopattern" not in words
        options.enable_mem_reuse = "noreuse" not in words
        if "profiled" in words:
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(folder) / "profile")
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
        before = resident_bytes("VmRSS")
        growth: list[int] = []
        for _ in range(RUNS):
            outputs = session.run(None, feeds)
            del outputs
            growth.append(resident_bytes("VmHWM") - before)
        if "profiled" in words:
            return {"held_bytes": held_bytes(Path(session.end_profiling()))}
        digest = hashlib.sha256()
        for output in session.run(None, feeds):
            digest.update(np.ascontiguousarray(output))
    return {"growth_bytes": growth, "digest": digest.hexdigest()}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
