"""How long planner takes to answer.

    python -m reports.speed                          time to answer, and of each stage of optimize
    python -m reports.speed --before REVISION        the same, and of that revision, in turns

Commands are timed in fresh processes. For `optimize`, each model of `models/zoo` (or those named) goes
through `planner.optimize` at 70% of its peak, twice each with a cache of compiled code of
its own: the first run compiles. With `--before`, the revision is checked out beside and runs in turns
with the working tree, so that a busy machine slows both alike; the page gives ratios.

Rows go to `speed.json` beside this file, and `speed.md` is written from them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULT = Path(__file__).with_name("speed.json")
PAGE = Path(__file__).with_suffix(".md")
ZOO = ROOT / "models" / "zoo"
BUDGET = "70%"
RUNS = 3

STAGES = {
    "load": ("loading",),
    "ONNX Runtime's optimizers, types": ("letting ONNX Runtime",),
    "base orders": ("compiling", "searching", "comparing"),
    "solve, lower, read back": ("solving", "improving", "again"),
    "other budgets": ("finding", "what ", "waiting", "drawing"),
    "write": ("writing the rewritten",),
    "verify": ("original model", "rewritten model", "both models"),
    "report": ("writing the report",),
}
"""What planner says as a stage begins."""

_CHILD = """
import json, sys, time
began = time.perf_counter()
from pathlib import Path
from planner import api
marks = [("import", began), ("load", time.perf_counter())]
stages = json.loads(sys.argv[4])
def say(message):
    for stage, heads in stages.items():
        if message.startswith(tuple(heads)) and marks[-1][0] != stage:
            marks.append((stage, time.perf_counter()))
folder = Path(sys.argv[3])
result = api.optimize(
    Path(sys.argv[1]), budget=sys.argv[2], output=folder / "o.onnx", plan_path=folder / "p.json",
    report_path=folder / "r.html", force=True, progress=say,
)
marks.append(("", time.perf_counter()))
seconds = {}
for (stage, since), (_, until) in zip(marks, marks[1:]):
    seconds[stage] = seconds.get(stage, 0.0) + until - since
plan = result.plan
print(json.dumps({
    "seconds": seconds, "total_s": marks[-1][1] - began,
    "nodes": len(result.before.graph.operations),
    "added": plan.planned.time_us / plan.baseline.time_us - 1, "engine": plan.engine,
}))
"""


def command_s(*arguments: str) -> float:
    """Least wall time of a few runs of `planner ARGUMENTS`."""
    command = [sys.executable, "-c", "from planner.cli.main import run; run()", *arguments]
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return min(times)


def optimize_row(tree: Path, model: Path, cache: Path) -> dict[str, Any]:
    """Seconds of each stage of one `optimize` in a fresh process, with the code of `tree`."""
    env = {**os.environ, "PYTHONPATH": str(tree), "NUMBA_CACHE_DIR": str(cache)}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", _CHILD, str(model), BUDGET, folder, json.dumps(STAGES)]
        done = subprocess.run(
            command, cwd=tree, env=env, capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise SystemExit(f"{model} in {tree}: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


@contextmanager
def checked_out(revision: str | None) -> Iterator[Path | None]:
    """The tree of a revision, as long as it is needed."""
    if revision is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run(
            [*git, "add", "--detach", str(tree), revision], check=True, capture_output=True
        )
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True, capture_output=True)


def measure(models: Sequence[Path], before: str | None) -> list[dict[str, Any]]:
    """Rows: first and second run of each model, in each tree, in turns."""
    rows: list[dict[str, Any]] = []
    with checked_out(before) as old, tempfile.TemporaryDirectory() as caches:
        trees = {"now": ROOT} if old is None else {before or "": old, "now": ROOT}
        for model in models:
            for run in ("first", "later"):
                for name, tree in trees.items():
                    cache = Path(caches) / name / model.stem
                    row = optimize_row(tree, model, cache)
                    rows.append({"model": model.stem, "tree": name, "run": run, **row})
                    print(model.stem, name, run, f"{row['total_s']:.1f} s", flush=True)
    return rows


def markdown(commands: dict[str, float], rows: Sequence[dict[str, Any]]) -> str:
    """The page."""
    lines = [
        "# Time to answer",
        "",
        f"Written by `python -m reports.speed`. Commands: the least of {RUNS} runs.",
        "",
        "| command | seconds |",
        "|---|---:|",
        *(f"| {name} | {seconds:.2f} |" for name, seconds in commands.items()),
        "",
        "## optimize",
        "",
        f"Seconds of each stage of `planner.optimize` at {BUDGET} of the peak, with report and "
        "verification, in a fresh process each. *first*: with no compiled code cached. Trees ran in "
        "turns; *ratio*: the working tree's time over that of the revision beside it.",
        "",
    ]
    return "\n".join([*lines, *_table(rows)]) + "\n"


def _table(rows: Sequence[dict[str, Any]]) -> list[str]:
    stages = list(dict.fromkeys(stage for row in rows for stage in row["seconds"]))
    lines = [
        "| model | operations | run | tree | "
        + " | ".join(stages)
        + " | all | ratio | plan adds |",
        "|---|---:|---|---|" + "---:|" * (len(stages) + 3),
    ]
    for row in rows:
        others = [
            r["total_s"]
            for r in rows
            if (r["model"], r["run"]) == (row["model"], row["run"]) and r["tree"] != row["tree"]
        ]
        ratio = f"{row['total_s'] / others[0]:.2f}" if others and row["tree"] == "now" else ""
        cells = " | ".join(f"{row['seconds'].get(stage, 0.0):.1f}" for stage in stages)
        lines.append(
            f"| {row['model']} | {row['nodes']:,} | {row['run']} | {row['tree']} | {cells} "
            f"| {row['total_s']:.1f} | {ratio} | {row['added']:+.2%} |"
        )
    return lines


def main() -> None:
    """Measure, and write the rows and the page."""
    parser = argparse.ArgumentParser(
        prog="python -m reports.speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", nargs="*", type=Path, help="ONNX files [those of models/zoo]")
    parser.add_argument("--before", metavar="REVISION", help="measured beside the working tree")
    asked = parser.parse_args()
    models = [m.resolve() for m in asked.models] or sorted(ZOO.glob("*.onnx"))
    commands = {"`planner --help`": command_s("--help")}
    for model in models:
        commands[f"`planner analyze {model.name}`"] = command_s("analyze", str(model), "--json")
    rows = measure(models, asked.before)
    RESULT.write_text(json.dumps({"commands": commands, "rows": rows}, indent=1) + "\n")
    PAGE.write_text(markdown(commands, rows), encoding="utf-8")


if __name__ == "__main__":
    main()
