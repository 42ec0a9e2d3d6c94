"""How cuDNN's algorithms are picked, and what that costs.

    python -m reports.cuda.convolutions GRAPH.onnx

`cudnn_conv_algo_search` and `cudnn_conv_use_max_workspace` are options of the CUDA provider. A graph is
run with each, inputs and outputs on the device; its step and the arena's bytes are kept. Writes
`cuda_convolutions.json`.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import onnxruntime as ort

from planner.runtime.device import sessions
from planner.runtime.device.worker import bound_step
from planner.runtime.feeds.inputs import make_inputs
from planner.runtime.profile import read_profile
from planner.targets import CUDA

FOLDER = Path(__file__).parents[1]
WAYS = (
    ("EXHAUSTIVE", "1"),
    ("EXHAUSTIVE", "0"),
    ("HEURISTIC", "1"),
    ("HEURISTIC", "0"),
    ("DEFAULT", "1"),
)
_RUNS = 6


def measured(graph: Path, search: str, max_workspace: str) -> dict[str, Any]:
    """Steps and bytes of one way."""
    inputs, _ = make_inputs(graph, 0, {}, None)
    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.enable_mem_pattern = False
        options.enable_mem_reuse = False
        options.enable_profiling = True
        options.profile_file_prefix = f"{folder}/profile"
        settings = {
            **CUDA.options,
            "cudnn_conv_algo_search": search,
            "cudnn_conv_use_max_workspace": max_workspace,
        }
        session = sessions.create(CUDA, graph, options, settings)
        steps = bound_step(session, inputs)
        seconds: list[float] = []
        for _ in range(_RUNS):
            step = steps()
            start = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - start)
        events = read_profile(Path(session.end_profiling()))[-1]
    return {
        "search": search,
        "max_workspace": max_workspace,
        "first_s": seconds[0],
        "least_s": min(seconds),
        "in_use_peak": max(e.in_use_peak or 0 for e in events),
        "requested": max(e.requested_in_use or 0 for e in events),
        "held": max(e.held or 0 for e in events),
    }


def main() -> None:
    """Each way in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graph", type=Path)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    options = parser.parse_args()
    sessions.check_provider(CUDA)
    rows: list[dict[str, Any]] = []
    for search, max_workspace in WAYS:
        rows.append(measured(options.graph, search, max_workspace))
        print(json.dumps(rows[-1]), flush=True)
        gc.collect()
    path = options.folder / "cuda_convolutions.json"
    path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
