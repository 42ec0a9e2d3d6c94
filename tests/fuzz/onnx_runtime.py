"""Runs of a model on ONNX Runtime, written without planner's own runs: the fuzzer's judge."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

import planner
from tests.fuzz.builder import WITHIN

_LEVELS = ort.GraphOptimizationLevel
LEVELS = {
    "disabled": _LEVELS.ORT_DISABLE_ALL,
    "basic": _LEVELS.ORT_ENABLE_BASIC,
    "extended": _LEVELS.ORT_ENABLE_EXTENDED,
    "all": _LEVELS.ORT_ENABLE_ALL,
}


@dataclass(frozen=True, slots=True)
class Ran:
    """What a session says and did: its interface, outputs by name, and nodes of the graph in the order
    run, those of bodies left out."""

    interface: tuple[tuple[str, str], ...]
    outputs: Mapping[str, np.ndarray]
    order: tuple[str, ...]


def run(
    model: Path,
    feeds: Mapping[str, np.ndarray],
    *,
    level: str,
    priority: bool = False,
    seed: int = 0,
    packed: bool = True,
) -> Ran:
    """One profiled run on the CPU with one thread; no weights packed beforehand, where so asked."""
    ort.set_seed(seed)
    options = _options(level, priority)
    if not packed:
        options.add_session_config_entry("session.disable_prepacking", "1")
    session, arrays, events = _profiled(model, feeds, options)
    sides = (("input", session.get_inputs()), ("output", session.get_outputs()))
    return Ran(
        interface=tuple((f"{side} {v.name}", v.type) for side, found in sides for v in found),
        outputs={v.name: np.asarray(a) for v, a in zip(session.get_outputs(), arrays, strict=True)},
        order=tuple(
            e["name"].removesuffix(_SUFFIX) for e in events if not e["name"].startswith(WITHIN)
        ),
    )


def runs_as_opened(model: Path, feeds: Mapping[str, np.ndarray], *, packed: bool = True) -> str:
    """Why a file does not run twice as `planner.session_options` opens it; "" where it does."""
    options = planner.session_options(model)
    options.log_severity_level = 4
    if not packed:
        options.add_session_config_entry("session.disable_prepacking", "1")
    try:
        session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        for _ in range(2):
            session.run(None, {k: v.copy() for k, v in feeds.items()})
    except Exception as error:
        return str(error)
    return ""


def live_bytes(
    model: Path, feeds: Mapping[str, np.ndarray], *, level: str, priority: bool = False
) -> int:
    """Most bytes that ONNX Runtime holds at once when a kernel returns, inputs and initializers
    included; no memory pattern, no reuse, nothing packed beforehand."""
    options = _options(level, priority)
    options.enable_mem_pattern = False
    options.enable_mem_reuse = False
    options.add_session_config_entry("session.disable_prepacking", "1")
    with tempfile.TemporaryDirectory() as folder:
        ran = Path(folder) / "ran.onnx"  # without the initializers that optimizers have no use for
        options.optimized_model_filepath = str(ran)
        _, _, events = _profiled(model, feeds, options)
        graph = onnx.load(ran).graph
    fixed = {i.name: onnx.numpy_helper.to_array(i).nbytes for i in graph.initializer}
    # each run starts by copying what is an initializer and an output
    copies = sum(fixed.get(o.name, 0) for o in graph.output)
    fixed.update((name, array.nbytes) for name, array in feeds.items())
    if not events:
        return sum(fixed.values()) + copies
    held = [int(e["args"]["mem_bytes_requested_in_use"]) for e in events]
    before = held[0] - int(events[0]["args"]["mem_requested_in_use_delta"])
    return max(held) - before + sum(fixed.values()) + copies


_SUFFIX = "_kernel_time"


def _options(level: str, priority: bool) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.graph_optimization_level = LEVELS[level]
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if priority:
        options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    return options


def _profiled(
    model: Path, feeds: Mapping[str, np.ndarray], options: ort.SessionOptions
) -> tuple[ort.InferenceSession, list[Any], list[dict[str, Any]]]:
    """(session, outputs, events of nodes in the order run)."""
    with tempfile.TemporaryDirectory() as folder:
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "p")
        session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        arrays = list(session.run(None, {k: v.copy() for k, v in feeds.items()}))
        events = json.loads(Path(session.end_profiling()).read_text())
    done = [e for e in events if e.get("cat") == "Node" and e["name"].endswith(_SUFFIX)]
    return session, arrays, sorted(done, key=lambda e: e["ts"])


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays are of one type and shape and hold the same bytes."""
    return (
        one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    )
