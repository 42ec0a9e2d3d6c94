"""Predicted step times beside measured ones, of plans made with measured operation times and a roofline.

    python -m reports.predictions                         the samples of models/zoo
    python -m reports.predictions DIR/a.onnx ...          these as well (NAME.inputs.json beside each)
    python -m reports.predictions --page-only             the page alone, from what was measured

Each row is one budget, planned twice: with operation times measured by a short run (the default), and
with the roofline of the cpu profile (`--no-calibrate`). The original and both rewritten models then run
in turns in one process until each has run `--seconds` seconds. Writes `predictions.json` and
`predictions.md` in this folder, a row at a time; rows that are there are measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnxruntime as ort

from planner import optimize
from planner.cost.measured import processor
from planner.errors import PlannerError
from planner.results import OptimizeResult
from planner.runtime.feeds.inputs import make_inputs
from planner.runtime.op_times import op_times
from planner.runtime.options import Opening, default_threads
from planner.runtime.profile import run_session
from planner.runtime.timing import timed_session
from reports.verified import ZOO, at_or_above_least

FOLDER = Path(__file__).parent
KINDS = ("measured", "roofline")
_MIN_ROUNDS, _MAX_ROUNDS = 4, 60
Feeds = Mapping[str, npt.NDArray[Any]]


def row(model: Path, percent: int, swap: str, limits: argparse.Namespace) -> dict[str, Any]:
    """One budget: two plans, and how long three models take."""
    found: dict[str, Any] = {"model": model.stem, "asked": f"{percent}%", "swap": swap}
    with tempfile.TemporaryDirectory() as folder:
        plans: dict[str, OptimizeResult] = {}
        for kind in KINDS:

            def attempt(budget: str, kind: str = kind) -> OptimizeResult:
                return optimize(
                    model,
                    budget=budget,
                    output=Path(folder) / f"{kind}.onnx",
                    swap=swap,  # type: ignore[arg-type]
                    calibrate=kind == "measured",
                    time_limit_s=limits.time_limit,
                    verify=False,
                    force=True,
                )

            try:
                plans[kind] = at_or_above_least(attempt, percent, {})
            except PlannerError as error:
                return {**found, "error": f"{kind}: {error}"}
        feeds, _ = make_inputs(model)
        paths = [model, *(Path(folder) / f"{kind}.onnx" for kind in KINDS)]
        times = in_turns(paths, feeds, limits.seconds)
        kernels = [_kernel_us(path, feeds, plans["measured"]) for path in paths[:2]]
    least = [min(t) for t in times]
    found["rounds"], found["step_us"] = len(times[0]), least[0]
    for index, kind in enumerate(KINDS, start=1):
        plan = plans[kind].plan
        ratios = [after / before for before, after in zip(times[0], times[index], strict=True)]
        found[kind] = {
            "peak_bytes": plan.planned.peak_bytes,
            "budget_bytes": plan.budget_bytes,
            "cost_source": plan.cost_source,
            "predicted": plan.planned.step_us / plan.baseline.time_us,
            "predicted_step_us": plan.baseline.time_us,
            "pins": plan.planned.pins_us / plan.baseline.time_us,
            "caches": plan.planned.cache_us / plan.baseline.time_us,
            "ratio": least[index] / least[0],
            "quartiles": statistics.quantiles(ratios, n=4)[::2],
        }
    same = kernels[0].keys() & kernels[1].keys()
    before, after = (sum(k[name] for name in same) for k in kernels)
    found["same_operations"] = after / before
    return found


def in_turns(paths: Sequence[Path], feeds: Feeds, seconds: float) -> list[list[float]]:
    """Microseconds of each run of each model, warm, in turns, until each has run so many seconds."""
    sessions = [timed_session(path, Opening(threads=default_threads())) for path in paths]
    times: list[list[float]] = [[] for _ in paths]
    for index in range(_MAX_ROUNDS + 1):
        if index > _MIN_ROUNDS and sum(times[0]) >= seconds * 1e6:
            break
        order = range(len(paths)) if index % 2 else range(len(paths) - 1, -1, -1)
        for which in order:
            start = time.perf_counter()
            results = run_session(sessions[which], feeds)
            elapsed_us = (time.perf_counter() - start) * 1e6
            del results
            if index:
                times[which].append(elapsed_us)
    return times


def _kernel_us(path: Path, feeds: Feeds, result: OptimizeResult) -> Mapping[str, float]:
    opening = Opening(threads=default_threads())
    return op_times(path, feeds, opening, nodes=len(result.before.graph.operations)).kernel_us


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The page."""
    done = [r for r in rows if "error" not in r]
    off = [r["measured"]["predicted"] / r["measured"]["ratio"] - 1 for r in done]
    roof = [r["roofline"]["predicted"] / r["roofline"]["ratio"] - 1 for r in done]
    slower = [r["measured"]["ratio"] / r["roofline"]["ratio"] - 1 for r in done]
    lines = [
        "# Predicted step times, and measured ones",
        "",
        f"onnxruntime {ort.__version__}, {processor()}, {os.cpu_count()} cores; written by "
        "`python -m reports.predictions`.",
        "",
        "Ratios of step times, rewritten over original: the least of runs in turns, once all models are "
        "warm, and in brackets the quartiles of the rounds' ratios. *predicted* is of the plan made with "
        "operation times measured by one short run, the default; *roofline* is of the plan made with "
        "predicted times (`--no-calibrate`). *off*: predicted over measured. *same operations*: kernel "
        "time of the original's operations in the rewritten model over that in the original; below 1 "
        "where a smaller working set stays in the caches. *caches*: how much of that, and of what runs "
        "again, is in the prediction.",
        "",
        f"- measured times: {_within(off, 0.1)} of {len(done)} predictions within 10%, "
        f"{_within(off, 0.05)} within 5%; median of the distance {_median(off):.1%}",
        f"- roofline: {_within(roof, 0.1)} within 10%; median of the distance {_median(roof):.1%}",
        f"- the plan of measured times is more than 3% slower than the roofline's in "
        f"{sum(s > 0.03 for s in slower)} rows, more than 3% faster in {sum(s < -0.03 for s in slower)}; "
        f"where the quartiles of the rounds do not overlap it is slower in {sum(map(_is_slower, done))} "
        f"rows, faster in {sum(map(_is_faster, done))}",
        "",
        "| model | budget | swaps | step ms | predicted | caches | measured | off | same operations | "
        "roofline: predicted | measured | off | measured plan / roofline's |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    return "\n".join([*lines, *map(_line, rows)]) + "\n"


def _is_slower(row: Mapping[str, Any]) -> bool:
    """Whether the plan of measured times is slower, and the quartiles do not overlap."""
    return bool(row["measured"]["quartiles"][0] > row["roofline"]["quartiles"][1])


def _is_faster(row: Mapping[str, Any]) -> bool:
    return bool(row["measured"]["quartiles"][1] < row["roofline"]["quartiles"][0])


def _within(off: Sequence[float], share: float) -> int:
    return sum(abs(value) <= share for value in off)


def _median(off: Sequence[float]) -> float:
    return statistics.median(map(abs, off)) if off else 0.0


def _line(row: Mapping[str, Any]) -> str:
    begins = f"| {row['model']} | {row['asked']} | {row['swap']} |"
    if "error" in row:
        return f"{begins} {row['error']} |"
    mine, roof = row["measured"], row["roofline"]
    predicted, *compared = _compared(mine)
    cells = [f"{row['step_us'] / 1e3:.1f}", predicted, f"{mine['caches']:+.3f}", *compared]
    cells += [f"{row['same_operations']:.3f}", *_compared(roof)]
    return f"{begins} {' | '.join(cells)} | {mine['ratio'] / roof['ratio']:.3f} |"


def _compared(found: Mapping[str, Any]) -> list[str]:
    low, high = found["quartiles"]
    return [
        f"{found['predicted']:.3f}",
        f"{found['ratio']:.3f} ({low:.2f}–{high:.2f})",
        f"{found['predicted'] / found['ratio'] - 1:+.1%}",
    ]


def main() -> None:
    """Measure; write after each row, so that an interrupt keeps what is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--no-zoo", action="store_true")
    parser.add_argument("--percents", type=int, nargs="+", default=[80, 60, 40])
    parser.add_argument("--swaps", nargs="+", default=["none", "auto"])
    parser.add_argument("--time-limit", type=float, default=20.0, help="of each search, seconds")
    parser.add_argument("--seconds", type=float, default=2.0, help="that each model runs for")
    parser.add_argument("--page-only", action="store_true")
    options = parser.parse_args()
    path = FOLDER / "predictions.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    models = [] if options.no_zoo else [ZOO / f"{n}.onnx" for n in ("mlp_adamw", "resnet18", "gpt")]
    jobs = [
        (model, percent, swap)
        for model in (*models, *options.models)
        for percent in options.percents
        for swap in options.swaps
    ]
    for model, percent, swap in () if options.page_only else jobs:
        found = row(model, percent, swap, options)
        same = (model.stem, f"{percent}%", swap)
        rows = [r for r in rows if (r["model"], r["asked"], r["swap"]) != same] + [found]
        path.write_text(json.dumps(rows, indent=1) + "\n")
        print(_line(found), flush=True)
    (FOLDER / "predictions.md").write_text(markdown(rows))


if __name__ == "__main__":
    main()
