"""What sessions with default options hold of a planned file, and what in the file moves it.

    python -m reports.held [--graphs FOLDER] [ROW ...]

Each row is a sample of `models/zoo` (or a file of FOLDER) at a budget, without copies: `gpt:60%`. Each
variant of it runs in fresh processes (`reports.held.worker`). Rows go to `reports/held.json` as they are
measured, and `reports/held.md` is written from them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from planner import apply, optimize
from planner.graph.schedule import default_order
from planner.onnxio.load import load_model
from planner.pipeline.prepare.graphs import analysed_graph
from planner.runtime.feeds.inputs import make_inputs
from planner.runtime.memory.arena import DEFAULT, simulate
from planner.runtime.memory.bfc import ROUNDING
from reports.held.page import write_page
from reports.held.ways import opened, veiled

HERE = Path(__file__).resolve().parents[1]
ROWS = ("gpt:60%", "gpt:40%", "resnet18:60%", "resnet18:54%", "mlp_adamw:73%")
LARGE = ("bert_base:80%", "gpt2_small:60%")
THREADS = 2

Measured = dict[str, Any]


def measured(model: Path, inputs: Path, *words: str) -> Measured:
    """What two fresh processes say of a model: one without the profiler, one with it."""
    found: Measured = {}
    for more in ((), ("profiled",)):
        command = [sys.executable, "-m", "reports.held.worker", str(model), str(inputs)]
        done = subprocess.run([*command, *more, *words], capture_output=True, text=True, check=True)
        found.update(json.loads(done.stdout))
    return found


def opening_sizes(model: Path) -> tuple[int, int]:
    """Buffers to open the arena with: a region for the outputs, and one for the pattern's block.

    Regions are powers of two, and a buffer of half of one and a little more opens it.
    """
    graph = analysed_graph(load_model(model).model, {})
    runs = simulate(graph, default_order(graph), DEFAULT, threads=THREADS)
    outputs = sum(t.bytes for t in graph.tensors if t.is_output)
    block = runs[1].in_use[0]
    halves = [1 << ((size - 1).bit_length() - 1) for size in (outputs, block)]
    return halves[0] + ROUNDING, halves[1] + ROUNDING


def variants(
    source: Path, planned: Path, lean: Path, folder: Path
) -> Iterator[tuple[str, Path, str]]:
    """Name, file and session options of each variant."""
    graph = analysed_graph(load_model(planned).model, {})
    sizes = opening_sizes(planned)
    yield "original", source, ""
    yield "rewritten", planned, ""
    yield "rewritten, pattern off (session option)", planned, "nopattern"
    yield "rewritten, pattern and reuse off (session options)", planned, "nopattern noreuse"
    yield "--no-pattern", lean, ""
    proto = onnx.load(planned)
    for name, made in (
        (f"opening allocation, {sizes[1] / 2**20:.1f} MiB", opened(proto, sizes)),
        ("veiled shapes", veiled(proto, graph)[0]),
        ("veiled shapes and --no-pattern", veiled(onnx.load(lean), graph)[0]),
        ("veiled shapes and opening", opened(veiled(proto, graph)[0], sizes)),
    ):
        path = folder / f"variant_{abs(hash(name))}.onnx"
        onnx.save(made, path)
        yield name, path, ""


def row(text: str, graphs: Path | None) -> Measured:
    """Plan one model at one budget, and measure each variant of it."""
    name, budget = text.split(":")
    source = HERE.parent / "models" / "zoo" / f"{name}.onnx"
    if not source.exists() and graphs is not None:
        source = graphs / f"{name}.onnx"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        planned, lean = folder / "planned.onnx", folder / "lean.onnx"
        plan_path = folder / "plan.json"
        result = optimize(
            source,
            budget=budget,
            swap="none",
            output=planned,
            plan_path=plan_path,
            verify=False,
            time_limit_s=20,
        )
        text = plan_path.read_text()  # the same plan, with one lever more
        plan_path.write_text(json.dumps({**json.loads(text), "pattern": False}))
        apply(source, plan_path, output=lean)
        inputs = folder / "inputs.npz"
        np.savez(inputs, allow_pickle=False, **make_inputs(source)[0])  # pyright: ignore[reportArgumentType]
        found = [
            {"variant": what, **measured(path, inputs, *options.split())}
            for what, path, options in variants(source, planned, lean, folder)
        ]
    plan = result.plan
    return {"model": name, "budget": budget, "budget_bytes": plan.budget_bytes, "variants": found}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is asked for, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("rows", nargs="*", metavar="ROW")
    parser.add_argument("--graphs", type=Path, metavar="FOLDER")
    asked = parser.parse_args(arguments)
    path = HERE / "held.json"
    known = (
        {f"{r['model']}:{r['budget']}": r for r in json.loads(path.read_text())}
        if path.exists()
        else {}
    )
    for text in asked.rows or (*ROWS, *(LARGE if asked.graphs else ())):
        known[text] = row(text, asked.graphs)
        path.write_text(json.dumps(list(known.values()), indent=1) + "\n")
        print(text, "measured", flush=True)
    write_page(list(known.values()), HERE / "held.md")


if __name__ == "__main__":
    main()
