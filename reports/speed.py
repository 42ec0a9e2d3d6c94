"""How long planner takes to answer.

    python -m reports.speed                          samples of the zoo, and chains of up to 14,000 nodes
    python -m reports.speed FILE... --chains         these files alone
    python -m reports.speed --unrun bert_base.onnx   that one planned with no run, too
    python -m reports.speed --before REVISION        the same, and of that revision, in turns
    python -m reports.speed FILE... --add            these, beside the rows of others that are there

Commands are timed in fresh processes. For `optimize`, each model goes through `planner.optimize` at 70%
of its peak with caches of its own. The first run compiles and measures operation times, and later ones
find both; of these, the quickest counts. Python keeps the bytecode of modules, as by default. With
`--before`, the revision is checked out beside and runs in turns with the working tree, so that a busy
machine slows both alike; the page gives ratios.

Rows go to `speed.json` beside this file, and `speed.md` is written from them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models import drawn
from reports.shared import FOLDER, ZOO, Row, least_s, program, read_rows, write_rows

ROOT = FOLDER.parent
RESULT, PAGE = FOLDER / "speed.json", FOLDER / "speed.md"
BUDGET = "70%"
RUNS = 3
CHAINS = (1_000, 4_000, 11_000)
"""Approximate nodes of the chains: `models.drawn` makes a fifth more."""

STAGES = {
    "load": ("loading",),
    "optimizers, types": ("letting ONNX Runtime",),
    "operation times": ("measuring operation times", "comparing the optimized graph"),
    "base orders": ("compiling", "searching", "comparing base"),
    "solve, lower, read back": (
        "solving", "improving", "again", "planning with", "looking for", "leaving out",
    ),
    "verify": ("original model", "rewritten model", "both models"),
    "write, report": ("writing", "drawing", "finding", "what ", "waiting"),
}  # fmt: skip
"""The messages with which planner begins each stage."""

_CHILD = """
import json, resource, sys, time
began = time.perf_counter()
from pathlib import Path
import onnxruntime
from planner import optimize
marks = [("import", began), ("load", time.perf_counter())]
stages, more = json.loads(sys.argv[4]), json.loads(sys.argv[5])
sessions = []
create = onnxruntime.InferenceSession
def created(*arguments, **options):
    sessions.append(1)
    return create(*arguments, **options)
onnxruntime.InferenceSession = created
def say(message):
    for stage, heads in stages.items():
        if message.startswith(tuple(heads)) and marks[-1][0] != stage:
            marks.append((stage, time.perf_counter()))
folder = Path(sys.argv[3])
result = optimize(
    Path(sys.argv[1]), budget=sys.argv[2], output=folder / "o.onnx", plan_path=folder / "p.json",
    report_path=folder / "r.html", force=True, progress=say, **more,
)
marks.append(("", time.perf_counter()))
seconds = {}
for (stage, since), (_, until) in zip(marks, marks[1:]):
    seconds[stage] = seconds.get(stage, 0.0) + until - since
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
plan = result.plan
print(json.dumps({
    "seconds": seconds, "total_s": marks[-1][1] - began,
    "cpu_s": sum(u.ru_utime + u.ru_stime for u in used), "sessions": len(sessions),
    "nodes": len(result.before.graph.operations),
    "added": plan.planned.time_us / plan.baseline.time_us - 1, "engine": plan.engine,
}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model to optimize; with `is_run` False, it is planned without a run."""

    path: Path
    is_run: bool = True

    @property
    def name(self) -> str:
        """The subject's name on the page."""
        return self.path.stem if self.is_run else f"{self.path.stem}, no run"

    @property
    def options(self) -> dict[str, Any]:
        """The options of `planner.optimize`."""
        return {} if self.is_run else {"verify": False, "calibrate": False}


def optimize_row(tree: Path, subject: Subject, cache: Path) -> Row:
    """Measure the seconds of each stage of one `optimize` in a fresh process, with the code of `tree`."""
    env = {
        **os.environ,
        # what an older revision needs and this one does not may lie elsewhere
        "PYTHONPATH": os.pathsep.join([str(tree), os.environ.get("PYTHONPATH", "")]),
        "NUMBA_CACHE_DIR": str(cache / "numba"),  # of revisions that compile as they run
        "XDG_CACHE_HOME": str(cache),
    }
    with tempfile.TemporaryDirectory() as folder:
        asked = [str(subject.path), BUDGET, folder, json.dumps(STAGES), json.dumps(subject.options)]
        command = [sys.executable, "-c", _CHILD, *asked]
        done = subprocess.run(
            command, cwd=tree, env=env, capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise SystemExit(f"{subject.path} in {tree}: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


@contextmanager
def trees_of(before: str | None) -> Iterator[dict[str, Path]]:
    """Yield the trees by name: the working tree, and before it a revision that is checked out for the
    context."""
    if before is None:
        yield {"now": ROOT}
        return
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run(
            [*git, "add", "--detach", str(tree), before], check=True, capture_output=True
        )
        try:
            yield {before: tree, "now": ROOT}
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True, capture_output=True)


def measure(subjects: Sequence[Subject], before: str | None, runs: int) -> list[Row]:
    """Measure each model's first run and the quickest of several later ones, in each tree, in turns."""
    rows: list[Row] = []
    with trees_of(before) as trees, tempfile.TemporaryDirectory() as caches:
        for number, subject in enumerate(subjects):
            for run, times in (("first", 1), ("later", runs)):
                found: dict[str, list[Row]] = {name: [] for name in trees}
                for _ in range(times):
                    for name, tree in trees.items():
                        cache = Path(caches) / name / str(number)
                        cache.mkdir(parents=True, exist_ok=True)
                        found[name].append(optimize_row(tree, subject, cache))
                for name, tried in found.items():
                    row = min(tried, key=lambda r: r["total_s"])
                    rows.append({"model": subject.name, "tree": name, "run": run, **row})
                    print(subject.name, name, run, f"{row['total_s']:.1f} s", flush=True)
    return rows


def chains(folder: Path, sizes: Sequence[int]) -> list[Path]:
    """Write chains of about the given numbers of nodes to a folder."""
    paths = [folder / f"chain_{size}.onnx" for size in sizes]
    for size, path in zip(sizes, paths, strict=True):
        drawn.save("chain", size, path)
    return paths


def markdown(commands: Mapping[str, float], rows: Sequence[Row]) -> str:
    """Return the page."""
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
        "verification, in a fresh process each. *first*: nothing compiled or measured yet. *CPU*: of "
        "the process and those that it started. *sessions*: of ONNX Runtime, in the process itself. *no "
        "run*: `--no-verify --no-calibrate`. Trees ran in turns; *ratio*: the working tree's time over "
        "that of the revision beside it.",
        "",
    ]
    return "\n".join([*lines, *_table(rows)]) + "\n"


def _table(rows: Sequence[Row]) -> list[str]:
    known = {stage for row in rows for stage in row["seconds"]}
    stages = [stage for stage in ("import", *STAGES) if stage in known]
    lines = [
        "| model | operations | run | tree | "
        + " | ".join(stages)
        + " | all | CPU | sessions | ratio | plan adds |",
        "|---|---:|---|---|" + "---:|" * (len(stages) + 5),
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
            f"| {row['total_s']:.1f} | {row['cpu_s']:.1f} | {row['sessions']} | {ratio} "
            f"| {row['added']:+.2%} |"
        )
    return lines


def _asked() -> argparse.Namespace:
    parser = program("reports.speed", __doc__)
    parser.add_argument("models", nargs="*", type=Path, help="ONNX files [those of models/zoo]")
    parser.add_argument(
        "--chains", nargs="*", type=int, default=CHAINS, help="nodes of chains to be made, about"
    )
    parser.add_argument(
        "--unrun", nargs="*", type=Path, default=(), help="ONNX files to be planned with no run"
    )
    parser.add_argument(
        "--runs", type=int, default=RUNS, help="later runs, of which the quickest counts"
    )
    parser.add_argument(
        "--add", action="store_true", help="keep rows of other models, and times of other commands"
    )
    parser.add_argument("--before", metavar="REVISION", help="measured beside the working tree")
    return parser.parse_args()


def main() -> None:
    """Measure, and write the rows and the page."""
    asked = _asked()
    # modules of an installation are not compiled by each process
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    named = [m.resolve() for m in asked.models]
    models = named if named or asked.add else sorted(ZOO.glob("*.onnx"))
    planner = [sys.executable, "-c", "from planner.cli.main import run; run()"]
    commands = {"`planner --help`": least_s([*planner, "--help"], RUNS)}
    for model in models:
        command = [*planner, "analyze", str(model), "--json"]
        commands[f"`planner analyze {model.name}`"] = least_s(command, RUNS)
    with tempfile.TemporaryDirectory() as folder:
        subjects = [
            *(Subject(path=m) for m in [*models, *chains(Path(folder), asked.chains)]),
            *(Subject(path=m.resolve(), is_run=False) for m in asked.unrun),
        ]
        rows = measure(subjects, asked.before, asked.runs)
    if asked.add:
        known = read_rows(RESULT, {})
        names = {row["model"] for row in rows}
        rows = [*(row for row in known["rows"] if row["model"] not in names), *rows]
        commands = {**known["commands"], **commands}
    write_rows(RESULT, {"commands": commands, "rows": rows})
    PAGE.write_text(markdown(commands, rows), encoding="utf-8")


if __name__ == "__main__":
    main()
