"""Optimize and verify training graphs at several budgets, with and without swaps, on ONNX Runtime.

    python -m reports.verified                       the samples of models/zoo
    python -m reports.verified DIR/a.onnx ...        these as well (NAME.inputs.json beside each)
    python -m reports.verified --page-only           the page alone, from what was measured

Each row is one `planner.optimize` with its full verification, at 80%, 60% and 40% of the baseline
peak; where no plan can meet that, at 5% above the least budget that one was found for, with the
proven bound beside it. Writes `verified.json` and `verified.md` in this folder, a row at a time.
"""

from __future__ import annotations

import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from planner import optimize
from planner.errors import InfeasibleBudgetError, PlannerError, VerificationError
from planner.results import OptimizeResult
from planner.results.verification import Verification
from reports.shared import FOLDER, MIB, ZOO, Row, line, mib, program, read_rows, write_rows


def run(model: Path, percent: int, swap: str, time_limit_s: float, dims: dict[str, int]) -> dict:
    """Measure one row: optimize at a budget, or just above the least feasible one."""
    row: Row = {"model": model.stem, "asked": f"{percent}%", "swap": swap}
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / f"{model.stem}.planned.onnx"

        def attempt(budget: str) -> OptimizeResult:
            return optimize(
                model,
                budget=budget,
                budget_of="live",
                output=output,
                swap=swap,  # type: ignore[arg-type]
                time_limit_s=time_limit_s,
                dims=dims,
                verify="thorough",
                force=True,
            )

        start = time.monotonic()
        try:
            result = at_or_above_least(attempt, percent, row)
        except VerificationError as error:
            assert isinstance(error.result, OptimizeResult)
            result = error.result
        except PlannerError as error:
            return {**row, "error": str(error)}
        row["wall_s"] = round(time.monotonic() - start, 1)
    return {**row, **_figures(result)}


def at_or_above_least(
    attempt: Callable[[str], OptimizeResult], percent: int, row: Row
) -> OptimizeResult:
    """What `attempt` makes of a budget, or of 5% above the least peak found, which `row` then has."""
    try:
        return attempt(f"{percent}%")
    except InfeasibleBudgetError as error:
        row["least_bound_bytes"] = error.bound_bytes
        row["least_found_bytes"] = error.least_peak_bytes
        return attempt(f"{int(error.least_peak_bytes * 1.05)}B")


def _figures(result: OptimizeResult) -> Row:
    plan, check = result.plan, result.verification
    row: Row = {
        "nodes": len(result.before.graph.operations),
        "budget_bytes": plan.budget_bytes,
        "unchanged": plan.unchanged,
        "baseline_bytes": plan.baseline.peak_bytes,
        "order_alone_bytes": plan.best_order.peak_bytes,
        "predicted_bytes": plan.planned.peak_bytes,
        "recomputed_ops": plan.planned.recomputed_ops,
        "swapped_bytes": plan.planned.swap_out_bytes + plan.planned.swap_in_bytes,
        "predicted_ratio": plan.planned.step_us / plan.baseline.time_us,
        "gap": plan.gap,
        "engine": plan.engine,
    }
    return {**row, **_verified(check)} if check is not None else row


def _verified(check: Verification) -> Row:
    (live,) = (m for m in check.memory if m.model == "rewritten" and m.options == "recommended")
    caps = {c.model: c for c in check.caps}
    return {
        "passed": check.passed,
        "failures": list(check.failures),
        "identical": all(o.identical for o in check.outputs),
        "outputs": len(check.outputs),
        "order_equal": {o.level: o.equal for o in check.orders},
        "how": live.how,
        "live_predicted_bytes": live.predicted_live_bytes,
        "live_bytes": live.live_bytes,
        "cap": {
            m: {"passed": c.passed, "over_budget_bytes": c.over_budget_bytes}
            for m, c in caps.items()
        },
        "time_ratio": check.time.ratio if check.time else None,
        "ort_version": check.ort_version,
    }


def markdown(rows: list[Row], time_limit_s: float) -> str:
    """Return the table."""
    ort = next((r["ort_version"] for r in rows if "ort_version" in r), "?")
    lines = [
        "# Plans verified on ONNX Runtime",
        "",
        f"onnxruntime {ort}, CPU, {platform.machine()}; written by `python -m reports.verified` "
        f"(time limit {time_limit_s:g} s a plan, `--budget-of live`). What sessions hold, and plans "
        "that are held within their budget: [session.md](session.md).",
        "",
        "- *budget*: of live bytes, as a share of the baseline peak (ONNX Runtime's default order, "
        "kernel workspace included). In brackets what was asked where no plan met it, and the proven "
        "bound on the peak of any plan; the budget is then 5% above the least peak found.",
        "- *peak*: predicted for the rewritten model. *live*: bytes of tensors at the fullest node, "
        "predicted and found, workspace left out; found by ONNX Runtime's memory events, or "
        "(*replayed*) from the executed order, where host copies share the CPU's arena.",
        "- *bits*: every output of the rewritten model equals the original's, bit for bit. *order*: "
        "executed as planned with optimizations off, extended and all.",
        "- *hard cap*: original / rewritten in a process whose arena may not exceed the budget "
        "(+: the rewritten model was given that much more, for fragmentation).",
        "- *time*: measured step time, rewritten / original, in alternation; in brackets predicted.",
        "- *gap*: how far the plan's predicted time can be from the best in its base order.",
        "",
        *_true_times(rows),
        "| model | nodes | swaps | budget | peak MiB | live MiB predicted | found | off | bits | "
        "order | hard cap | recomputed | swapped MiB | time | gap |",
        "|---|---:|---|---|---:|---:|---:|---:|---|---|---|---:|---:|---:|---:|",
    ]
    lines += [_line(row) for row in rows]
    return "\n".join(lines) + "\n"


def _true_times(rows: list[Row]) -> list[str]:
    """Describe the errors of predicted step times."""
    timed = [r for r in rows if r.get("time_ratio")]
    if not timed:
        return []
    off = sorted(abs(r["predicted_ratio"] / r["time_ratio"] - 1) for r in timed)
    within = sum(o <= 0.1 for o in off)
    said = (
        f"Predicted step times are within 10% of the measured ones in {within} of {len(off)} rows"
    )
    return [f"{said}; the largest distance is {off[-1]:.1%}, the median {median(off):.1%}.", ""]


def _line(row: Row) -> str:
    if "error" in row:
        return f"| {row['model']} | | {row['swap']} | {row['asked']} | {row['error']} |" + " |" * 10
    share = 100 * row["budget_bytes"] / row["baseline_bytes"]
    asked = ""
    if "least_bound_bytes" in row:
        bound = 100 * row["least_bound_bytes"] / row["baseline_bytes"]
        asked = f" ({row['asked']}; none below {bound:.1f}%)"
    off = abs(row["live_bytes"] - row["live_predicted_bytes"]) / row["live_predicted_bytes"]
    order = "3 of 3" if all(row["order_equal"].values()) else str(row["order_equal"])
    how = "" if row["how"] == "measured" else " replayed"
    gap = "" if row["gap"] is None else f"{100 * row['gap']:.2f}%"
    ratio = f"{row['time_ratio']:.3f} ({row['predicted_ratio']:.3f})"
    cells = (
        row["model"],
        row["nodes"],
        row["swap"],
        f"{share:.1f}%{asked}",
        " -> ".join(mib(row[key], ".2f") for key in ("baseline_bytes", "predicted_bytes")),
        f"{row['live_predicted_bytes'] / MIB:.2f}",
        f"{row['live_bytes'] / MIB:.2f}{how}",
        f"{100 * off:.2f}%",
        f"{row['outputs']} equal" if row["identical"] else "DIFFER",
        order,
        _cap(row),
        row["recomputed_ops"],
        f"{row['swapped_bytes'] / MIB:.1f}",
        ratio,
        gap,
    )
    return line(*cells)


def _cap(row: Row) -> str:
    cap = row["cap"]
    if not cap:
        return "no (swaps)"
    word = {True: "runs", False: "fails"}
    extra = cap["rewritten"]["over_budget_bytes"]
    plus = f" +{extra / MIB:.2f} MiB" if extra else ""
    return f"{word[cap['original']['passed']]} / {word[cap['rewritten']['passed']]}{plus}"


def main() -> None:
    """Run every combination; write after each row, so that an interrupt keeps what is there."""
    parser = program("reports.verified", __doc__)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--no-zoo", action="store_true")
    parser.add_argument("--percents", type=int, nargs="+", default=[80, 60, 40])
    parser.add_argument("--swaps", nargs="+", default=["none", "auto"])
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N")
    parser.add_argument("--keep", action="store_true", help="keep the rows that are there")
    parser.add_argument("--name", default="verified")
    parser.add_argument("--page-only", action="store_true", help="the page alone, of what is there")
    options = parser.parse_args()
    models = [] if options.no_zoo else [ZOO / f"{n}.onnx" for n in ("mlp_adamw", "resnet18", "gpt")]
    models += options.models
    dims = {k: int(v) for k, v in (d.split("=") for d in options.dim)}
    path = FOLDER / f"{options.name}.json"
    is_kept = options.keep or options.page_only
    rows: list[Row] = read_rows(path, []) if is_kept else []
    for model in () if options.page_only else models:
        for percent in options.percents:
            for swap in options.swaps:
                same = (model.stem, f"{percent}%", swap)
                rows = [r for r in rows if (r["model"], r["asked"], r["swap"]) != same]
                row = run(model, percent, swap, options.time_limit, dims)
                rows.append(row)
                write_rows(path, rows)
                text = markdown(rows, options.time_limit)
                (FOLDER / f"{options.name}.md").write_text(text)
                print(_line(row), flush=True)
    (FOLDER / f"{options.name}.md").write_text(markdown(rows, options.time_limit))


if __name__ == "__main__":
    main()
