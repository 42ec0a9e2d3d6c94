"""Measure the time of each node of a model on this machine's CPU, and of a copy, a pin and a cache
miss.

A profiled run shows kernel times. Other work on the machine makes some of them longer and none
shorter: the least of several runs counts, as Python's `timeit` advises. ONNX Runtime's profiler adds
some 10 microseconds between two nodes, and nothing to a kernel's own time: the least kernel times of
a step add up to its least time without a profile (`reports/predictions.md`). While other work keeps a
core busy, all runs take longer, some operations several times as long as others. The time that
threads wait for a core shows this, and it is reported.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from planner.cost.measured import Cache, MeasuredTimes
from planner.errors import ModelError
from planner.files.temporary import temporary_folder
from planner.runtime.machine import BUSY, last_cache_bytes, waited_s, waited_share
from planner.runtime.options import Opening
from planner.runtime.profile import Run, create_session, read_profile, run_session
from planner.runtime.timing import COLD_RUNS, available_bytes

if TYPE_CHECKING:
    import numpy.typing as npt

_RUNS_S = 1.0
_MIN_RUNS, _MAX_RUNS = 3, 30
_MAX_EVENTS = 60_000
"""The most events of a profile, which is text: reading more would take longer than running the model."""
_MOST_S = 10.0
"""Seconds of the wall clock after which no further run begins, warm-up runs and loading included."""

_BUSY_RUNS_S = 3.0
"""Seconds of runs on a busy machine: the other work may end meanwhile."""

_LEAST_COPIED, _MOST_COPIED = 1 << 20, 1 << 24
_FOR_EACH = 1 << 16
"""Bytes of a small copy, whose time is the fixed cost of any copy."""
_COPY_RUNS = 8

_COLUMNS = 512
_IN_CACHE, _BEYOND = 1 / 16, 2.0
"""Sizes of an input that the cache holds, and of one that it does not, in caches."""
_MISS_RUNS = 24
_MOST_CACHE_BYTES = 1 << 28


def op_times(
    path: Path, feeds: Mapping[str, npt.NDArray[Any]], opening: Opening, *, nodes: int
) -> MeasuredTimes:
    """Measure a model's nodes in runs of about a second, after two warm-up runs.

    Once `_MOST_S` are over, no run begins, and what has been measured counts; of a step that takes
    longer, that is its first run alone.

    Args:
        nodes: approximate number of nodes of the graph that runs.

    Raises:
        ModelError: ONNX Runtime cannot load or run the model, or its profile has no node in it.
    """
    until = time.perf_counter() + _MOST_S
    with temporary_folder() as folder:
        session = create_session(path, opening.options(profile_prefix=folder / "profile"))
        most = max(_MIN_RUNS, min(_MAX_RUNS, _MAX_EVENTS // max(1, nodes)))
        begun, spent_s, waited = waited_s(), 0.0, 0.0
        for index in range(1 - COLD_RUNS, most + 1):
            if index == 1:
                begun, spent_s = waited_s(), 0.0
            start = time.perf_counter()
            results = run_session(session, feeds)
            ended = time.perf_counter()
            del results
            spent_s += ended - start
            waited = waited_share(begun, spent_s, opening.threads or 1)
            enough_s = _BUSY_RUNS_S if waited > BUSY else _RUNS_S
            if ended >= until or (index >= _MIN_RUNS and spent_s >= enough_s):
                break
        profile = Path(session.end_profiling())
        del session
        runs = read_profile(profile)
    counted = runs[COLD_RUNS:] or runs[-1:]
    least = _least_us(counted)
    if not least:
        raise ModelError(f"ONNX Runtime's profile of {path} has no node in it")
    return MeasuredTimes(
        kernel_us=least, runs=len(counted), waited=waited if waited > BUSY else 0.0
    )


def cache_of(opening: Opening) -> Cache | None:
    """Measure the last cache of this machine: its size, and the time of a byte that it does not hold.

    The time is the mean of an elementwise operation and a sum over rows, each on an input that the
    cache holds and on one of twice the cache's size.

    Returns:
        None where the system does not state the cache's size, where memory is short, or where the two
        sizes take equally long.

    Raises:
        ModelError: ONNX Runtime cannot run the two operations.
    """
    cache_bytes = last_cache_bytes()
    available = available_bytes()
    if not 0 < cache_bytes <= _MOST_CACHE_BYTES or (available or 0) < 8 * _BEYOND * cache_bytes:
        return None
    held, beyond = (_touching_us(int(s * cache_bytes), opening) for s in (_IN_CACHE, _BEYOND))
    added = [after - before for before, after in zip(held, beyond, strict=True)]
    us_per_byte = sum(added) / len(added)
    if us_per_byte <= 0:
        return None
    return Cache(bytes=cache_bytes, missed_bytes_per_s=1e6 / us_per_byte)


def _touching_us(size: int, opening: Opening) -> tuple[float, float]:
    """Return the microseconds for each byte touched, by element and by columns, for an input of
    `size` bytes."""
    rows = max(1, size // (4 * _COLUMNS))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, _COLUMNS])
    axis = helper.make_tensor("axis", TensorProto.INT64, [1], [0])
    nodes = [
        helper.make_node("Neg", ["x"], ["y"], name="elements"),
        helper.make_node("ReduceSum", ["y", "axis"], ["z"], name="columns", keepdims=0),
    ]
    z = helper.make_tensor_value_info("z", TensorProto.FLOAT, [_COLUMNS])
    graph = helper.make_graph(nodes, "misses", [x], [z], [axis])
    feeds = {"x": np.zeros((rows, _COLUMNS), np.float32)}
    least = _least_of(_model(graph), feeds, opening, _MISS_RUNS)
    touched = 4 * rows * _COLUMNS
    return least["elements"] / (2 * touched), least["columns"] / touched


def small_times(times: MeasuredTimes, opening: Opening, *, touched_bytes: int) -> MeasuredTimes:
    """Add the times of copies to the host and back, and of nodes that pin the order.

    A cache that holds all bytes that a step touches holds the copied ones too, and a copy takes half the
    time. Therefore an array and its two copies together are as large as those bytes, within 3 to 48 MiB.

    Args:
        touched_bytes: bytes that a step touches.

    Raises:
        ModelError: this build of ONNX Runtime has no such copies on the CPU.
    """
    small = _FOR_EACH
    large = min(_MOST_COPIED, max(_LEAST_COPIED, touched_bytes // 3 // 4 * 4))
    sizes = small, large
    feeds = {f"x{size}": np.zeros(size // 4, np.float32) for size in sizes}
    least = _least_of(_copies(sizes), feeds, opening, _COPY_RUNS)

    def rate(kind: str) -> float:
        more_us = least[f"{kind}{large}"] - least[f"{kind}{small}"]
        return (large - small) / max(more_us, 1.0) * 1e6

    return replace(
        times,
        copy_out_bytes_per_s=rate("out"),
        copy_in_bytes_per_s=rate("in"),
        pin_us=max(1.0, least[f"size{small}"]),
    )


def _least_of(
    model: onnx.ModelProto,
    feeds: Mapping[str, npt.NDArray[Any]],
    opening: Opening,
    runs: int,
) -> dict[str, float]:
    """Return the least microseconds of each node of a small model, without the first run."""
    with temporary_folder() as folder:
        path = folder / "model.onnx"
        path.write_bytes(model.SerializeToString())
        session = create_session(path, opening.options(profile_prefix=folder / "profile"))
        for _ in range(runs):
            run_session(session, feeds)
        profile = Path(session.end_profiling())
        del session
        return _least_us(read_profile(profile)[1:])


def _least_us(runs: Sequence[Run]) -> dict[str, float]:
    """Return the least duration of each node over the runs."""
    least: dict[str, float] = {}
    for run in runs:
        for event in run:
            least[event.name] = min(least.get(event.name, np.inf), float(event.duration_us))
    return least


def _copies(sizes: Sequence[int]) -> onnx.ModelProto:
    """Build a model that copies inputs of these sizes in bytes to the host and back, and takes their
    Size."""
    nodes: list[onnx.NodeProto] = []
    inputs: list[onnx.ValueInfoProto] = []
    outputs: list[onnx.ValueInfoProto] = []
    for size in sizes:
        x, host, back, count = f"x{size}", f"host{size}", f"back{size}", f"count{size}"
        nodes += [
            helper.make_node("MemcpyToHost", [x], [host], name=f"out{size}"),
            helper.make_node("MemcpyFromHost", [host], [back], name=f"in{size}"),
            helper.make_node("Size", [back], [count], name=f"size{size}"),
        ]
        inputs.append(helper.make_tensor_value_info(x, TensorProto.FLOAT, [size // 4]))
        outputs.append(helper.make_tensor_value_info(count, TensorProto.INT64, []))
    return _model(helper.make_graph(nodes, "copies", inputs, outputs))


def _model(graph: onnx.GraphProto) -> onnx.ModelProto:
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
