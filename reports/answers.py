"""One answer, at once, and the same each time: `python -m reports.answers [PART ...]`.

    python -m reports.answers                        all parts, on the samples of models/zoo and a Llama
    python -m reports.answers --graphs DIR           the larger graphs of that folder, too
    python -m reports.answers quality again limits   these parts

`quality`: plans after more and more time, made with `--reproducible`, whose time limits count work in
place of seconds (`planner.clock`): the table is the same on any machine. `wall`: the same by default
options, which cap the seconds, on a quiet machine, and while every core is kept busy. `again`: the same
command again and again, while every core is kept busy. `limits`: chains of up to 100,000 nodes, in
seconds. `agree`: whether all outputs say the same of a plan (`reports.agreement`). Nothing is verified.
Writes `answers.json` and `answers.md` in this folder, a row at a time.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from models import drawn
from planner import optimize
from planner.errors import InfeasibleBudgetError
from reports.agreement import agree_row
from reports.literature import built
from reports.shared import FOLDER, ZOO, Row, line, program, read_rows, write_rows

RESULT, PAGE = FOLDER / "answers.json", FOLDER / "answers.md"
LIMITS_S = (2, 5, 15, 60, 120)
CARD = {"device": "cuda", "hardware": "rtx-4090"}
SAMPLES: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("mlp_adamw", "75%", {}),
    ("resnet18", "60%", {}),
    ("gpt", "45%", {}),
)
LARGE: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("gpt_s", "50%", {}),
    ("bert_base", "80%", {}),
    ("resnet50_b32", "50%", {}),
    ("gpt2_small", "40%", {}),
    ("gpt2_medium_b8x1024", "16GB", CARD),
    ("gpt2_medium_b8x1024", "30%", CARD),
    ("gpt2_small", "60%", CARD),
    ("bert_base", "40%", CARD),
    ("resnet50_b32", "60%", CARD),
)
EXPORTED: tuple[tuple[str, str, dict[str, str]], ...] = (("llama", "74%", {}),)
"""Networks of `reports.peers`, exported first."""

V100 = {"device": "cuda", "hardware": "v100", "budget_of": "live"}
LARGER: tuple[tuple[tuple[str, ...], str, dict[str, str]], ...] = tuple(
    (network, "16GB", {**V100, "copies": copies})
    for network in (
        ("unet3d", "--optimizer", "adamw", "--image-size", "192"),
        ("resnet50", "--optimizer", "momentum", "--batch", "824"),
    )
    for copies in ("serial", "overlapped")
)
"""Sizes of `reports.literature`, built first."""

WALL_LIMITS_S = (2, 5, 15, 60)
AGREEING = ("90%", "75%", "60%", "45%")
"""Budgets at which each sample's outputs are compared, where there is a plan that changes something."""

AGAIN = {True: (20, 2), False: (3, 60)}
"""How often the same plan is requested, with `--reproducible` or without, and each time limit."""

CHAINS = (1_000, 4_000, 13_000, 40_000, 100_000)
"""The approximate numbers of nodes of the chains."""

CHAIN_LIMIT_S = 60

_SUMS, _CLOCK = 1e-12, 1e-3
"""Relative differences that do not count: of equal plans, whose durations are added up in another order;
and of plans of one round that had a little more or less time by the clock."""
_PLAN = re.compile(r"^planner: ([\d.]+) s: solving: [+-]")
"""A line of `-v` that reports a plan."""


def made(
    model: Path, budget: str, how: dict[str, Any], limit_s: float, *, reproducible: bool = True
) -> tuple[float, str]:
    """Return a plan's step time over the model's own, and a digest of the rewritten file and the plan."""
    with tempfile.TemporaryDirectory() as folder:
        output, plan = Path(folder) / "planned.onnx", Path(folder) / "plan.json"
        result = optimize(
            model,
            budget=budget,
            output=output,
            plan_path=plan,
            verify=False,
            reproducible=reproducible,
            time_limit_s=limit_s,
            **how,
        )
        digest = hashlib.sha256(output.read_bytes() + plan.read_bytes()).hexdigest()
    return result.plan.planned.time_us / result.plan.baseline.time_us, digest


def quality_row(model: Path, budget: str, how: dict[str, Any]) -> Row:
    """Measure one model at one budget, with all time limits."""
    return {
        "model": model.stem,
        "budget": budget,
        **how,
        "taken": _taken(model, budget, how, LIMITS_S, reproducible=True),
    }


def wall_row(model: Path, budget: str, how: dict[str, Any]) -> Row:
    """Measure as `quality_row` does, by the clock on the wall: on a quiet machine, then on a busy one."""
    asked = (model, budget, how, WALL_LIMITS_S)
    quiet = _taken(*asked, reproducible=False)
    with _busy():
        busy = _taken(*asked, reproducible=False)
    return {"model": model.stem, "budget": budget, **how, "quiet": quiet, "busy": busy}


def _taken(
    model: Path, budget: str, how: dict[str, Any], limits_s: Sequence[int], *, reproducible: bool
) -> dict[str, float | None]:
    """Return the share of the model's own step by time limit; None where no plan was found."""
    taken: dict[str, float | None] = {}
    for limit_s in limits_s:
        try:
            taken[str(limit_s)], _ = made(model, budget, how, limit_s, reproducible=reproducible)
        except InfeasibleBudgetError:
            taken[str(limit_s)] = None
    return taken


def again_row(model: Path, budget: str, how: dict[str, Any]) -> Row:
    """Measure the same request several times, while every core is busy."""
    row: Row = {"model": model.stem, "budget": budget, **how}
    made(model, budget, how, 1, reproducible=False)  # keeps operation times of the quiet machine
    with _busy():
        for name, asked in (("digests", True), ("default", False)):
            times, limit_s = AGAIN[asked]
            found = (made(model, budget, how, limit_s, reproducible=asked) for _ in range(times))
            row[name] = len({digest for _, digest in found})
    return row


@contextlib.contextmanager
def _busy() -> Iterator[None]:
    """Run two processes per core that only count."""
    context = multiprocessing.get_context("spawn")
    counting = [
        context.Process(target=_count, daemon=True) for _ in range(2 * (os.cpu_count() or 1))
    ]
    for process in counting:
        process.start()
    try:
        yield
    finally:
        for process in counting:
            process.kill()


def _count() -> None:
    number = 0
    while True:
        number += 1


def limits_row(nodes: int) -> Row:
    """A chain of so many nodes at half of its peak: how long the command took, when its first plan was
    there, and what it came to."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "chain.onnx"
        count = drawn.save("chain", nodes, model)
        command = [sys.executable, "-m", "planner", "optimize", str(model), "--budget", "50%"]
        command += ["--time-limit", str(CHAIN_LIMIT_S), "--no-verify", "-v", "--json"]
        command += ["-o", f"{folder}/planned.onnx", "--plan", f"{folder}/plan.json"]
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wall_s = time.monotonic() - began
    first = next((m for line in done.stderr.splitlines() if (m := _PLAN.match(line))), None)
    row: Row = {"nodes": count, "wall_s": wall_s, "code": done.returncode}
    if first is not None:
        row["first_plan_s"] = float(first[1])
    if done.returncode == 0:
        row["added"] = json.loads(done.stdout)["headline"]["predicted_time_ratio"] - 1
    return row


def page(rows: dict[str, list[Row]]) -> str:
    """Return the tables."""
    lines = [
        "# One answer, at once, and the same each time",
        "",
        "Written by `python -m reports.answers`.",
        "",
    ]
    for part, show in SECTIONS.items():
        if rows.get(part):
            lines += show(rows[part])
    return "\n".join(lines)


def _quality(rows: Sequence[Row]) -> list[str]:
    near = [row for row in rows if _is_near(row["taken"])]
    monotone = [row for row in rows if _is_monotone(row["taken"])]
    return [
        "## How good a plan is after how long",
        "",
        "Predicted step over the model's own, of plans with recompute and order alone (on a card: with "
        "residence and copies, too), by the time limit. Limits count work, in about the seconds of one "
        "core (`--reproducible`): the table does not depend on the machine. On the V100 budgets bound "
        "live bytes, as in [literature.md](literature.md).",
        "",
        f"After 5 s, {len(near)} of {len(rows)} plans are within 5% of the best that was found. In "
        f"{len(monotone)} of {len(rows)} rows no plan is dearer than one that was found in less time.",
        "",
        f"| model | budget | on | {' | '.join(f'{s} s' for s in LIMITS_S)} |",
        f"|---|---:|---|{'---:|' * len(LIMITS_S)}",
        *(_quality_line(row) for row in rows),
        "",
    ]


def _is_monotone(taken: dict[str, float | None], *, within: float = _SUMS) -> bool:
    times = [float("inf") if time is None else time for time in taken.values()]
    return all(more <= (1 + within) * less for less, more in itertools.pairwise(times))


def _quality_line(row: Row) -> str:
    return line(row["model"], row["budget"], _where(row), *_shares(row["taken"]))


def _shares(taken: dict[str, float | None]) -> list[str]:
    return ["none" if share is None else f"×{share:.4f}" for share in taken.values()]


def _wall(rows: Sequence[Row]) -> list[str]:
    runs = [row[state] for row in rows for state in ("quiet", "busy")]
    near = [taken for taken in runs if _is_near(taken)]
    monotone = [taken for taken in runs if _is_monotone(taken, within=_CLOCK)]
    return [
        "## The same by the clock on the wall",
        "",
        "Default options: limits are of work and of seconds, whichever is reached first. *Busy*: two "
        "processes a core did nothing but count meanwhile. Operation times are the same in a row: kept "
        "from the quiet machine, or the card's profile.",
        "",
        f"After 5 s, {len(near)} of {len(runs)} plans are within 5% of the row's best. In "
        f"{len(monotone)} of {len(runs)} rows no plan is dearer by more than {_CLOCK:.1%} than one that "
        "was found in less time.",
        "",
        line("model", "budget", "on", "machine", *(f"{s} s" for s in WALL_LIMITS_S)),
        line("---", "---:", "---", "---", *["---:"] * len(WALL_LIMITS_S)),
        *(
            line(row["model"], row["budget"], _where(row), state, *_shares(row[state]))
            for row in rows
            for state in ("quiet", "busy")
        ),
        "",
    ]


def _is_near(taken: dict[str, float | None]) -> bool:
    """Tell whether the plan after 5 s is within 5% of the best of the row."""
    found = [share for share in taken.values() if share is not None]
    soon = taken["5"]
    return soon is not None and soon <= 1.05 * min(found)


def _where(row: Row) -> str:
    copies = f", {row['copies']} copies" if "copies" in row else ""
    return row.get("hardware", "CPU") + copies


def _again(rows: Sequence[Row]) -> list[str]:
    return [
        "## The same each time",
        "",
        "Different pairs of rewritten file and plan, to the byte, while two processes a core counted: of "
        f"{AGAIN[True][0]} commands with `--reproducible --time-limit {AGAIN[True][1]}`, and of "
        f"{AGAIN[False][0]} with default options, which count work but end after {AGAIN[False][1]} s.",
        "",
        "| model | budget | on | `--reproducible` | default |",
        "|---|---:|---|---:|---:|",
        *(line(r["model"], r["budget"], _where(r), r["digests"], r["default"]) for r in rows),
        "",
    ]


def _limits(rows: Sequence[Row]) -> list[str]:
    return [
        "## The limit is the limit",
        "",
        "Chains at half of their peak, recompute and order alone: `planner optimize --budget 50% "
        f"--time-limit {CHAIN_LIMIT_S} --no-verify`, started anew, measured operation times and the page "
        "included. *All* is the command from start to end; *first plan* is when the first one was found.",
        "",
        "| nodes | first plan, s | all, s | the plan adds |",
        "|---:|---:|---:|---:|",
        *(
            f"| {r['nodes']:,} | {r.get('first_plan_s', float('nan')):.1f} | {r['wall_s']:.1f} | "
            + (f"{100 * r['added']:.2f}% |" if "added" in r else f"exit code {r['code']} |")
            for r in sorted(rows, key=lambda r: r["nodes"])
        ),
        "",
    ]


def _agree(rows: Sequence[Row]) -> list[str]:
    compared, off = sum(r["compared"] for r in rows), sum(len(r["differ"]) for r in rows)
    return [
        "## One number for one thing",
        "",
        "Step, ratio, peak, held bytes and budget of one plan, with measured times: what the outcome "
        "(short and with `-v`), the page, the JSON, `diff` and `explain` say, compared with the plan "
        f"file. Of {compared} statements {off} differ.",
        "",
        line("model", "budget", "statements", "that differ"),
        line("---", "---:", "---:", "---"),
        *(
            line(r["model"], r["budget"], r["compared"], ", ".join(r["differ"]) or "none")
            for r in rows
        ),
        "",
    ]


SECTIONS: dict[str, Callable[[Sequence[Row]], list[str]]] = {
    "quality": _quality,
    "wall": _wall,
    "again": _again,
    "limits": _limits,
    "agree": _agree,
}
"""By part, what writes its section, in the page's order."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write the page."""
    parser = program("reports.answers", __doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(SECTIONS))
    parser.add_argument("--graphs", type=Path, metavar="DIR")
    parser.add_argument("--nodes", type=int, nargs="*", default=CHAINS, help="of the chains")
    options = parser.parse_args(arguments)
    parts = options.parts or list(SECTIONS)
    asked = [(ZOO / f"{name}.onnx", budget, how) for name, budget, how in SAMPLES]
    larger = []
    if options.graphs:
        larger = [(options.graphs / f"{name}.onnx", budget, how) for name, budget, how in LARGE]
    rows: dict[str, list[Row]] = read_rows(RESULT, {})
    if "quality" in parts:
        for question in [*asked, *larger]:
            _note(rows, "quality", quality_row(*question))
        with tempfile.TemporaryDirectory() as folder:
            for name, budget, how in EXPORTED:
                model = _exported(name, Path(folder))
                _note(rows, "quality", quality_row(model, budget, how))
            for network, budget, how in LARGER:
                model = built(network[0], Path(folder), *network[1:])
                _note(rows, "quality", quality_row(model, budget, how))
    if "wall" in parts:
        for question in [*asked, *larger]:
            _note(rows, "wall", wall_row(*question))
    if "again" in parts:
        for question in asked:
            _note(rows, "again", again_row(*question))
    if "limits" in parts:
        for nodes in options.nodes:
            _note(rows, "limits", limits_row(nodes))
    if "agree" in parts:
        for model, budget in itertools.product(sorted(ZOO.glob("*.onnx")), AGREEING):
            with contextlib.suppress(InfeasibleBudgetError):
                if row := agree_row(model, budget):
                    _note(rows, "agree", row)


def _exported(name: str, folder: Path) -> Path:
    """Export a network, with PyTorch, and return the file."""
    from reports.peers.networks import NETWORKS
    from reports.peers.plans import export

    model = folder / f"{name}.onnx"
    export(NETWORKS[name], model)
    return model


def _note(rows: dict[str, list[Row]], part: str, row: Row) -> None:
    """Add or replace a row, and write the file."""
    print(json.dumps(row), flush=True)
    keys = ("model", "budget", "nodes", "copies")
    known = [r for r in rows.get(part, []) if any(r.get(k) != row.get(k) for k in keys)]
    rows[part] = [*known, row]
    write_rows(RESULT, rows)
    PAGE.write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
