"""One step of the line in a process of its own: `python -m reports.sizes.step export|analyze|...`.

Prints what it found as one line of JSON, last.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

Found = dict[str, Any]

_COST = (
    "peak_bytes",
    "time_us",
    "host_bytes",
    "page_in_bytes",
    "page_out_bytes",
    "recomputed_bytes",
)
_EXAMPLE_BATCH = 2
"""The batch of the export, which stays symbolic."""


def export(options: argparse.Namespace) -> Found:
    """Build the network on the meta device, trace a step of it, write the file."""
    from planner.export.training import export_training_graph
    from reports.sizes.networks import NETWORKS

    began = time.monotonic()
    module, inputs = NETWORKS[options.network].step(_EXAMPLE_BATCH)
    parameters = sum(math.prod(p.shape) for p in module.parameters())
    built = time.monotonic()
    optimizer = None if options.optimizer == "none" else options.optimizer
    graph = export_training_graph(module, inputs, None, optimizer, dynamic_batch=True)
    traced = time.monotonic()
    graph.save(options.model, sidecar=True, force=True)
    return {
        "parameters": parameters,
        "nodes": len(graph.model.graph.node),
        "build_s": built - began,
        "trace_s": traced - built,
        "save_s": time.monotonic() - traced,
        "file_bytes": options.model.stat().st_size,
    }


def analyze(options: argparse.Namespace) -> Found:
    """Run the work of `planner analyze`."""
    from planner import analyze as analyzed

    found = analyzed(
        options.model,
        dims={"batch": options.batch},
        hardware=options.hardware,
        device="cuda",
        time_limit_s=options.time_limit,
    )
    default = found.default
    return {
        "baseline_bytes": default.timeline.peak_bytes,
        "best_order_bytes": found.best_order.peak_bytes,
        "least_bytes": found.least_peak_bytes,
        "bound_bytes": found.least_peak_bound_bytes,
    }


def optimize(options: argparse.Namespace) -> Found:
    """Run the work of `planner optimize --no-verify`, and return the figures of its plan."""
    from planner import optimize as optimized
    from planner.errors import InfeasibleBudgetError

    folder: Path = options.model.parent
    try:
        result = optimized(
            options.model,
            budget=options.budget,
            budget_of="live",
            dims={"batch": options.batch},
            hardware=options.hardware,
            device="cuda",
            micro_batch="auto" if options.batch > 1 else 1,
            output=folder / "planned.onnx",
            plan_path=folder / "plan.json",
            report_path=folder / "report.html",
            time_limit_s=options.time_limit,
            verify=False,
            force=True,
            progress=lambda text: print(text, flush=True),
        )
    except InfeasibleBudgetError as error:
        return {
            "fits": False,
            "least_bytes": error.least_peak_bytes,
            "bound_bytes": error.bound_bytes,
            "binding": [list(pair) for pair in error.binding[:3]],
            "said": str(error),
        }
    plan = result.plan
    planned = plan.planned
    return {
        "fits": True,
        "baseline_bytes": plan.baseline.peak_bytes,
        "baseline_us": plan.baseline.time_us,
        "budget_bytes": plan.budget_bytes,
        "bound_us": plan.bound_us,
        "least_bytes": plan.least_peak_bytes,
        "runs": 1 if plan.micro is None else plan.micro.runs,
        **{name: getattr(planned, name) for name in _COST},
        "swapped_bytes": planned.swap_out_bytes,
        "steps": len(plan.schedule),
        "assumptions": list(plan.assumptions),
        "report_bytes": (folder / "report.html").stat().st_size,
    }


def opened(options: argparse.Namespace) -> Found:
    """Open the report in headless Chromium; `errors` has its console's errors."""
    from reports.page import FLAGS
    from reports.shared import chromium

    report = options.model.parent / "report.html"
    with chromium(*FLAGS) as browser:
        page = browser.new_page(viewport={"width": 1180, "height": 820})
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(report.as_uri())
        page.wait_for_selector("html[data-ready=true]", timeout=120_000)
        ready_s = page.evaluate("performance.now()") / 1e3
        headline = page.inner_text("h1")
    return {"ready_s": ready_s, "errors": errors, "headline": headline}


STEPS = {"export": export, "analyze": analyze, "optimize": optimize, "open": opened}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("model", type=Path)
    parser.add_argument("--network", default="")
    parser.add_argument("--optimizer", default="none")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--hardware", default="cpu")
    parser.add_argument("--budget", default="")
    parser.add_argument("--time-limit", type=float, default=60.0)
    options = parser.parse_args()
    print(json.dumps(STEPS[options.step](options)))


if __name__ == "__main__":
    main()
