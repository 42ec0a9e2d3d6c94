"""What micro-batches are worth, and whether the runs of a step give what one run gives.

    python -m reports.micro                  every network
    python -m reports.micro mlp gpt          these

For each network and budget, the number of runs that `--micro-batch auto` chooses, the plan for them, and
the same budget in one run; then each number of runs at no budget but the model's own peak. Every plan is
verified in full: the rewritten model bit by bit against the model of one run, the runs of a step against
one run of the original on the whole batch. Rows go to `micro.json` beside this file, each as it is
measured, and `micro.md` is written from them.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnxruntime as ort

from planner import optimize
from planner.errors import InfeasibleBudgetError, ModelError
from planner.results import OptimizeResult

FOLDER = Path(__file__).parent
RESULT = FOLDER / "micro.json"
PAGE = FOLDER / "micro.md"
MIB = 2**20

NETWORKS: Mapping[str, str] = {
    "mlp": "mlp --width 256 --layers 6 --batch 1024",
    "mlp_adamw": "mlp --width 256 --layers 6 --batch 4096 --optimizer adamw",
    "gpt": "gpt2 --seq 64 --width 64 --layers 4 --heads 4 --vocabulary 256 --batch 32",
    "gpt_adamw": "gpt2 --seq 64 --width 64 --layers 4 --heads 4 --vocabulary 256 --batch 32 "
    "--optimizer adamw",
    "gpt_dropout": "gpt2 --seq 64 --width 64 --layers 2 --heads 4 --vocabulary 256 --batch 16 "
    "--dropout 0.1",
    "resnet18": "resnet18 --image-size 32 --width 8 --classes 10 --batch 16",
}
"""What `models.build` makes of each, its batch symbolic and bound to what stands here."""

BUDGETS = ("50%", "25%")
RUNS = (2, 4, 8)


def built(name: str, folder: Path) -> tuple[Path, int]:
    """(the file of a network, its batch)."""
    from models.build import main as build

    path = folder / f"{name}.onnx"
    words = NETWORKS[name].split()
    if build([words[0], "-o", str(path), "--sidecar", "--dynamic-batch", *words[1:]]):
        raise SystemExit(f"{name} was not built")
    return path, int(words[words.index("--batch") + 1])


def figures(result: OptimizeResult) -> dict[str, Any]:
    """What a plan comes to, and what ONNX Runtime said of it."""
    plan, check = result.plan, result.verification
    assert check is not None
    row: dict[str, Any] = {
        "runs": 1 if plan.micro is None else plan.micro.runs,
        "baseline_bytes": plan.baseline.peak_bytes,
        "budget_bytes": plan.budget_bytes,
        "peak_bytes": plan.planned.peak_bytes,
        "ratio": plan.planned.time_us / plan.baseline.time_us,
        "recomputed_ops": plan.planned.recomputed_ops,
        "passed": check.passed,
        "identical": sum(o.identical for o in check.outputs),
        "outputs": len(check.outputs),
    }
    if plan.micro is not None and check.micro is not None:
        row["totals"] = len(plan.micro.accumulators)
        row["totals_bytes"] = sum(a.bytes for a in plan.micro.accumulators)
        row["compared"] = len(check.micro.outputs)
        row["far"] = len(check.micro.far)
        row["by_rounding"] = check.micro.by_rounding
        row["worst"], row["worst_share"] = check.micro.worst, check.micro.worst_share
        row["measured_ratio"] = None if check.time is None else check.time.ratio
        row["note"] = check.micro.note
    return row


def planned(path: Path, batch: int, budget: str, runs: int | str, limit_s: float) -> dict[str, Any]:
    """One plan, verified; or why there is none."""
    try:
        return figures(
            optimize(
                path,
                budget=budget,
                dims={"batch": batch},
                micro_batch=runs,
                swap="none",
                output=path.with_suffix(".planned.onnx"),
                time_limit_s=limit_s,
                force=True,
            )
        )
    except InfeasibleBudgetError as error:
        return {"least_bytes": error.least_peak_bytes}
    except ModelError as error:
        return {"refused": str(error)}


def measure(name: str, limit_s: float) -> dict[str, Any]:
    """A network's row."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as text:
        path, batch = built(name, Path(text))
        row: dict[str, Any] = {"network": name, "built": NETWORKS[name], "batch": batch}
        first = planned(path, batch, BUDGETS[0], "auto", limit_s)
        if "refused" in first:
            return {**row, "refused": first["refused"]}
        row["budgets"] = {
            budget: {
                "auto": first
                if budget == BUDGETS[0]
                else planned(path, batch, budget, "auto", limit_s),
                "one": planned(path, batch, budget, 1, limit_s),
            }
            for budget in BUDGETS
        }
        row["runs"] = {k: planned(path, batch, "100%", k, limit_s) for k in RUNS if not batch % k}
    return {**row, "wall_s": round(time.monotonic() - began, 1)}


def page(data: Mapping[str, Any]) -> str:
    """The report."""
    rows = [row for row in data["rows"] if "refused" not in row]
    lines = [
        "# Micro-batches",
        "",
        f"onnxruntime {data['ort']}, {data['machine']}; written by `python -m reports.micro`, "
        f"{data['limit_s']:g} s a search, copies to the host off. Peaks in MiB, in brackets as a share "
        "of the peak on the whole batch; times as predicted for all runs of a step, against one run of "
        "the original.",
        "",
        "## How many runs a budget asks for",
        "",
        "*Auto*: as `--micro-batch auto` chooses. *One run*: the same budget with recompute and order "
        "alone. *Largest difference*: of any output of the step's last run from one run of the original "
        "on the whole batch, as a share of that output's largest element (verification allows 1e-3 in "
        "float32).",
        "",
        "| network | batch | budget | runs | peak MiB | time | recomputed | one run | outputs compared | "
        "largest difference |",
        "|---|---:|---:|---:|---:|---:|---:|---|---|---|",
    ]
    lines += [_line(row, budget) for row in rows for budget in row["budgets"]]
    lines += [
        "",
        "## Every number of runs",
        "",
        "At a budget of the model's own peak: nothing is recomputed. *Totals*: fed back from run to run, "
        "in the peak. *Measured*: a step of all runs on this machine, whose other cores were at work: a "
        "rough figure.",
        "",
        "| network | runs | peak MiB | totals MiB | time, predicted | measured | outputs compared | "
        "largest difference |",
        "|---|---:|---:|---:|---:|---:|---|---|",
    ]
    lines += [_run_line(row, found) for row in rows for found in row["runs"].values()]
    lines += ["", "## Refused", ""]
    lines += [f"- {row['network']}: {row['refused']}" for row in data["rows"] if "refused" in row]
    return "\n".join(lines) + "\n"


def _mib(size: int, whole: int) -> str:
    return f"{size / MIB:,.2f} ({100 * size / whole:.1f}%)"


def _compared(found: Mapping[str, Any]) -> str:
    if "compared" not in found:
        return "the same run | -"
    text = f"{found['compared'] - found['far']} of {found['compared']}"
    if found["by_rounding"]:
        text += f", {found['by_rounding']} of them rounding alone"
    if found["note"]:
        text += f" ({found['note']})"
    return f"{text} | {found['worst_share']:.1e}, {found['worst']}"


def _line(row: Mapping[str, Any], budget: str) -> str:
    auto, one = row["budgets"][budget]["auto"], row["budgets"][budget]["one"]
    alone = f"x{one['ratio']:.3f}" if "ratio" in one else "no plan found"
    start = f"| {row['network']} | {row['batch']:,} | {budget} |"
    if "ratio" not in auto:
        least = auto["least_bytes"] / MIB
        return f"{start} - | none found below {least:,.2f} | - | - | {alone} | - | - |"
    peak = _mib(auto["peak_bytes"], auto["baseline_bytes"])
    return (
        f"{start} {auto['runs']} | {peak} | x{auto['ratio']:.3f} | {auto['recomputed_ops']} | {alone} | "
        f"{_compared(auto)} |"
    )


def _run_line(row: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    return (
        f"| {row['network']} | {found['runs']} | {_mib(found['peak_bytes'], found['baseline_bytes'])} | "
        f"{found['totals_bytes'] / MIB:,.2f} | x{found['ratio']:.3f} | x{found['measured_ratio']:.2f} | "
        f"{_compared(found)} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("networks", nargs="*", help="default: all")
    parser.add_argument("--time-limit", type=float, default=4.0)
    options = parser.parse_args()
    data: dict[str, Any] = {"rows": []}
    if RESULT.exists():
        data = json.loads(RESULT.read_text())
    data.update(ort=ort.__version__, machine=platform.machine(), limit_s=options.time_limit)
    known = list(NETWORKS)
    for name in options.networks or known:
        row = measure(name, options.time_limit)
        rows = [r for r in data["rows"] if r["network"] != name] + [row]
        data["rows"] = sorted(rows, key=lambda r: known.index(r["network"]))
        RESULT.write_text(json.dumps(data, indent=1) + "\n")
        PAGE.write_text(page(data))
        print(json.dumps(row)[:400], flush=True)


if __name__ == "__main__":
    main()
