"""Random graphs on ONNX Runtime: `python -m tests.reliability.fuzz --minutes 60`.

Runs `tests.fuzz`: each seed is a graph, planned for three budgets; `tests.fuzz.properties` says what
is asked of every plan. With `--add`, seeds go on where the last run stopped, and counts add up as
long as planner and the fuzzer are what they were at that revision.

Writes `reports/reliability/fuzz.json`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import onnxruntime

from tests.fuzz.campaign import TWICE_ONE_IN, VERIFY_ONE_IN, Campaign, run_campaign

OUTPUT = Path(__file__).parents[2] / "reports" / "reliability" / "fuzz.json"
_CLASSES = (
    ("wrong", ("bits", "interface", "order", "verified", "survival")),
    ("over budget", ("bytes", "least")),
    ("tracebacks, crashes, hangs", ("traceback", "crash", "hang")),
    ("dearer at a larger budget", ("more",)),
    ("not repeatable, or not planned again", ("repeatable", "again")),
    ("refused without a stated reason", ("refusals",)),
)


def summary(done: Campaign, first_seed: int, minutes: float) -> dict[str, Any]:
    """What a campaign found, as JSON."""
    return {
        "revision": _revision(),
        "onnxruntime": onnxruntime.__version__,
        "first_seed": first_seed,
        "next_seed": done.next_seed,
        "graphs": done.graphs,
        "nodes": done.nodes,
        "minutes": round(minutes, 1),
        "counts": dict(sorted(done.counts.items())),
        "modes": dict(sorted(done.modes.items())),
        "traits": dict(sorted(done.traits.items())),
        "refusals": dict(done.refusals.most_common()),
        "findings": [list(f) for f in sorted(done.findings)],
    }


def added(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Both together."""
    found = {**now, "first_seed": before["first_seed"], "revision": before["revision"]}
    for key in ("graphs", "nodes", "minutes"):
        found[key] = before[key] + now[key]
    for key in ("counts", "modes", "traits", "refusals"):
        found[key] = dict(sorted((Counter(before[key]) + Counter(now[key])).items()))
    found["findings"] = before["findings"] + now["findings"]
    return found


def table(data: dict[str, Any]) -> str:
    """The section of the report."""
    counts, graphs = data["counts"], data["graphs"]
    plans = counts.get("planned", 0) + counts.get("unchanged", 0)
    lines = [
        f"{graphs:,} graphs (seeds {data['first_seed']:,} on, {data['nodes'] / graphs:.0f} nodes each"
        f" on average), three budgets each, in {data['minutes']:.0f} minutes, "
        f"onnxruntime {data['onnxruntime']}, with planner as of revision {data['revision']}.",
        "",
        "| | |",
        "|---|---:|",
        f"| plans, each run at up to four optimization levels | {counts.get('planned', 0):,} |",
        f"| budgets that the model meets as it is | {counts.get('unchanged', 0):,} |",
        f"| budgets with no plan, below the least that was named | {counts.get('infeasible', 0):,} |",
        f"| graphs refused for a stated reason | {counts.get('refused', 0):,} |",
        f"| plans made twice, and by `apply` (one graph in {TWICE_ONE_IN}) "
        f"| {counts.get('repeated', 0):,} |",
        f"| rewritten models planned again | {counts.get('planned again', 0):,} |",
        f"| verified by planner, under a hard cap too (one graph in {VERIFY_ONE_IN}) "
        f"| {counts.get('verified', 0):,} |",
    ]
    for name, kinds in _CLASSES:
        seeds = {seed for seed, kind, _ in data["findings"] if kind in kinds}
        lines.append(f"| **{name}** (of {plans:,} plans) | **{len(seeds)}** |")
    for seed, kind, details in data["findings"][:20]:
        lines.append(f"\nSeed {seed}, {kind}: {details[:200]}")
    some = sorted(data["traits"].items(), key=lambda item: -item[1])
    lines += ["", "Graphs with: " + ", ".join(f"{name} {count:,}" for name, count in some) + "."]
    return "\n".join(lines)


def _revision() -> str:
    return _git("rev-parse", "--short", "HEAD").stdout.strip() or "unknown"


def _changed_since(revision: str) -> bool:
    """Whether planner or the fuzzer are other than at a revision, or that cannot be told."""
    return _git("diff", "--quiet", revision, "--", "planner", "tests/fuzz").returncode != 0


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)


def main() -> int:
    """Run the campaign and write what it found."""
    parser = argparse.ArgumentParser(prog="python -m tests.reliability.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, help="how long")
    parser.add_argument("--graphs", type=int, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--add", action="store_true", help="add to what fuzz.json has")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument(
        "--piece", type=int, default=800, help="graphs after each of which the output is written"
    )
    asked = parser.parse_args()
    if asked.minutes is None and asked.graphs is None:
        parser.error("give --minutes or --graphs")
    before = json.loads(asked.output.read_text()) if asked.add else None
    if before is not None and _changed_since(before["revision"]):
        parser.error(f"{asked.output} is of revision {before['revision']}: leave out --add")
    deadline = time.monotonic() + 60 * (asked.minutes or float("inf"))
    left, found = asked.graphs or sys.maxsize, before
    while left > 0 and time.monotonic() < deadline:
        found = _piece(asked, found, min(left, asked.piece), (deadline - time.monotonic()) / 60)
        left -= asked.piece
        asked.output.write_text(json.dumps(found, indent=1) + "\n")
    assert found is not None
    print(f"\n{table(found)}")
    return int(bool(found["findings"]))


def _piece(
    asked: argparse.Namespace, before: dict[str, Any] | None, graphs: int, minutes: float
) -> dict[str, Any]:
    """So many more graphs, added to those before."""
    first = asked.first if before is None else before["next_seed"]
    told = 0 if before is None else before["graphs"]
    begun = time.monotonic()
    done = run_campaign(
        first_seed=first,
        graphs=graphs,
        minutes=None if minutes == float("inf") else minutes,
        workers=asked.workers,
        progress=lambda text: print(f"\r{told} + {text}", end="", file=sys.stderr, flush=True),
    )
    found = summary(done, first, (time.monotonic() - begun) / 60)
    return found if before is None else added(before, found)


if __name__ == "__main__":
    sys.exit(main())
