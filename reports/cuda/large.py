"""Large training graphs on a CUDA device: does the plan fit where the model does not?

    python -m reports.cuda.large GRAPH.onnx ... --budgets 50% --hardware h100

Each graph is planned for the device, then the original and the rewritten model run there: outputs bit for
bit, order, copies, the arena's bytes against the prediction, and whether, in an arena of the budget, the
original fails and the rewritten model runs. Steps are timed in turns, with
inputs and outputs on the host and with both where each session wants them. Outputs are not compared with
the CPU's. Writes `cuda_large.json`, a row at a time.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from planner import optimize
from planner.cost.measured import device_names
from planner.errors import PlannerError
from planner.pipeline.prepare.prepared import Prepared, prepare
from planner.request import Request
from planner.runtime.device import client
from planner.runtime.device.reference import Reference, spared
from planner.runtime.device.verify import DeviceJob
from planner.runtime.feeds.inputs import make_inputs
from planner.targets import target_named
from reports.device import sides

FOLDER = Path(__file__).parents[1]


class Large:
    """One graph: the original's runs are made once for all its budgets."""

    def __init__(self, path: Path, hardware: str) -> None:
        self.path, self.hardware = path, hardware
        self.inputs, self.source = make_inputs(path, 0, {}, None)
        self._prepared: Prepared | None = None
        self._reference: Reference | None = None

    def row(
        self, row: dict[str, Any], budget: str, options: argparse.Namespace, output: Path
    ) -> dict[str, Any]:
        """Plan at a budget, run, compare."""
        start = time.monotonic()
        self._measure(row, budget, options, output)
        return {**row, "wall_s": round(time.monotonic() - start, 1)}

    def _measure(
        self, row: dict[str, Any], budget: str, options: argparse.Namespace, output: Path
    ) -> None:
        began = time.monotonic()
        result = optimize(
            self.path,
            budget=budget,
            output=output,
            device="cuda",
            hardware=self.hardware,
            swap=options.swap,
            feeds=options.feeds,
            time_limit_s=options.time_limit,
            verify=False,
            force=True,
        )
        plan = result.plan
        row |= {
            "plan_s": round(time.monotonic() - began, 1),
            "nodes": len(result.before.graph.operations),
            "budget_bytes": plan.budget_bytes,
            "baseline_bytes": plan.baseline.peak_bytes,
            "predicted_bytes": plan.planned.peak_bytes,
            "recomputed_ops": plan.planned.recomputed_ops,
            "swapped_tensors": plan.planned.swapped_tensors,
            "resident": len(plan.resident),
            "times": plan.cost_source,
            "card": ", ".join(device_names()),
            "predicted_us": [plan.baseline.time_us, plan.planned.time_us],
            "predicted_ratio": plan.planned.time_us / plan.baseline.time_us,
            "unchanged": plan.unchanged,
        }
        if self._prepared is None:
            self._prepared = prepare(Request(model=self.path, device="cuda"))
        original, rewritten = sides(self.path, result, self._prepared.renamed)
        target = self._prepared.target
        if self._reference is None:
            opening = client.DeviceOpening(level=original.level)
            run = client.run(target, self.path, self.inputs, opening, runs=2)
            tight = spared(target, self.path, self.inputs, opening)
            self._reference = Reference(device=run, cpu={}, spared=tight)
        row["driver_original"] = list(self._reference.device.driver_bytes)
        job = DeviceJob(
            target=target,
            original=original,
            rewritten=rewritten,
            inputs=self.inputs,
            inputs_source=self.source,
            budget_bytes=plan.budget_bytes,
            is_copy=plan.unchanged,
            timing_runs=0,
            reference=self._reference,
        )
        check = job.run()
        row |= {
            "passed": check.passed,
            "failures": list(check.failures),
            "notes": list(check.notes),
            "outputs": len(check.outputs),
            "identical": sum(o.identical for o in check.outputs),
            "worst_relative": max(o.max_rel_diff or 0.0 for o in check.outputs),
            "orders": [[o.level, o.queue, o.equal] for o in check.orders],
            "live": {m.model: [m.predicted_live_bytes, m.live_bytes] for m in check.memory},
            "held": {
                f"{m.model}, {m.options}": [m.predicted_held_bytes, m.held_bytes]
                for m in check.memory
            },
            "cap": {
                c.model: [c.cap_bytes, c.passed, c.expected, c.over_budget_bytes, c.message]
                for c in check.caps
            },
        }


def times(row: dict[str, Any], graph: Path, planned: Path, runs: int) -> None:
    """Steps of both models in turns, added to a row."""
    inputs, _ = make_inputs(graph, 0, {}, None)
    for bound in (True, False):
        original_s, rewritten_s = client.time_in_turns(
            target_named("cuda"), (graph, planned), inputs, runs=runs, bound=bound
        )
        name = "bound" if bound else "host"
        row[f"{name}_s"] = [original_s, rewritten_s]
        row[f"{name}_ratio"] = min(rewritten_s) / min(original_s)


def main() -> None:
    """Run what is asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graphs", nargs="+", type=Path)
    parser.add_argument("--budgets", nargs="+", default=["50%"])
    parser.add_argument("--hardware", default="cpu", help="cpu: times are measured")
    parser.add_argument("--swap", default="auto", choices=["auto", "none", "only"])
    parser.add_argument("--feeds", default="auto", choices=["auto", "host", "device"])
    parser.add_argument("--time-limit", type=float, default=30.0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--keep", type=Path, help="where the rewritten models stay")
    parser.add_argument(
        "--only", choices=["plans", "times"], help="all but times; or times of what was kept"
    )
    options = parser.parse_args()
    path = options.folder / "cuda_large.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    for graph in options.graphs:
        large = Large(graph, options.hardware)
        for budget in options.budgets:
            asked: dict[str, Any] = {
                "model": graph.stem,
                "asked": budget,
                "swap": options.swap,
                "feeds": options.feeds,
            }
            row = next((r for r in rows if asked.items() <= r.items()), asked)
            with tempfile.TemporaryDirectory() as folder:
                name = f"{graph.stem}_{budget.rstrip('%')}_{options.swap}_{options.feeds}.onnx"
                planned = (options.keep or Path(folder)) / name
                try:
                    if options.only != "times":
                        row = large.row(dict(asked), budget, options, planned)
                    if options.only != "plans":
                        times(row, graph, planned, options.runs)
                except PlannerError as error:
                    row["error"] = str(error)
            rows = [r for r in rows if not asked.items() <= r.items()] + [row]
            path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
            print(json.dumps(row)[:3000], flush=True)


if __name__ == "__main__":
    main()
