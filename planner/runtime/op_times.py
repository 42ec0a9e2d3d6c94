"""How long each node of a model takes on this machine's CPU, and what a copy and a pin take.

A profiled run shows kernel times. Whatever else runs on the machine makes some of them longer and none
shorter, so that the least of several runs is taken, as Python's `timeit` advises. ONNX Runtime's profiler
adds some 10 microseconds between two nodes, and nothing to a kernel's own time: the least kernel times
of a step add up to its least time without a profile (`reports/predictions.md`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from planner.errors import ModelError
from planner.files.temporary import temporary_folder
from planner.runtime.options import Opening
from planner.runtime.profile import Run, create_session, read_profile, run_session

if TYPE_CHECKING:
    import numpy.typing as npt

_RUNS_S = 1.0
_MIN_RUNS, _MAX_RUNS = 3, 30
_MAX_EVENTS = 60_000
"""A profile is a text: more events than this take longer to read than to run."""
_LONG_S = 5.0
"""A step that takes longer is run once more after the first run."""

_COPIED = (1 << 16, 1 << 24)
_COPY_RUNS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTimes:
    """What was measured.

    Attributes:
        kernel_us: least microseconds of each node, by name.
        runs: how many runs that is the least of; the first run of the session is none of them.
    """

    kernel_us: Mapping[str, float]
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallTimes:
    """What planner's own nodes take.

    Attributes:
        copy_out_bytes_per_s, copy_in_bytes_per_s: of a large MemcpyToHost and MemcpyFromHost.
        pin_us: a node that moves no bytes, as those that pin the order are.
    """

    copy_out_bytes_per_s: float
    copy_in_bytes_per_s: float
    pin_us: float


def op_times(
    path: Path, feeds: Mapping[str, npt.NDArray[Any]], opening: Opening, *, nodes: int
) -> OpTimes:
    """Run a model for about a second, after one run that warms it up.

    Args:
        nodes: of the graph that runs, about.

    Raises:
        ModelError: ONNX Runtime cannot load or run it, or its profile has no node in it.
    """
    with temporary_folder() as folder:
        session = create_session(path, opening.options(profile_prefix=folder / "profile"))
        most = max(_MIN_RUNS, min(_MAX_RUNS, _MAX_EVENTS // max(1, nodes)))
        spent_s = 0.0
        for index in range(most + 1):
            start = time.perf_counter()
            results = run_session(session, feeds)
            elapsed_s = time.perf_counter() - start
            del results
            spent_s += elapsed_s if index else 0.0
            if index and (elapsed_s > _LONG_S or (index >= _MIN_RUNS and spent_s >= _RUNS_S)):
                break
        profile = Path(session.end_profiling())
        del session
        runs = read_profile(profile)
    least = _least_us(runs[1:] or runs)
    if not least:
        raise ModelError(f"ONNX Runtime's profile of {path} has no node in it")
    return OpTimes(kernel_us=least, runs=len(runs[1:] or runs))


def small_times(opening: Opening) -> SmallTimes:
    """Copy some arrays to the host and back, and ask for their sizes.

    Raises:
        ModelError: ONNX Runtime here has no such copies on the CPU.
    """
    small, large = _COPIED
    with temporary_folder() as folder:
        path = folder / "copies.onnx"
        path.write_bytes(_copies().SerializeToString())
        feeds = {f"x{size}": np.zeros(size // 4, np.float32) for size in _COPIED}
        session = create_session(path, opening.options(profile_prefix=folder / "profile"))
        for _ in range(_COPY_RUNS):
            run_session(session, feeds)
        profile = Path(session.end_profiling())
        del session
        least = _least_us(read_profile(profile)[1:])

    def rate(kind: str) -> float:
        more_us = least[f"{kind}{large}"] - least[f"{kind}{small}"]
        return (large - small) / max(more_us, 1.0) * 1e6

    return SmallTimes(
        copy_out_bytes_per_s=rate("out"),
        copy_in_bytes_per_s=rate("in"),
        pin_us=max(1.0, least[f"size{small}"]),
    )


def _least_us(runs: Sequence[Run]) -> dict[str, float]:
    """Least duration of each node over the runs."""
    least: dict[str, float] = {}
    for run in runs:
        for event in run:
            least[event.name] = min(least.get(event.name, np.inf), float(event.duration_us))
    return least


def _copies() -> onnx.ModelProto:
    """Inputs of `_COPIED` bytes, each copied to the host and back, and its size."""
    nodes: list[onnx.NodeProto] = []
    inputs: list[onnx.ValueInfoProto] = []
    outputs: list[onnx.ValueInfoProto] = []
    for size in _COPIED:
        x, host, back, count = f"x{size}", f"host{size}", f"back{size}", f"count{size}"
        nodes += [
            helper.make_node("MemcpyToHost", [x], [host], name=f"out{size}"),
            helper.make_node("MemcpyFromHost", [host], [back], name=f"in{size}"),
            helper.make_node("Size", [back], [count], name=f"size{size}"),
        ]
        inputs.append(helper.make_tensor_value_info(x, TensorProto.FLOAT, [size // 4]))
        outputs.append(helper.make_tensor_value_info(count, TensorProto.INT64, []))
    graph = helper.make_graph(nodes, "copies", inputs, outputs)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
