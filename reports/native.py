"""Memory to the byte: `python -m reports.native [MODEL.onnx[:PERCENT]...]`.

    python -m reports.native                              the samples at 60 and 40% of their peak
    python -m reports.native graph.onnx:60                another training graph, at 60%

Each is planned for the CPU, recompute only, with a budget of live bytes (the least that has a plan,
where that one has none). The rewritten file then runs by `planner.open_session(file, pool=SIZE)`,
four steps in a process of its own for each size: in the pool that is predicted, in one a page
smaller, and, where these do not tell it, in others until the least pool that runs is known. Beside
it: the least arena of ONNX Runtime's that the plan has room in, by its replay, and how far the
process grows by each way to open the file. Rows go to `reports/native.json`, the page to
`reports/native.md`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from planner.errors import InfeasibleBudgetError
from planner.graph.schedule import OpId
from planner.runtime.memory.arena import least_cap
from planner.runtime.memory.paged import PAGE_BYTES, pool_bytes
from planner.runtime.options import most_threads
from planner.units import format_bytes

FOLDER = Path(__file__).parent
RESULT, PAGE = FOLDER / "native.json", FOLDER / "native.md"
ZOO = FOLDER.parent / "models" / "zoo"
STEPS = 4
_ABOVE = 1.03
"""Times the least budget that has a plan: it was found by a search, and the next one may find less."""

Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="reports.native", description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="for the rows and the page")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds for each plan")
    options = parser.parse_args(arguments)
    asked = options.models or [
        f"{p}:{share}" for p in sorted(ZOO.glob("*.onnx")) for share in (60, 40)
    ]
    result = options.folder / RESULT.name
    rows: dict[str, Row] = json.loads(result.read_text()) if result.exists() else {}
    for text in asked:
        name, _, share = text.rpartition(":")
        key = f"{Path(name).stem}, {share}%"
        rows[key] = measured(Path(name), int(share), options.time_limit)
        print(key, json.dumps(rows[key]), flush=True)
        result.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        (options.folder / PAGE.name).write_text(page(rows), encoding="utf-8")
    return 0


def measured(model: Path, percent: int, time_limit_s: float) -> Row:
    """The row of one model at a share of its peak."""
    import planner

    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "planned.onnx"

        def within(budget: str) -> planner.OptimizeResult:
            return planner.optimize(
                model,
                budget=budget,
                swap="none",
                output=output,
                time_limit_s=time_limit_s,
                verify=False,
            )

        try:
            done = within(f"{percent}%")
        except InfeasibleBudgetError as error:
            done = within(f"{int(_ABOVE * (error.least_peak_bytes or 0))}B")
        graph, order = done.after.graph, tuple(OpId(op) for op in done.after.timeline.order)
        predicted = pool_bytes(graph, order, threads=most_threads())
        least, found = _least(model, output, predicted)
        ways = {way: _run(model, output, way) for way in ("default", "file")}
        return {
            "budget_bytes": done.plan.budget_bytes,
            "peak_bytes": done.plan.planned.peak_bytes,
            "predicted_bytes": predicted,
            "least_bytes": least,
            "asked_bytes": found["asked_most_bytes"],
            "mappings": found["mappings"],
            "outputs": found["outputs"],
            "identical": found["identical"],
            "arena_bytes": least_cap(graph, order, threads=most_threads()),
            "grown_bytes": {"pool": found["grown_bytes"]}
            | {way: done["grown_bytes"] for way, done in ways.items()},
        }


def _least(model: Path, output: Path, predicted: int) -> tuple[int, Row]:
    """The least pool that runs, in whole pages, and what a run in it shows."""
    low, high = predicted - PAGE_BYTES, predicted
    step = PAGE_BYTES
    found = _run(model, output, f"{high}B")
    while not found:
        low, high = high, high + step
        step *= 2
        found = _run(model, output, f"{high}B")
    while less := _run(model, output, f"{low}B"):
        low, high, found = low - step, low, less
        step *= 2
    while high - low > PAGE_BYTES:
        middle = (low + high) // 2 // PAGE_BYTES * PAGE_BYTES
        if less := _run(model, output, f"{middle}B"):
            high, found = middle, less
        else:
            low = middle
    return high, found


def _run(model: Path, output: Path, way: str) -> Row:
    """What four steps in a process of its own show; nothing where the pool has no room for them."""
    command = [sys.executable, "-m", "reports.native_run", str(model), str(output), way, str(STEPS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 3:
        return {}
    if done.returncode:
        raise SystemExit(f"{output.name} in a pool of {way}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


_HEAD = """# Memory to the byte

Written by `python -m reports.native`: plans for the CPU, recompute only, for a share of the peak; four
steps each by `planner.open_session(file, pool=SIZE)` in a process of its own.

- *asked*: the most bytes that ONNX Runtime asked the pool for at once: results, what lies between, and
  kernels' workspace. Inputs and large initializers lie beside it, as they do beside ONNX Runtime's arena.
- *pool*: the least one in which the four steps run, in pages of 4 KiB, and how much that is over *asked*.
  *predicted*: what planner says of it beforehand.
- *arena*: the least one of ONNX Runtime's in one region that has room for the plan, by its replay, over
  *asked*.
- *identical*: outputs of the fourth step that are the bits of the original in a plain session.
- *growth*: resident memory of the process from before the session on, at the most: in the least pool, by
  `planner.open_session(file)` in the pool that the file asks for, and by
  `onnxruntime.InferenceSession(file)` with default options.

"""

_COLUMNS = ("plan", "live peak", "asked", "pool", "over asked", "predicted", "arena", "identical")
_GROWTH = {"pool": "growth: pool", "file": "open_session", "default": "default options"}


def page(rows: dict[str, Row]) -> str:
    """The page."""
    columns = (*_COLUMNS, *_GROWTH.values())
    lines = [_line(name, row) for name, row in rows.items()]
    return "\n".join(
        (f"{_HEAD}| {' | '.join(columns)} |", f"|---{'|---:' * (len(columns) - 1)}|", *lines, "")
    )


def _line(name: str, row: Row) -> str:
    asked, least = row["asked_bytes"], row["least_bytes"]
    off = row["predicted_bytes"] - least
    grown = row["grown_bytes"]
    cells = (
        name,
        format_bytes(row["peak_bytes"]),
        format_bytes(asked),
        format_bytes(least),
        f"{least / asked - 1:+.2%}",
        "the same" if not off else f"{off:+,} B",
        f"{row['arena_bytes'] / asked - 1:+.1%}",
        f"{row['identical']} of {row['outputs']}",
        *(format_bytes(grown[way]) for way in _GROWTH),
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
