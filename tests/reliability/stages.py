"""Times of each stage on large graphs: `python -m tests.reliability.stages [--quick]`.

Training graphs of 1,000, 10,000 and 100,000 nodes (`models.drawn`) go through
`planner.optimize`, each in a process of its own; stages are told apart by what planner says as it goes,
and by a clock around solving, lowering and reading back. ONNX Runtime's own time to load a graph and
optimize it grows with the square of its nodes, so that 100,000 are planned as they are
(`--no-ort-optimize --no-verify`).

Writes `reports/reliability/stages.json`, after each row.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from models import drawn as graphs

RESULT = Path(__file__).parents[2] / "reports" / "reliability" / "stages.json"
BUDGET = "50%"
ROWS = (
    # kind, nodes, time limit in s, ONNX Runtime's optimizers and verification
    ("chain", 1_000, 20, True),
    ("transformer", 1_000, 20, True),
    ("chain", 10_000, 60, True),
    ("transformer", 10_000, 60, True),
    ("chain", 100_000, 240, False),
    ("transformer", 100_000, 240, False),
)
STAGES = {
    "load": ("loading",),
    "optimize, types, build": ("letting ONNX Runtime",),
    "orders": ("searching", "comparing"),
    "solve": (),
    "lower": (),
    "read back": (),
    "plan, the rest": ("solving", "improving"),
    "budget_preview": ("finding", "what "),
    "write": ("writing the rewritten",),
    "verify": ("original model", "rewritten model", "both models"),
    "report": ("writing the report",),
}
"""What a stage says as it begins; without an entry, it is timed where it is called."""


class Clock:
    """Seconds of each stage."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.stage = "load"
        self.since = time.monotonic()

    def say(self, message: str) -> None:
        """Take what planner says for the beginning of a stage, where it is one."""
        for stage, beginnings in STAGES.items():
            if message.startswith(beginnings or "\0"):
                self.turn_to(stage)
        if message.endswith(" operations"):
            self.turn_to("plan, the rest")

    def turn_to(self, stage: str) -> str:
        """The stage before."""
        now = time.monotonic()
        self.seconds[self.stage] += now - self.since
        before, self.stage, self.since = self.stage, stage, now
        return before

    def around(self, module: Any, name: str, stage: str) -> None:
        """Count the calls of a function as a stage."""
        function: Callable[..., Any] = getattr(module, name)

        def timed(*arguments: Any, **options: Any) -> Any:
            before = self.turn_to(stage)
            try:
                return function(*arguments, **options)
            finally:
                self.turn_to(before)

        setattr(module, name, timed)


def measure(kind: str, nodes: int, time_limit_s: float, whole: bool) -> dict[str, Any]:
    """Optimize one graph in this process."""
    gc.set_threshold(50_000, 10, 10)  # as the command line has it
    from planner import api
    from planner.pipeline.solve import planned, trying

    row: dict[str, Any] = {"kind": kind, "whole": whole, "time_limit_s": time_limit_s}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        row["nodes"] = graphs.save(kind, nodes, folder / "model.onnx")
        began = time.monotonic()
        clock = Clock()
        for module, function, stage in (
            (trying, "solve", "solve"),
            (planned, "lowered", "lower"),
            (planned, "read_back", "read back"),
        ):
            clock.around(module, function, stage)

        def say(message: str) -> None:
            if clock.stage not in ("solve", "lower", "read back"):
                clock.say(message)

        try:
            result = api.optimize(
                folder / "model.onnx",
                budget=BUDGET,
                output=folder / "planned.onnx",
                plan_path=folder / "plan.json",
                report_path=folder / "report.html",
                time_limit_s=time_limit_s,
                verify=whole,
                ort_optimize=whole,
                progress=say,
            )
            plan = result.plan
            row["operations"] = len(result.before.graph.operations)
            row["outcome"] = f"+{100 * (plan.planned.time_us / plan.baseline.time_us - 1):.2f}%"
            if result.verification is not None:
                row["verified"] = result.verification.passed
        except Exception as error:
            row["outcome"] = f"{type(error).__name__}: {error}"
        clock.turn_to("load")
        row["seconds"] = {stage: round(s, 2) for stage, s in clock.seconds.items()}
        row["total_s"] = round(time.monotonic() - began, 1)
    row["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return row


def table(data: Mapping[str, Any]) -> str:
    """The part of the report: a column for each graph."""
    rows = data["rows"]
    head = [f"{row['kind']}, {row['nodes']:,} nodes" for row in rows]
    lines = ["| seconds | " + " | ".join(head) + " |", "|---|" + "---:|" * len(rows)]
    for stage in STAGES:
        cells = [f"{row['seconds'].get(stage, 0.0):.1f}" for row in rows]
        lines.append(f"| {stage} | " + " | ".join(cells) + " |")
    for name, key in (
        ("all", "total_s"),
        ("of these, `--time-limit`", "time_limit_s"),
        ("memory of planner, MiB", "peak_mib"),
        ("time that the plan adds", "outcome"),
    ):
        lines.append(f"| {name} | " + " | ".join(str(row[key]) for row in rows) + " |")
    return "\n".join(
        [
            *lines,
            "",
            f"Budget {BUDGET} of the model's own peak, on {data['machine']}. ONNX Runtime's own time to "
            "load and optimize a graph grows with the square of its nodes: the largest are planned as "
            "they are, and not verified.",
        ]
    )


def _in_a_process(row: Sequence[Any]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.reliability.stages", "--row", json.dumps(row)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    """Measure every row, write the result and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only the smallest graphs")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.row:
        print(json.dumps(measure(*json.loads(given.row))))
        return
    data: dict[str, Any] = {
        "machine": f"{len(os.sched_getaffinity(0))} cores of {platform.machine()}",
        "rows": [],
    }
    for row in ROWS[:2] if given.quick else ROWS:
        data["rows"].append(_in_a_process(row))
        print(json.dumps(data["rows"][-1]), flush=True)
        RESULT.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print(table(data))


if __name__ == "__main__":
    main()
