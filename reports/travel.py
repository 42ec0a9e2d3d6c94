"""Plans for a device that are made where its provider is not: do they hold on it?

    python -m reports.travel
    python -m reports.travel --models gpt resnet18 --swaps only

The networks of `reports.device` at 60% of their peak (or 5% above the least peak found), with swaps where
they pay and with swaps only, planned three times: where WebGPU's provider cannot be imported; made again
where it can by `planner apply`, from the plan file of the first; and where it can from the start. All
three rewritten models run on WebGPU. Writes `travel.json` and `travel.md` in this folder, a row at a
time; rows that are there stay, unless they are asked for again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from planner import optimize
from planner.pipeline.answer.applying import applied
from planner.pipeline.record.assemble import read_plan
from planner.pipeline.record.files import Files
from planner.results import OptimizeResult
from planner.targets.webgpu import WEBGPU
from reports.device import MODELS, Bench
from reports.verified import at_or_above_least

FOLDER = Path(__file__).parent
WAYS = ("without", "again", "with")
PERCENT = 60


def row_of(bench: Bench, swap: str, folder: Path, time_limit_s: float) -> dict[str, Any]:
    """One network with one kind of swaps, planned in the three ways."""
    row: dict[str, Any] = {"model": bench.name, "swap": swap, "asked": f"{PERCENT}%"}

    def plan(budget: str) -> OptimizeResult:
        return optimize(
            bench.path,
            budget=budget,
            output=folder / "model.onnx",
            plan_path=folder / "model.plan.json",
            device="webgpu",
            swap=swap,  # type: ignore[arg-type]
            time_limit_s=time_limit_s,
            verify=False,
            force=True,
        )

    there = sys.modules.pop(WEBGPU.plugin, None)
    sys.modules[WEBGPU.plugin] = None  # type: ignore[assignment]
    try:
        without = at_or_above_least(plan, PERCENT, row)
    finally:
        del sys.modules[WEBGPU.plugin]
        if there is not None:
            sys.modules[WEBGPU.plugin] = there
    assert without.plan.assumed
    row |= {"budget_bytes": without.plan.budget_bytes, "without": _ran(bench, without)}
    begun = time.monotonic()
    again = applied(
        bench.path,
        read_plan(folder / "model.plan.json"),
        Files(model=folder / "again.onnx"),
        verify=False,
        progress=lambda _: None,
    ).again
    assert again is not None
    row |= {"apply_s": round(time.monotonic() - begun, 1), "again": _ran(bench, again)}
    row["with"] = _ran(bench, plan(f"{without.plan.budget_bytes}B"))
    return row


def _ran(bench: Bench, result: OptimizeResult) -> dict[str, Any]:
    """What a rewritten model does on the device, beside the original as a session runs it there."""
    plan = result.plan
    check = bench.job(result).run()
    assert check.copies is not None
    return {
        "peak_bytes": plan.planned.peak_bytes,
        "predicted_ratio": plan.planned.time_us / plan.baseline.time_us,
        "passed": check.passed,
        "failures": list(check.failures),
        "outputs": len(check.outputs),
        "identical": sum(o.identical for o in check.outputs),
        "copies": [check.copies.ran, check.copies.planned, len(check.copies.extra)],
    }


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table."""
    held = {way: sum(r[way]["passed"] for r in rows) for way in WAYS}
    copies = {way: [sum(r[way]["copies"][i] for r in rows) for i in range(2)] for way in WAYS}
    lines = [
        "# Plans that travel",
        "",
        "Written by `python -m reports.travel`. Six networks, planned for WebGPU where its provider "
        "cannot be imported, and run on it: software Vulkan (SwiftShader), where memory and copies are "
        "real and times are not.",
        "",
        f"- **The file that was written without the provider** holds in {held['without']} of {len(rows)} "
        f"rows; {copies['without'][0]} of its {copies['without'][1]} copies ran, opened with "
        "optimizations off, as its metadata asks. At other levels sessions change its graph, and most of "
        "these files do not run within what they held.",
        f"- **What `planner apply` makes of the plan file where the provider is** holds in "
        f"{held['again']} of {len(rows)}; {copies['again'][0]} of {copies['again'][1]} copies ran.",
        f"- **Planned with the provider from the start**: {held['with']} of {len(rows)}; "
        f"{copies['with'][0]} of {copies['with'][1]} copies ran.",
        "",
        "A row *holds* where the model loads, each queue runs its nodes in the planned order, every "
        "planned copy runs and no other, and every output is bit-identical to that of the original in a "
        "session of default options, wherever the original is to itself. *bits*: outputs that are, of "
        "all; *copies*: ran, of those planned; *x*: predicted time of the step, by that of the model "
        "as it is; *s*: of `planner apply`, on 2 cores, without the verification.",
        "",
        "| model | swaps | budget MiB | without: bits | copies | x | applied: bits | copies | x | s "
        "| with: bits | copies | x |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for r in rows:
        cells = [r["model"], r["swap"], f"{r['budget_bytes'] / 2**20:.2f}"]
        for way in WAYS:
            found = r[way]
            bold = "" if found["passed"] else "**"
            ran, planned, extra = found["copies"]
            more = f", {extra} more" if extra else ""
            cells += [
                f"{bold}{found['identical']}/{found['outputs']}{bold}",
                f"{bold}{ran}/{planned}{more}{bold}",
                f"{found['predicted_ratio']:.3f}",
            ]
            if way == "again":
                cells.append(f"{r['apply_s']:g}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is asked; write after each row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--swaps", nargs="+", default=["auto", "only"])
    parser.add_argument("--time-limit", type=float, default=20.0, help="of a plan, in seconds")
    parser.add_argument("--again", action="store_true", help="rows that are there too")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where to write")
    options = parser.parse_args()
    path = options.folder / "travel.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for model in options.models:
            bench = Bench(model, "webgpu", folder)
            for swap in options.swaps:
                if not options.again and any(
                    (r["model"], r["swap"]) == (model, swap) for r in rows
                ):
                    continue
                row = row_of(bench, swap, folder, options.time_limit)
                rows = [r for r in rows if (r["model"], r["swap"]) != (model, swap)] + [row]
                rows.sort(key=lambda r: (MODELS.index(r["model"]), r["swap"]))
                path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
                path.with_suffix(".md").write_text(markdown(rows), encoding="utf-8")
                print({way: (row[way]["passed"], row[way]["failures"][:2]) for way in WAYS})


if __name__ == "__main__":
    main()
