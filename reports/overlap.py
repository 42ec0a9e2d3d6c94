"""Copies on streams of their own, on a software device: `python -m reports.overlap`.

A hand-written chain whose values leave the device and come back is run with one stream and with copies
on streams of their own (`planner.runtime.streams`), over many steps with inputs that vary, and every
output is compared bit for bit. What ran where, and when, is read from ONNX Runtime's profile. The same
partition on the CPU shows what a session with several streams does with memory pattern and reuse.
Writes `overlap.md` beside this file; `--device cuda` runs the chain on a CUDA device, with larger
tensors, and writes `overlap_cuda.json`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto as T
from onnx import helper as h

from planner.errors import UsageError
from planner.runtime.device import sessions
from planner.runtime.device.provider import webgpu_devices
from planner.runtime.device.software import find_device, start
from planner.runtime.streams import (
    PARTITION_ENTRY,
    Partition,
    present_partition,
    read_partition,
    separate,
    streams_path,
    write_streams,
)
from planner.targets import CUDA

REPORT = Path(__file__).with_suffix(".md")
STEPS = 500
DEPTH, WIDTH = 6, 256
_CUDA_WIDTH = 2048
_KIB = 1024
_FEEDS = 64
"""Inputs that differ; steps take them in turns."""


# -- the model ---------------------------------------------------------------------------------


def chain(path: Path, width: int = WIDTH) -> None:
    """Forward values are copied out one by one and come back, the last one first; both ends and the
    sums on the way are outputs."""
    nodes: list[onnx.NodeProto] = []
    value = "x"
    for i in range(DEPTH):
        nodes.append(h.make_node(("Tanh", "Neg", "Sigmoid")[i % 3], [value], [f"f{i}"], f"f{i}"))
        value = f"f{i}"
        if i < DEPTH - 1:
            nodes.append(h.make_node("MemcpyToHost", [value], [f"host{i}"], f"out{i}"))
            nodes.append(h.make_node("MemcpyFromHost", [f"host{i}"], [f"back{i}"], f"in{i}"))
    for i in reversed(range(DEPTH - 1)):
        nodes.append(h.make_node("Add", [value, f"back{i}"], [f"b{i}"], f"b{i}"))
        value = f"b{i}"
    # read on the host, so that nothing else is copied: they pin the copies out
    nodes += [
        h.make_node("Size", [f"host{i}"], [f"size{i}"], f"size{i}")
        for i in reversed(range(DEPTH - 1))
    ]
    shape = [width, width]
    outputs = [h.make_tensor_value_info(name, T.FLOAT, shape) for name in ("b0", f"b{DEPTH - 2}")]
    graph = h.make_graph(nodes, "chain", [h.make_tensor_value_info("x", T.FLOAT, shape)], outputs)
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9), path)


def feed(step: int, width: int = WIDTH) -> dict[str, Any]:
    """The inputs of one step."""
    random = np.random.default_rng(step)
    return {"x": random.standard_normal((width, width)).astype("float32")}


# -- the device --------------------------------------------------------------------------------


def on_device(model: Path, steps: int, device: str = "webgpu") -> dict[str, Any]:
    """Both sessions, in a process that sees the device: what ran, and how outputs compare."""
    is_cuda = device == "cuda"
    width = _CUDA_WIDTH if is_cuda else WIDTH
    chain(model, width)
    if is_cuda:
        sessions.check_provider(CUDA)

    def opened(options: ort.SessionOptions) -> ort.InferenceSession:
        if is_cuda:
            return sessions.create(CUDA, model, options, CUDA.options)
        return ort.InferenceSession(model, options)

    def options(profile: str = "") -> ort.SessionOptions:
        made = ort.SessionOptions()
        made.log_severity_level = 3
        if profile:
            made.enable_profiling = True
            made.profile_file_prefix = str(model.with_name(profile))
        if not is_cuda:
            made.add_provider_for_devices(list(webgpu_devices()[:1]), {})
        return made

    by_itself = present_partition(opened, options())
    several = options()
    ours = write_streams(model, opened, several)
    one, own, again = opened(options()), opened(several), opened(options())
    different = control = 0
    seconds: list[list[float]] = [[], []]
    feeds = [feed(step, width) for step in range(min(steps, _FEEDS))]
    for step in range(steps):
        results = []
        for session, taken in zip((one, own), seconds, strict=True):
            start = time.perf_counter()
            results.append(session.run(None, feeds[step % _FEEDS]))
            taken.append(time.perf_counter() - start)
        different += _differ(*results)
        control += _differ(results[0], again.run(None, feeds[step % _FEEDS]))
    profiled = {}
    for name in ("one", "own"):
        made = options(name)
        if name == "own":
            made.add_session_config_entry(PARTITION_ENTRY, str(streams_path(model)))
        session = opened(made)
        session.run(None, feeds[0])
        events = _nodes(session.end_profiling())
        profiled[name] = [
            [e["name"][: -len("_kernel_time")], e["args"]["provider"]] for e in events
        ]
    return {
        "by_itself": by_itself.text(),
        "ours": ours.text(),
        "executed": profiled,
        "steps": steps,
        "different": different,
        "control": control,
        "median_s": [statistics.median(taken) for taken in seconds],
        "width": width,
        "outputs": len(one.get_outputs()),
    }


def _differ(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Whether any output has other bits."""
    return any(a.tobytes() != b.tobytes() for a, b in zip(first, second, strict=True))


def _nodes(profile: str) -> list[dict[str, Any]]:
    events = json.loads(Path(profile).read_text(encoding="utf-8"))
    nodes = [e for e in events if e.get("cat") == "Node" and e["name"].endswith("_kernel_time")]
    return sorted(nodes, key=lambda e: e["ts"])


def peak_bytes(model: onnx.ModelProto, order: Sequence[str]) -> int:
    """Live device bytes at the most, where each buffer is freed when its last reader was issued."""
    nodes = {node.name: node for node in model.graph.node}
    on_host = {o for n in nodes.values() if n.op_type in ("MemcpyToHost", "Size") for o in n.output}
    stays = {o.name for o in model.graph.output}
    last: dict[str, int] = {}
    for step, name in enumerate(order):
        for value in nodes[name].input:
            last[value] = step
    size = 4 * WIDTH * WIDTH
    live = peak = size  # the input
    for step, name in enumerate(order):
        live += size * sum(o not in on_host for o in nodes[name].output)
        peak = max(peak, live)
        freed = {v for v in nodes[name].input if last[v] == step} - stays - on_host - {"x"}
        live -= size * len(freed)
    return peak


# -- memory pattern and reuse ------------------------------------------------------------------


def in_use(model: Path, partition: Path | None, *, pattern: bool, reuse: bool) -> tuple[int, int]:
    """Bytes in use at the first node of a later run, and at the most, on the CPU."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.enable_mem_pattern = pattern
    options.enable_mem_reuse = reuse
    options.enable_profiling = True
    options.profile_file_prefix = str(model.with_name("memory"))
    if partition is not None:
        options.add_session_config_entry(PARTITION_ENTRY, str(partition))
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    for _ in range(3):
        session.run(None, feed(0))
    nodes = _nodes(session.end_profiling())
    last = nodes[-len(nodes) // 3 :]
    found = [int(e["args"]["mem_bytes_in_use"]) for e in last]
    return found[0], max(found)


def memory_rows(folder: Path) -> Iterator[tuple[str, str, str, int, int]]:
    """Streams, pattern, reuse, KiB at the first node and at the most: each way to run on the CPU."""
    model, own = folder / "cpu.onnx", folder / "cpu.streams.json"
    chain(model)

    def opened(options: ort.SessionOptions) -> ort.InferenceSession:
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    found = present_partition(opened, ort.SessionOptions())
    types = {n.name: n.op_type for n in onnx.load(model).graph.node}
    # as if the CPU were a device: `separate` leaves a real CPU alone
    parted = separate(Partition(streams=found.streams, devices=("1",)), types)
    own.write_text(Partition(streams=parted.streams, devices=("0",) * 3).text(), encoding="utf-8")
    for (streams, file), pattern, reuse in itertools.product(
        (("one", None), ("three", own)), (True, False), (True, False)
    ):
        first, most = in_use(model, file, pattern=pattern, reuse=reuse)
        said = ["on" if flag else "off" for flag in (pattern, reuse)]
        yield streams, said[0], said[1], first // _KIB, most // _KIB


def _pattern(rows: Sequence[tuple[str, str, str, int, int]]) -> str:
    """Whether several streams have a block at the first node that they lack without the pattern."""
    first = {(streams, pattern): kib for streams, pattern, _, kib, _ in rows}
    has = first["three", "on"] > first["three", "off"]
    return f"several streams have {'one' if has else 'none'}"


# -- the report --------------------------------------------------------------------------------


def report(
    found: dict[str, Any], model: onnx.ModelProto, memory: Sequence[tuple[str, str, str, int, int]]
) -> str:
    """The text of `overlap.md`."""
    orders = {name: [n for n, _ in rows] for name, rows in found["executed"].items()}
    peaks = {name: peak_bytes(model, order) for name, order in orders.items()}
    providers = sorted({provider for rows in found["executed"].values() for _, provider in rows})
    late = [n for n in orders["own"] if n.startswith("out")]
    shift = sum(orders["own"].index(n) - orders["one"].index(n) for n in late) / max(1, len(late))
    streams = json.loads(found["ours"])
    sizes = ", ".join(
        f"{len(names)} nodes on device {device}"
        for names, device in zip(streams["streams"], streams["devices"], strict=True)
    )
    alone = json.loads(found["by_itself"])
    return "\n".join(
        [
            "# Copies on streams of their own",
            "",
            f"`python -m reports.overlap` wrote this, with onnxruntime {ort.__version__}: "
            f"{', '.join(providers)}",
            f"on a software Vulkan device, a chain of {len(model.graph.node)} nodes with "
            f"{2 * len(late)} copies of {4 * WIDTH * WIDTH // _KIB} KiB.",
            "",
            "## What ran",
            "",
            f"- ONNX Runtime's own partition has {len(alone['streams'])} streams, on devices "
            f"{', '.join(alone['devices'])}. Ours has {len(streams['streams'])}: {sizes}. "
            "It was applied.",
            f"- {found['steps']} steps with inputs that vary: {found['different']} had an output that "
            f"was not bit for bit that of one stream ({found['outputs']} outputs each).",
            "- Issued with one stream: " + _line(orders["one"]),
            "- Issued with copies on their own: " + _line(orders["own"]),
            f"- Copies out were issued {shift:.1f} steps later on average. Live device bytes, each "
            "buffer freed when its last reader was issued: "
            f"{peaks['one'] // _KIB:,} KiB with one stream, {peaks['own'] // _KIB:,} KiB with copies on "
            "their own.",
            "",
            "## Memory pattern and reuse",
            "",
            "The same chain on the CPU provider, third run, KiB in use as ONNX Runtime reports them. A",
            f"memory pattern takes its block before the first node: {_pattern(memory)}.",
            "With several streams the last column differs by a buffer or two from one run to the next.",
            "",
            "| streams | pattern | reuse | at the first node | at the most |",
            "|---|---|---|---:|---:|",
            *(f"| {' | '.join(map(str, row))} |" for row in memory),
            "",
            _verdict(),
        ]
    )


_PLANNER = "core/framework/allocation_planner.cc"
_CONTEXT = "core/framework/stream_execution_context.cc"
_ARENA = "core/framework/bfc_arena.cc, core/providers/cuda/plugin/cuda_arena.cc"
_READ = (
    (
        "Does a copy in wait for its copy out?",
        "yes, on the host, for the event that the copy out recorded",
        f"`BuildExecutionPlan` in {_PLANNER}; `WaitCudaNotificationOnHost` in "
        "core/providers/cuda/cuda_stream_handle.cc",
    ),
    (
        "When is a buffer freed?",
        "when its last reader was issued, on whichever stream, with no wait for the device",
        f"`GenerateDeallocationPlan` in {_PLANNER}; `RecycleNodeInputs` in {_CONTEXT}",
    ),
    (
        "May an operation overwrite what a copy out still reads?",
        "**yes**: the stream that a chunk was allocated on gets it back with no wait",
        f"`safe_to_use` in `FindChunkPtr`: {_ARENA}",
    ),
    (
        "May a copy in overwrite what an operation still reads?",
        "**yes**: chunks of its own stream come back with no wait, and those of another if it waited "
        "for an event newer than the chunk's *allocation*, which may be older than its last reader",
        "the same, and `stream_sync_id` (`stream_timestamp` in older releases)",
    ),
    (
        "Is memory freed as planned?",
        "**no**: by default one thread issues each stream as far as it can; copies out come when the "
        "operations wait for something",
        f"`RunSince`, `ScheduleDownstream` in {_CONTEXT}; seen above",
    ),
)
_VERDICT = """\
## What follows

Equal results here prove little: a WebGPU device has one queue, so what is issued first runs first. On
a GPU with real streams ONNX Runtime's source decides. It was read, in revisions of 2022 to 2026;
functions are named, as lines move. {seen}

| question | answer | decided by |
|---|---|---|
{rows}

ONNX Runtime met the third one before, and put its own copies on the stream of the operations for it
(issue 4829, pull request 5445 of microsoft/onnxruntime); issue 32342 is about the same test.

What the file could do: an operation that reads a swapped-out tensor and something that is ready only
after its copy out would keep the buffer until then. A copy in has one input, the tensor in host
memory: nothing in the file makes it wait for the last reader of the buffer that it will be given.

So `--copies overlapped` plans a what-if. Its file is a model like any other, runs on one stream and is
verified so; no partition is written with it. `planner.session_options(model, copies="overlapped")`
writes and applies one, with a warning, for those who want to try it on a device. `--copies auto` is
serial.
"""


def _verdict() -> str:
    """What follows, with what a CUDA device did where one was tried (`overlap_cuda.json`)."""
    path = REPORT.with_name("overlap_cuda.json")
    seen = "It was not run."
    if path.exists():
        cuda = json.loads(path.read_text(encoding="utf-8"))
        seen = (
            f"On an H100 it is so: {cuda['different']} of {cuda['steps']} steps of the chain above, with "
            f"tensors of {4 * cuda['width'] ** 2 // 2**20} MiB, gave other bits than one stream; a "
            f"second session on one stream, {cuda['control']} ([cuda.md](cuda.md))."
        )
    rows = "\n".join(f"| {' | '.join(row)} |" for row in _READ)
    return _VERDICT.format(rows=rows, seen=seen)


def _line(order: Sequence[str]) -> str:
    return "`" + " ".join(order) + "`"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--device", default="webgpu", choices=["webgpu", "cuda"])
    parser.add_argument("--on-device", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--print", action="store_true", help="print the report, write nothing")
    asked = parser.parse_args(arguments)
    if asked.on_device is not None:
        print(json.dumps(on_device(asked.on_device, asked.steps, asked.device)))
        return 0
    if asked.device == "cuda":
        with tempfile.TemporaryDirectory(prefix="planner-overlap-") as name:
            found = on_device(Path(name) / "chain.onnx", asked.steps, "cuda")
        path = REPORT.with_name("overlap_cuda.json")
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        return 0
    try:
        device = find_device()
    except UsageError as error:
        print(f"no software device: {error}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="planner-overlap-") as name:
        folder = Path(name)
        model = folder / "chain.onnx"
        command = [sys.executable, "-m", "reports.overlap", "--on-device", str(model)]
        done = start([*command, "--steps", str(asked.steps)], device)
        if done.returncode:
            print(f"the software device failed: {done.stderr[-2000:]}", file=sys.stderr)
            return 1
        found = json.loads(done.stdout.splitlines()[-1])
        text = report(found, onnx.load(model), list(memory_rows(folder)))
        assert read_partition(streams_path(model)).text() == found["ours"]
    print(text)
    if not asked.print:
        REPORT.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
