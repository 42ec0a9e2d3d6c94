"""A model larger than what planning it takes: the part of `reports.resident` that `--large` measures."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

GIB, MIB = 2**30, 2**20

_PLAN = """
import json, resource, sys, time
from pathlib import Path
from planner import optimize
began = time.monotonic()
result = optimize(
    Path(sys.argv[1]), budget=sys.argv[2], host_budget=sys.argv[3], resident="host", feeds="host",
    output=Path(sys.argv[4]), device="cpu", hardware="a100-40gb", time_limit_s=float(sys.argv[5]),
    verify=False,
)
planned, baseline = result.plan.planned, result.plan.baseline
print(json.dumps({
    "seconds": time.monotonic() - began, "nodes": len(result.before.graph.operations),
    "peak_bytes": planned.peak_bytes, "baseline_bytes": baseline.peak_bytes,
    "host_bytes": planned.host_bytes, "file_bytes": planned.file_bytes,
    "planner_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
}))
"""

_RUN = """
import hashlib, json, sys, time
from pathlib import Path
import onnxruntime as ort
from planner.runtime.feeds.inputs import make_inputs
options = ort.SessionOptions()
options.log_severity_level = 3
options.add_session_config_entry("session.disable_prepacking", "1")
session = ort.InferenceSession(sys.argv[2], options, providers=["CPUExecutionProvider"])
feeds, _ = make_inputs(Path(sys.argv[1]), 0, {}, None)
names = [output.name for output in session.get_outputs()]
began = time.monotonic()
found = session.run(None, feeds)
seconds = time.monotonic() - began
digests = {n: hashlib.sha256(memoryview(v).cast("B")).hexdigest() for n, v in zip(names, found)}
print(json.dumps({"seconds": seconds, "digests": digests}))
"""

LARGE = (
    "gpt2 --width 1536 --layers 30 --heads 16 --vocabulary 1000 --seq 64 --batch 1 "
    "--params initializers --external-data --sidecar"
)
LARGE_BUDGET, LARGE_HOST = "20%", "8GB"


def _child(program: str, *arguments: str) -> dict[str, Any]:
    """What a program prints last, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.strip().splitlines()[-1])


def large(limit_s: float) -> dict[str, Any]:
    """A model larger than planning it takes: planned, and run beside the original."""
    with tempfile.TemporaryDirectory() as text:
        model, planned = Path(text) / "large.onnx", Path(text) / "planned.onnx"
        net, *sizes = LARGE.split()
        build = [sys.executable, "-m", "models.build", net, "-o", str(model), *sizes]
        subprocess.run(build, check=True)
        row: dict[str, Any] = {"data_bytes": Path(f"{model}.data").stat().st_size}
        row["budget"], row["host_budget"] = LARGE_BUDGET, LARGE_HOST
        row |= _child(_PLAN, str(model), LARGE_BUDGET, LARGE_HOST, str(planned), str(limit_s))
        before, after = (_child(_RUN, str(model), str(path)) for path in (model, planned))
        row["outputs"] = len(before["digests"])
        row["identical"] = sum(after["digests"][n] == d for n, d in before["digests"].items())
        row["run_s"] = [before["seconds"], after["seconds"]]
    return row


def paragraph(big: Mapping[str, Any]) -> list[str]:
    """What the report says of it."""

    def gib(key: str) -> str:
        return f"{big[key] / GIB:.2f} GiB"

    return [
        "## Larger than what plans it",
        "",
        f"A GPT of {big['nodes']:,} operations with {gib('data_bytes')} of parameters in a file, planned "
        f"for {big['budget']} of its peak and {big['host_budget']} on the host: from "
        f"{gib('baseline_bytes')} to {gib('peak_bytes')} on the device, {gib('host_bytes')} on the host "
        f"and {gib('file_bytes')} in the file. Planning took {big['seconds']:.0f} s and at most "
        f"{big['planner_bytes'] / MIB:,.0f} MiB in the process of planner. A step of each on the CPU, "
        f"without packing (`session.disable_prepacking`): {big['identical']} of {big['outputs']} "
        "outputs identical by SHA-256.",
    ]
