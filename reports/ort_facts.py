"""Measure what ONNX Runtime does with memory, and write reports/ort_facts.md.

    python -m reports.ort_facts [--graphs FOLDER] [--output FILE]

Every number in the report is measured by this program on the installed onnxruntime. FOLDER holds
models with their `.inputs.json` beside them (default: models/zoo).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from planner.errors import ModelError
from planner.graph import rules
from planner.graph.liveness import timeline
from planner.graph.model import OpId, TrainingGraph
from planner.graph.schedule import default_order, file_order
from planner.onnxio.load import load_model
from planner.pipeline.prepare.graphs import analysed_graph
from planner.runtime.feeds.inputs import make_inputs
from planner.runtime.memory.arena import (
    SETTINGS,
    fits,
    forecast,
    least_cap,
    reserved_bytes,
    simulate,
)
from planner.runtime.optimizers.normalize import normalize
from planner.runtime.options import Opening, session_options, use_registered_arena
from planner.runtime.profile import NodeEvent, create_session, profile, read_profile, run_session
from planner.units import format_bytes
from reports.least_arena import least_arenas
from reports.ort_cases import cases, floats
from reports.ort_probe import Case, Measured, measure
from tests.runtime.support import random_model

HERE = Path(__file__).resolve().parent
THREADS = 2
RANDOM_GRAPHS = 100
FLOATS = 256_000  # elements of the tensors below: 1,024,000 bytes, not a power of two


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A graph as ONNX Runtime leaves it, saved at `path`; `source` is the file it came from."""

    name: str
    source: Path
    path: Path
    graph: TrainingGraph


def main() -> None:
    """Measure everything and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=Path, default=HERE.parent / "models" / "zoo")
    parser.add_argument("--output", type=Path, default=HERE / "ort_facts.md")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="planner-") as folder:
        subjects = list(_subjects(arguments.graphs, Path(folder)))
        lines = [
            "# What ONNX Runtime does with memory",
            "",
            f"Written by `python -m reports.ort_facts` on onnxruntime {ort.__version__}, CPU "
            f"execution provider, {THREADS} threads; graphs: "
            f"{', '.join(s.name for s in subjects)}.",
            "",
            *_events(Path(folder)),
            *_knobs(subjects),
            *_orders(subjects),
            *_forecasts(subjects),
            *_random_forecasts(Path(folder)),
            *_caps(subjects),
            *_operators(),
            *_batch_norm(Path(folder)),
        ]
    arguments.output.write_text("\n".join(lines) + "\n")


def _subjects(folder: Path, scratch: Path) -> Iterator[Subject]:
    for source in sorted(folder.glob("*.onnx")):
        if not source.with_suffix(".inputs.json").is_file():
            continue
        try:
            model = normalize(load_model(source))
            path = scratch / source.name
            ir.save(model, path)
            graph = analysed_graph(load_model(path).model, {})
        except ModelError as error:  # a training operator, a symbolic dim, an unknown shape
            print(f"{source.name} left out: {error}")
            continue
        yield Subject(name=source.stem, source=source, path=path, graph=graph)


def _table(header: tuple[str, ...], rows: list[tuple[object, ...]]) -> list[str]:
    lines = [" | ".join(header), " | ".join("---" for _ in header)]
    lines += [" | ".join(str(cell) for cell in row) for row in rows]
    return [f"| {line} |" for line in lines] + [""]


def _events(folder: Path) -> list[str]:
    """A chain with an initializer, a kept output and a workspace, event by event."""
    path = folder / "chain.onnx"
    x = ir.Value(name="x", shape=ir.Shape([FLOATS]), type=ir.TensorType(ir.DataType.FLOAT))
    w = ir.Value(name="w", const_value=ir.tensor(np.ones(FLOATS, np.float32), name="w"))
    first = ir.node("Add", [x, w], name="Add x+w")
    second = ir.node("Neg", [first.outputs[0]], name="Neg, a graph output")
    condition = ir.node("Greater", [second.outputs[0], x], name="Greater")
    third = ir.node(
        "Where", [condition.outputs[0], second.outputs[0], x], name="Where, the last reader"
    )
    fourth = ir.node("Exp", [third.outputs[0]], name="Exp, a graph output")
    outputs = [second.outputs[0], fourth.outputs[0]]
    for index, value in enumerate(outputs):
        value.name, value.shape, value.type = f"y{index}", x.shape, x.type
    nodes = [first, second, condition, third, fourth]
    graph = ir.Graph([x], outputs, nodes=nodes, initializers=[w], opset_imports={"": 20})
    ir.save(ir.Model(graph, ir_version=10), path)
    feed = {"x": np.ones(FLOATS, np.float32)}
    (run,) = profile(path, feed, Opening(memory="recommended", level="disabled", threads=1))
    rows = [
        (
            event.name,
            event.requested_in_use,
            event.requested_delta,
            event.in_use,
            event.in_use_peak,
            event.held,
        )
        for event in run
    ]
    header = ("node", "requested in use", "delta", "in use", "in use, peak", "held")
    return [
        "## What a node's memory fields mean",
        "",
        f"Every float tensor is {4 * FLOATS} bytes (a bool one a quarter), the feed `x` and the "
        "initializer `w` too; memory pattern and reuse off.",
        "",
        *_table(header, rows),
        "- `x` and `w` are never in it: feeds and initializers above 127 bytes are outside the "
        "arena.",
        "- An input that dies at a node still counts at that node, and no longer at the next: the "
        "fields are read before dead inputs are released.",
        "- `Where` takes two temporary tensors; they show in the peak only, which is the largest "
        "since the session began.",
        "- Graph outputs count until the caller drops them.",
        "",
    ]


def _knobs(subjects: list[Subject]) -> list[str]:
    """Bytes under each combination of the three options that matter."""
    rows: list[tuple[object, ...]] = []
    for subject in subjects:
        inputs, _ = make_inputs(subject.source)
        cells: list[str] = []
        for exact in (False, True):
            for pattern, reuse in ((True, True), (True, False), (False, True), (False, False)):
                in_use, held = _run_with(subject.path, inputs, exact, pattern, reuse)
                cells.append(f"{in_use / 2**20:.2f} / {held / 2**20:.2f}")
        line = timeline(subject.graph, default_order(subject.graph))
        live = line.peak_bytes - line.persistent_bytes
        rows.append((subject.name, f"{live / 2**20:.2f}", *cells))
    kinds = ("pattern, reuse", "pattern", "reuse", "neither")
    header = (
        "graph",
        "live",
        *(f"doubling: {kind}" for kind in kinds),
        *(f"as requested: {kind}" for kind in kinds),
    )
    return [
        "## Which options matter",
        "",
        "Peak in use / held, MiB, over two runs (workspace included, inputs not), against the "
        "predicted live peak. `doubling` is the session's own arena, `as requested` one registered "
        "with kSameAsRequested.",
        "",
        *_table(header, rows),
    ]


def _run_with(
    path: Path, inputs: dict[str, np.ndarray], exact: bool, pattern: bool, reuse: bool
) -> tuple[int, int]:
    with tempfile.TemporaryDirectory(prefix="planner-") as folder:
        options = session_options(
            level="extended", profile_prefix=Path(folder) / "p", threads=THREADS
        )
        options.enable_mem_pattern = pattern
        options.enable_mem_reuse = reuse
        if exact:
            use_registered_arena(options, {"arena_extend_strategy": 1})
        session = create_session(path, options)
        for _ in range(2):
            run_session(session, inputs)
        runs = read_profile(Path(session.end_profiling()))
    events: list[NodeEvent] = [event for run in runs for event in run]
    return max(e.in_use_peak or 0 for e in events), max(e.held or 0 for e in events)


def _orders(subjects: list[Subject]) -> list[str]:
    """The original file against the optimized file, reloaded."""
    rows: list[tuple[object, ...]] = []
    for subject in subjects:
        inputs, _ = make_inputs(subject.source)
        graph = subject.graph
        names = {
            "default": [graph.operations[op].name for op in default_order(graph)],
            "file": [graph.operations[op].name for op in file_order(graph)],
        }

        def peak(order: tuple[OpId, ...], graph: TrainingGraph = graph) -> str:
            return format_bytes(timeline(graph, order).peak_bytes)

        original = [e.name for e in profile(subject.source, inputs, Opening(level="extended"))[0]]
        optimized = [e.name for e in profile(subject.path, inputs, Opening(level="extended"))[0]]
        rows.append(
            (
                subject.name,
                len(optimized),
                _yes(original == names["file"]),
                _yes(optimized == names["default"]),
                peak(file_order(graph)),
                peak(default_order(graph)),
            )
        )
    header = (
        "graph",
        "nodes",
        "the original runs in the optimized file's order",
        "the optimized file runs in its predicted default order",
        "live peak, original",
        "live peak, optimized file",
    )
    return [
        "## The optimized file does not run in the original's order",
        "",
        "ONNX Runtime writes an optimized model in the order in which it would have run it. "
        "Loaded again, that file has new node indices, and its default order is another one. The "
        "baseline of the *original* model is therefore the optimized file's own (file) order.",
        "",
        *_table(header, rows),
    ]


def _forecasts(subjects: list[Subject]) -> list[str]:
    rows: list[tuple[object, ...]] = []
    exact_nodes = nodes = 0
    exact_peaks = peaks = 0
    for subject in subjects:
        inputs, _ = make_inputs(subject.source)
        order = default_order(subject.graph)
        for options in ("default", "recommended"):
            opening = Opening(memory=options, level="extended", threads=THREADS)  # type: ignore[arg-type]
            runs = profile(subject.path, inputs, opening, runs=2)
            predicted = simulate(subject.graph, order, SETTINGS[options], threads=THREADS)
            base = (runs[0][0].requested_in_use or 0) - (runs[0][0].requested_delta or 0)
            same = {"requested": 0, "in_use": 0, "held": 0}
            for run, trace in zip(runs, predicted, strict=True):
                for index, event in enumerate(run):
                    same["requested"] += event.requested_in_use == trace.requested[index] + base
                    same["in_use"] += event.in_use == trace.in_use[index] + base
                    same["held"] += event.held == trace.held[index] + base
            total = 2 * len(order)
            figures = forecast(subject.graph, order, options, threads=THREADS)
            in_use = max(e.in_use_peak or 0 for run in runs for e in run) - base
            held = max(e.held or 0 for run in runs for e in run) - base
            exact_nodes += sum(same.values())
            nodes += 3 * total
            exact_peaks += (in_use == figures.in_use_bytes) + (held == figures.held_bytes)
            peaks += 2
            rows.append(
                (
                    subject.name,
                    options,
                    *(f"{100 * same[k] / total:.1f}%" for k in ("requested", "in_use", "held")),
                    f"{figures.in_use_bytes} / {in_use}",
                    f"{figures.held_bytes} / {held}",
                )
            )
    header = (
        "graph",
        "options",
        "nodes exact: requested",
        "in use",
        "held",
        "peak in use, predicted / measured",
        "peak held, predicted / measured",
    )
    return [
        "## Forecast of the arena against the arena",
        "",
        f"{exact_nodes} of {nodes} figures per node exact "
        f"({100 * exact_nodes / max(1, nodes):.2f}%), {exact_peaks} of {peaks} peaks exact. What "
        "remains: two free chunks of one size in different regions are told apart by their "
        "addresses, which cannot be predicted.",
        "",
        *_table(header, rows),
    ]


def _random_forecasts(folder: Path) -> list[str]:
    rows: list[tuple[object, ...]] = []
    path = folder / "random.onnx"
    found = {options: dict.fromkeys(("requested", "in_use", "held"), 0) for options in SETTINGS}
    for seed in range(RANDOM_GRAPHS):
        ir.save(random_model(seed, 5 + seed % 40), path)
        graph = analysed_graph(load_model(path).model, {})
        inputs, _ = make_inputs(path, seed)
        base = reserved_bytes(graph)
        for options, settings in SETTINGS.items():
            opening = Opening(memory=options, level="disabled", threads=1)  # type: ignore[arg-type]
            runs = profile(path, inputs, opening, runs=2)
            traces = simulate(graph, default_order(graph), settings, threads=1)
            for figure, count in found[options].items():
                field = "requested_in_use" if figure == "requested" else figure
                exact = all(
                    [getattr(e, field) - base for e in run] == list(getattr(trace, figure))
                    for run, trace in zip(runs, traces, strict=True)
                )
                found[options][figure] = count + exact
    for options, counts in found.items():
        rows.append((options, *(f"{n} of {RANDOM_GRAPHS}" for n in counts.values())))
    return [
        f"{RANDOM_GRAPHS} random graphs of 5 to 44 operators (views, in-place and elementwise "
        "operators, concatenations, Where); exact at every node of two runs:",
        "",
        *_table(("options", "requested", "in use", "held"), rows),
    ]


def _batch_norm(folder: Path) -> list[str]:
    """Does a training-mode BatchNormalization change its mean input?"""
    path, rows = folder / "norm.onnx", list[tuple[object, ...]]()
    names = ("x", "scale", "bias", "mean", "variance")
    shapes = ([2, 4, 3, 3], [4], [4], [4], [4])
    for kept in (True, False):
        inputs = [
            ir.Value(name=n, shape=ir.Shape(s), type=ir.TensorType(ir.DataType.FLOAT))
            for n, s in zip(names, shapes, strict=True)
        ]
        node = ir.node("BatchNormalization", inputs, {"training_mode": 1}, num_outputs=3)
        for index, value in enumerate(node.outputs):
            value.name, value.type = f"y{index}", inputs[0].type
            value.shape = ir.Shape(shapes[0] if index == 0 else shapes[1])
        outputs = list(node.outputs) if kept else [node.outputs[0]]
        graph = ir.Graph(inputs, outputs, nodes=[node], opset_imports={"": 15}, name="norm")
        ir.save(ir.Model(graph, ir_version=10), path)
        feeds = {n: floats(*s) for n, s in zip(names, shapes, strict=True)}
        before = feeds["mean"].copy()
        run_session(create_session(path, session_options(level="disabled")), feeds)
        changed = not np.array_equal(before, feeds["mean"])
        rows.append((_yes(kept), _yes(changed)))
    return [
        "## A kernel that writes over its inputs",
        "",
        "Training-mode BatchNormalization writes the running statistics into its mean and variance "
        "inputs (the caller's own arrays, where these are feeds) unless they are graph outputs. A "
        "recomputed copy, whose running statistics nobody reads, would update them a second time.",
        "",
        *_table(("running statistics are graph outputs", "the fed mean is changed"), rows),
    ]


def _caps(subjects: list[Subject]) -> list[str]:
    rows: list[tuple[object, ...]] = []
    for subject in subjects:
        inputs, _ = make_inputs(subject.source)
        graph, order = subject.graph, default_order(subject.graph)
        line = timeline(graph, order)
        live = line.peak_bytes - line.persistent_bytes + reserved_bytes(graph)
        need = least_cap(graph, order, threads=1)
        regions = forecast(graph, order, "recommended", threads=1).held_bytes
        most_bytes = need + 65536
        (least,) = least_arenas([(subject.path, inputs)], most_bytes=most_bytes)
        results = [cap >= least for cap in (need - 512, need, most_bytes)]
        rows.append(
            (
                subject.name,
                live,
                need,
                f"{100 * (need / live - 1):.1f}%",
                regions + reserved_bytes(graph),
                _yes(fits(graph, order, live)),
                *(_yes(r) for r in results),
            )
        )
    header = (
        "graph",
        "live bytes",
        "least cap in one region, predicted",
        "over live",
        "held as requested",
        "fits at live bytes",
        "runs at 512 B less",
        "runs at it",
        "runs at 64 KiB more",
    )
    return [
        "## A hard cap",
        "",
        "An arena of one region of exactly the cap (doubling growth, first region = cap, "
        "`max_dead_bytes_per_chunk` 1). `initial_chunk_size_bytes` has no effect with "
        "kSameAsRequested, whose regions never merge and which therefore needs more. Neither makes "
        "'fits' mean 'fits': best fit without compaction fragments. The least cap is predicted.",
        "",
        *_table(header, rows),
    ]


def _operators() -> list[str]:
    rows: list[tuple[object, ...]] = []
    disagreements: list[str] = []
    for note, case in cases():
        name = f"{case.domain}.{case.op_type}" if case.domain else case.op_type
        try:
            found = measure(case)
        except (ModelError, LookupError) as error:
            reason = "runs as other operators" if isinstance(error, LookupError) else "no kernel"
            rows.append((name, note, reason, "", "", ""))
            continue
        agree = _agrees(case, found)
        if not agree:
            disagreements.append(f"{name} {note}".strip())
        rows.append(
            (name, note, _kind(found), found.workspace_bytes, _yes(agree), found.output_bytes)
        )
    header = ("operator", "case", "output", "workspace, bytes", "as in rules.py", "output bytes")
    return [
        "## Operators",
        "",
        "`view`: the output is the input's buffer. `in place`: it is written over the input when "
        "that has no later reader. `fresh`: a buffer of its own although an input of its shape "
        "died. `new`: no input has the output's shape. (input, output) indices in brackets.",
        "",
        f"Disagreements with `planner/graph/rules.py`: {', '.join(disagreements) or 'none'}.",
        "",
        *_table(header, rows),
    ]


def _kind(found: Measured) -> str:
    parts = [f"view {pair}" for pair in found.views]
    parts += [f"in place {pair}" for pair in found.inplace]
    if parts:
        return ", ".join(parts)
    return "fresh" if found.not_inplace else "new"


def _agrees(case: Case, found: Measured) -> bool:
    view = rules.view_input(case.op_type, case.domain)
    pairs = set(rules.inplace_pairs(case.op_type, case.domain, "float"))
    views = {(view, 0)} if view is not None else set()
    possible = {*found.views, *found.inplace, *found.not_inplace}
    return set(found.views) == views & possible and set(found.inplace) == pairs & possible


def _yes(value: bool) -> str:
    return "yes" if value else "no"


if __name__ == "__main__":
    main()
