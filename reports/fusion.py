"""What fusing element operations gives: `python -m reports.fusion [--graphs DIR] [MODEL.onnx...]`.

    python -m reports.fusion                     the committed samples
    python -m reports.fusion --graphs DIR gpt_s.onnx    graphs of a folder beside them
    python -m reports.fusion --layers            single convolutions, in both operators

Each is planned for the CPU on the graph that ONNX Runtime's optimizers leave; that graph and the fused
one, exact and not, then run warm and in turns in one process. Of the step there is the ratio of wall
times (medians) and of processor times (least of all runs), which other work disturbs less; bytes that are
read and written outside of matrix products and convolutions, predicted and counted in a profile;
and the least peak that a short search finds. Rows go to `fusion.json`, the page to `fusion.md`.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from planner import clock
from planner.choices import FuseMode
from planner.cost.work import Unit, work_of
from planner.graph.rules import FUSED_DOMAIN, POINTWISE
from planner.native import library_path
from planner.pipeline.levers.fuse.fusing import fused, fused_nodes
from planner.pipeline.prepare.prepared import Prepared, prepare
from planner.pipeline.prepare.settings import settings_of
from planner.pipeline.solve.orders import base_orders, least_found_peak
from planner.request import Costs, Levers, Request
from planner.runtime.feeds.inputs import make_inputs
from planner.runtime.machine import BUSY, waited_s, waited_share
from planner.runtime.options import default_threads, hold_no_more
from planner.units import format_bytes, format_percent
from reports.shared import FOLDER, ZOO, Row, program, read_rows, table, write_rows

RESULT, PAGE = FOLDER / "fusion.json", FOLDER / "fusion.md"
MODES: tuple[FuseMode, ...] = ("exact", "auto")
_WARM_UPS, _LEAST_RUNS, _MOST_RUNS, _RUNS_S = 2, 5, 40, 20.0
_SEARCH_S = 4.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write the page."""
    parser = program("reports.fusion", __doc__)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--graphs", type=Path, help="folder of the models that are named")
    parser.add_argument("--layers", action="store_true", help="single convolutions")
    options = parser.parse_args(arguments)
    asked = [(options.graphs or Path()) / model for model in options.models]
    rows: dict[str, Row] = read_rows(RESULT, {})
    work: dict[str, Callable[[], Row]]
    work = {m.stem: partial(measured, m) for m in asked or sorted(ZOO.glob("*.onnx"))}
    if options.layers:
        work = {"layers": lambda: {name: layer_times(*layer) for name, layer in LAYERS.items()}}
    for name, measure in work.items():
        rows[name] = measure()
        print(name, json.dumps(rows[name]), flush=True)
        write_rows(RESULT, rows)
        PAGE.write_text(page(rows), encoding="utf-8")
    return 0


def measured(model: Path) -> Row:
    """Measure one model."""
    prepared = _prepared(model)
    feeds, _ = make_inputs(model, 0, prepared.loaded.dims, None)
    row: Row = {"operations": len(prepared.graph.operations)} | _facts(prepared, feeds)
    for mode in MODES:
        made = fused(prepared, mode)
        if made is not None:
            facts = _facts(made, feeds) | {"nodes": fused_nodes(made)}
            row[mode] = facts | _timed(prepared, made, feeds)
    return row


LAYERS: dict[str, tuple[int, ...]] = {
    "MobileNetV2, 32 x 32": (16, 96, 96, 32, 3, 1, 96),
    "MobileNetV2, 64 x 64, stride 2": (16, 96, 96, 64, 3, 2, 96),
    "MobileNetV2, 7 x 7": (16, 960, 960, 7, 3, 1, 960),
    "ConvNeXt, 7 x 7 kernels": (8, 96, 96, 32, 7, 1, 96),
    "ResNeXt, 4 channels a group": (16, 128, 128, 32, 3, 1, 32),
    "U-Net's first": (2, 3, 32, 256, 3, 1, 1),
    "MobileNetV2's first": (16, 3, 32, 128, 3, 2, 1),
    "U-Net, 32 channels": (2, 32, 32, 256, 3, 1, 1),
    "U-Net, 64 channels": (2, 64, 64, 128, 3, 1, 1),
    "U-Net, 128 channels": (2, 128, 128, 64, 3, 1, 1),
    "ResNet, 64 channels": (16, 64, 64, 32, 3, 1, 1),
}
"""Samples, channels, filters, rows and columns, kernel, stride and groups of convolutions."""


def layer_times(
    samples: int, channels: int, filters: int, size: int, kernel: int, stride: int, groups: int
) -> Row:
    """Time a convolution and its kernel's gradient, in the nodes that the exporter writes for them."""
    import torch

    from planner import export_training_graph

    conv = torch.nn.Conv2d(
        channels, filters, kernel, stride, kernel // 2, groups=groups, bias=False
    )
    image = torch.randn(samples, channels, size, size)
    weights = torch.randn(conv(image).shape)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "layer.onnx"
        export_training_graph(
            conv, image, lambda made, given: (made * given).sum(), targets=weights, check=False
        ).save(path)
        made = fused(prepared := _prepared(path), "auto")
        if made is None:
            raise ValueError(f"nothing of {conv} is fused")
        feeds, _ = make_inputs(path, 0, {}, None)
        (plain, ours), _ = _in_turns(_sessions(prepared, made), feeds, math.inf)
    kinds = [op.op_type for op in made.graph.operations if op.domain == FUSED_DOMAIN]
    return {
        "nodes": sorted(set(kinds) - {POINTWISE}),
        "plain_us": 1e6 * min(plain),
        "fused_us": 1e6 * min(ours),
    }


def _prepared(model: Path) -> Prepared:
    return prepare(
        Request(
            model=model, budget="100%", costs=Costs(calibrate="never"), levers=Levers(swap="none")
        )
    )


def _facts(prepared: Prepared, feeds: dict[str, Any]) -> Row:
    """Return the bytes moved, predicted and counted, and the predicted least peak."""
    with clock.counting():  # the same on a busy machine
        orders = base_orders(prepared, time_limit_s=_SEARCH_S)
        least = least_found_peak(prepared, settings_of(prepared), orders, time_limit_s=_SEARCH_S)
    work = {op.name: work_of(prepared.graph, op) for op in prepared.graph.operations}
    # that operations other than products and convolutions read and write in a step
    moved = {name: one.bytes for name, one in work.items() if one.unit is not Unit.MATRIX}
    return {
        "moved_bytes": sum(moved.values()),
        "counted_bytes": _counted(prepared, feeds, {name for name in moved if moved[name]}),
        "least_peak_bytes": min(least, prepared.baseline.peak_bytes),
    }


def _counted(prepared: Prepared, feeds: dict[str, Any], nodes: Set[str]) -> int:
    """Return the bytes of what nodes read and write in a run, by ONNX Runtime's profile."""
    with tempfile.TemporaryDirectory() as folder:
        session = _session(prepared, Path(folder) / "model.onnx", profiled=True)
        session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    kernels = (e for e in events if e["name"].removesuffix("_kernel_time") in nodes)
    sizes = ("parameter_size", "activation_size", "output_size")
    return sum(int(event["args"].get(size, 0)) for event in kernels for size in sizes)


def _timed(plain: Prepared, made: Prepared, feeds: dict[str, Any]) -> Row:
    """Time the step of both graphs in turns, and compare their results."""
    sessions = _sessions(plain, made)
    results = [session.run(None, feeds) for session in sessions]
    same = sum(np.array_equal(a, b, equal_nan=True) for a, b in zip(*results, strict=True))
    began, waited = time.perf_counter(), waited_s()
    wall, processor = _in_turns(sessions, feeds, _RUNS_S)
    busy = waited_share(waited, time.perf_counter() - began, default_threads())
    return {
        "outputs": len(results[0]),
        "same": int(same),
        "wall": statistics.median(wall[1]) / statistics.median(wall[0]),
        "processor": min(processor[1]) / min(processor[0]),
        "busy": busy if busy > BUSY else 0.0,
    }


def _in_turns(
    sessions: Sequence[ort.InferenceSession], feeds: dict[str, Any], limit_s: float
) -> tuple[list[list[float]], list[list[float]]]:
    """Return each session's wall times, and its processor times, without the first runs."""
    wall, processor = [[], []], [[], []]
    began = time.perf_counter()
    for index in range(_WARM_UPS + _MOST_RUNS):
        for which in (0, 1) if index % 2 else (1, 0):
            start = time.perf_counter(), time.process_time()
            sessions[which].run(None, feeds)
            if index >= _WARM_UPS:
                wall[which].append(time.perf_counter() - start[0])
                processor[which].append(time.process_time() - start[1])
        if time.perf_counter() - began > limit_s and index >= _LEAST_RUNS + _WARM_UPS:
            break
    return wall, processor


def _sessions(*prepared: Prepared) -> list[ort.InferenceSession]:
    with tempfile.TemporaryDirectory() as folder:
        return [_session(one, Path(folder) / f"{i}.onnx") for i, one in enumerate(prepared)]


def _session(prepared: Prepared, path: Path, *, profiled: bool = False) -> ort.InferenceSession:
    ir.save(prepared.model, path)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.enable_profiling, options.profile_file_prefix = profiled, str(path)
    hold_no_more(options)
    options.intra_op_num_threads = default_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.register_custom_ops_library(str(library_path()))
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def page(rows: dict[str, Row]) -> str:
    """Return the text of the page."""
    layers: Row = rows.get("layers", {})
    rows = {name: row for name, row in rows.items() if name != "layers"}
    busy = max((row[m]["busy"] for row in rows.values() for m in MODES if m in row), default=0.0)
    said = "Nothing else kept a core busy while steps were timed."
    if busy:
        said = f"**Threads waited for a core for up to {format_percent(busy)} of the time**: ratios of "
        said += "processor times are the ones to read."
    columns = ["model", "fused", "operations -> nodes", "moved outside of products", "counted"]
    columns += [
        "least peak",
        "step, processor time",
        "step, wall time",
        "outputs with the same bits",
    ]
    lines = [_cells(name, m, row) for name, row in rows.items() for m in MODES if m in row]
    return f"""# Fused operations on the CPU

From `python -m reports.fusion`, on onnxruntime {ort.__version__}, {default_threads()} threads. A row is
one graph as ONNX Runtime's optimizers leave it, and the same with element operations fused (`--fuse`).
Times are fused / unfused, both warm, in turns in one process. Bytes that are moved outside of matrix
products and convolutions, and the least peak that a search of some seconds finds with recompute and
order, are predicted: unfused -> fused. Counted: the same bytes in ONNX Runtime's profile. {said}

{chr(10).join(table(columns, lines))}

`exact` fuses what keeps every bit; `auto` adds what differs in rounding. `planner optimize --fuse` prices
fused nodes by what they take on the machine, and plans without them where that is predicted to take less
time, or fits alone. A group whose node is measured to take longer than its operations stays as it is
there; here all are fused.
{_layers(layers)}"""


def _layers(layers: Row) -> str:
    """Return the table of single convolutions."""
    if not layers:
        return ""
    shown: list[tuple[object, ...]] = []
    for name, row in layers.items():
        plain_ms, fused_ms = row["plain_us"] / 1000, row["fused_us"] / 1000
        times = f"{plain_ms:.2f}", f"{fused_ms:.2f}", f"{fused_ms / plain_ms:.3f}"
        shown.append((name, ", ".join(row["nodes"]), *times))
    columns = ("layer", "nodes of ours", "ms", "fused, ms", "ratio")
    return f"""
## Convolutions

From `python -m reports.fusion --layers`: a convolution and the gradient of its kernel, as PyTorch's
Conv2d is exported; the least of {_MOST_RUNS} runs in turns, without and with `--fuse auto`.

{chr(10).join(table(columns, shown))}
"""


def _cells(name: str, mode: str, row: Row) -> tuple[str, ...]:
    one = row[mode]

    def from_to(key: str) -> str:
        share = format_percent(one[key] / row[key] - 1)
        return f"{format_bytes(row[key])} -> {format_bytes(one[key])} ({share})"

    nodes = f"{row['operations']:,}, {one['nodes']:,} nodes fused"
    found = map(from_to, ("moved_bytes", "counted_bytes", "least_peak_bytes"))
    times = (f"{one[key]:.3f}" for key in ("processor", "wall"))
    return name, mode, nodes, *found, *times, f"{one['same']} of {one['outputs']}"


if __name__ == "__main__":
    raise SystemExit(main())
