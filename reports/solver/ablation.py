"""What each engine is worth: the same problems with each engine left out.

    python -m reports.solver.ablation [--limit SECONDS] [--instances FOLDER] [--only TEXT]
                                      [--graphs FILE ...] [--engines NAME ...] [--jobs COUNT]

Problems are random graphs, the published instances in FOLDER, training graphs made from formulas with
copies beside the operations, and the training graphs in `models/zoo` and of the FILEs, with recompute
alone, with copies on the stream of the operations (what `planner optimize` plans) and beside them, and
with copies beside them alone. Each run is a process of its own, with one thread and seed 0. Rows go
to `ablation.json` beside this file, one by one, and `ablation.md` is written from them; a row that is
there already is not measured again. Rows of an engine that is gone stay as the reason why it went.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from planner.plan.problem import Problem
from planner.plan.problemfile import problem_to_json
from planner.portfolio.table import POLICY
from reports.solver.build import Mode, with_budget
from reports.solver.moccasin import read, read_folder, short_name
from reports.solver.real import ZOO, real
from reports.solver.synthetic import FAMILIES, irregular, synthetic

RESULT = Path(__file__).with_name("ablation.json")
WORSE = 1e-3
"""A plan counts as worse, or better, where it takes so much more, or less, of the base order's time."""

_LEVERS: tuple[tuple[Mode, str, tuple[int, ...]], ...] = (
    ("recompute", "", (80, 60)),
    ("both", "serial", (60, 35)),
    ("both", "overlapped", (60, 35)),
    ("swap", "overlapped", (50,)),
)

_BESIDE: tuple[tuple[Mode, str, tuple[int, ...]], ...] = (
    ("both", "overlapped", (70, 35)),
    ("swap", "overlapped", (50,)),
)
"""Of the graphs made from formulas."""

_RECOMPUTE: tuple[Mode, str] = ("recompute", "")
_TIGHT = (80, 65, 55)
"""Budgets of the random graphs."""

_NONE = ""
"""Left out in the rows with all engines."""

Row = dict[str, Any]


def problems(
    instances: Path | None, only: str = "", graphs: Sequence[Path] = ()
) -> Iterator[tuple[str, Problem]]:
    """What is solved, by name; of the published instances, those whose names have `only`."""
    for operations in (100, 250):
        yield from _budgets(f"irregular {operations}", irregular(operations), _RECOMPUTE, _TIGHT)
    if instances is not None:
        for name, path in read_folder(instances, contains=only).items():
            if "_test" not in name:
                yield from _budgets(short_name(name), read(path).problem, _RECOMPUTE, _TIGHT)
    for family in FAMILIES:
        made = synthetic(family, 1_000)
        for mode, copies, percents in _BESIDE:
            yield from _budgets(f"{family} 1,000, {mode}", made, (mode, copies), percents)
    for path in (*sorted(ZOO.glob("*.onnx")), *graphs):
        problem = real(path)
        for mode, copies, percents in _LEVERS:
            yield from _budgets(f"{path.stem}, {mode}", problem, (mode, copies), percents)


def _budgets(
    name: str, problem: Problem, kind: tuple[Mode, str], percents: tuple[int, ...]
) -> Iterator[tuple[str, Problem]]:
    mode, copies = kind
    for percent in percents:
        said = ", ".join(part for part in (name, copies, f"{percent}%") if part)
        yield said, with_budget(problem, percent, mode, overlap=copies == "overlapped")


def engines() -> list[str]:
    """Every engine of the portfolio, by name."""
    turns = (*POLICY.rough, *POLICY.serial, *POLICY.other)
    return sorted({turn.engine.name for turn in turns})


def measure(problem: Problem, left_out: str, limit_s: float) -> Row:
    """Figures of one run (`reports.solver.ablation_run`)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "problem.json").write_text(problem_to_json(problem), encoding="utf-8")
        text = f"[engines.{left_out}]\nenabled = false\n" if left_out else ""
        (folder / "params.toml").write_text(text, encoding="utf-8")
        command = [
            sys.executable, "-m", "reports.solver.ablation_run",
            str(folder / "problem.json"), str(folder / "params.toml"), str(limit_s),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the search ended with {done.returncode}: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def markdown(rows: list[Row]) -> str:
    """The page: a row for each engine."""
    whole = {row["problem"]: row for row in rows if row["left_out"] == _NONE}
    lines = [
        "# What each engine is worth",
        "",
        "Written by `python -m reports.solver.ablation`: each problem solved with every engine, and "
        "again with one left out, in processes of their own on one thread. *worse*, *better*: the "
        f"plan takes over {WORSE:.1%} of the base order's time more, or less. *looser*: the bound is "
        "that much lower. *first plan*: seconds to the first plan that fits, summed over the problems "
        "where both find one, beside those with the engine. Runs are limited by time, so that a "
        f"machine with other work moves some of them either way ({rows[0]['limit_s']:g} s each).",
        "",
        "| left out | problems where it has a turn | plan worse | no plan any more | plan better "
        "| bound looser | first plan | seconds, of those with it |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    known = engines()
    for engine in sorted({row["left_out"] for row in rows} - {_NONE}):
        pairs = [
            (whole[row["problem"]], row)
            for row in rows
            if row["left_out"] == engine and row["problem"] in whole
        ]
        said = engine if engine in known else f"{engine} (gone since)"
        lines.append(_line(said, [pair for pair in pairs if engine in pair[0]["used"]]))
    lines += ["", "| problem | added | bound | found by | first plan s | seconds |"]
    lines.append("|---|---:|---:|---|---:|---:|")
    for name, row in whole.items():
        if row["added"] is None:
            lines.append(
                f"| {name} | none ({row['least']:.1%}) | {row['bound']:.3%} | | "
                f"| {row['seconds']:.1f} |"
            )
        else:
            lines.append(
                f"| {name} | {row['added']:.3%} | {row['bound']:.3%} | {row['engine']} "
                f"| {row['first_s']:.1f} | {row['seconds']:.1f} |"
            )
    return "\n".join(lines) + "\n"


def _line(said: str, pairs: list[tuple[Row, Row]]) -> str:
    both = [(a, b) for a, b in pairs if a["added"] is not None and b["added"] is not None]
    worse = sum(b["added"] > a["added"] + WORSE for a, b in both)
    better = sum(b["added"] < a["added"] - WORSE for a, b in both)
    lost = sum(a["added"] is not None and b["added"] is None for a, b in pairs)
    looser = sum(b["bound"] < a["bound"] - WORSE for a, b in both)
    before, after = (sum(pair[i]["seconds"] for pair in both) for i in (0, 1))
    share = f"{after / before:.0%}" if before else ""
    firsts = [(a["first_s"], b["first_s"]) for a, b in both]
    first = f"{sum(b for _, b in firsts):.1f} s beside {sum(a for a, _ in firsts):.1f} s"
    return (
        f"| {said} | {len(pairs)} | {worse} | {lost} | {better} | {looser} "
        f"| {first if both else ''} | {share} |"
    )


def main() -> None:
    """Measure what is not there yet, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m reports.solver.ablation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--limit", type=float, default=20.0, metavar="SECONDS", help="[20]")
    parser.add_argument("--instances", type=Path, metavar="FOLDER", help="published instances")
    parser.add_argument("--only", default="", metavar="TEXT", help="published instances with it")
    parser.add_argument("--graphs", nargs="+", type=Path, default=[], metavar="FILE")
    parser.add_argument("--engines", nargs="+", metavar="NAME", help="[all]")
    parser.add_argument("--jobs", type=int, default=1, metavar="COUNT", help="problems at once [1]")
    parser.add_argument("--output", type=Path, default=RESULT)
    asked = parser.parse_args()
    rows: list[Row] = json.loads(asked.output.read_text()) if asked.output.exists() else []

    def add(key: tuple[str, str], row: Row) -> Row:
        name, left_out = key
        rows.append({"problem": name, "left_out": left_out, "limit_s": asked.limit, **row})
        asked.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        asked.output.with_suffix(".md").write_text(markdown(rows), encoding="utf-8")
        print(name, "without", left_out or "nothing", row["added"], flush=True)
        return row

    def ablate(named: tuple[str, Problem]) -> None:
        name, problem = named
        there = {row["left_out"]: row for row in rows if row["problem"] == name}
        whole = there.get(_NONE) or add((name, _NONE), measure(problem, _NONE, asked.limit))
        for engine in asked.engines or engines():
            if engine in whole["used"] and engine not in there:
                add((name, engine), measure(problem, engine, asked.limit))

    with ThreadPoolExecutor(asked.jobs) as pool:
        list(pool.map(ablate, problems(asked.instances, asked.only, asked.graphs)))


if __name__ == "__main__":
    main()
