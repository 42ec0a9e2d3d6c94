"""How good a plan is after how long, and whether it is the same plan again: `python -m reports.answers`.

    python -m reports.answers                  the samples of models/zoo
    python -m reports.answers --graphs DIR     the larger graphs of that folder, too

Plans are made with `--reproducible`: time limits count work in place of seconds (`planner.clock`), so
that the table is the same on any machine, however busy. Nothing is verified. At the last limit each plan
is made twice, and the second time the files must be the same, to the byte. Writes `answers.json` and
`answers.md` in this folder, a row at a time.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from planner import optimize
from planner.errors import InfeasibleBudgetError
from reports.shared import FOLDER, ZOO, Row, line, program, read_rows, write_rows

RESULT, PAGE = FOLDER / "answers.json", FOLDER / "answers.md"
LIMITS_S = (2, 4, 8, 16)
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
)


def made(model: Path, budget: str, how: dict[str, Any], limit_s: float) -> tuple[float, str]:
    """(step of a plan over the model's own, digest of the rewritten file and the plan)."""
    with tempfile.TemporaryDirectory() as folder:
        output, plan = Path(folder) / "planned.onnx", Path(folder) / "plan.json"
        result = optimize(
            model,
            budget=budget,
            output=output,
            plan_path=plan,
            verify=False,
            reproducible=True,
            time_limit_s=limit_s,
            **how,
        )
        digest = hashlib.sha256(output.read_bytes() + plan.read_bytes()).hexdigest()
    return result.plan.planned.time_us / result.plan.baseline.time_us, digest


def row_of(model: Path, budget: str, how: dict[str, Any]) -> Row:
    """One model at one budget, over all limits."""
    taken: dict[str, float | None] = {}
    digest = ""
    for limit_s in LIMITS_S:
        try:
            taken[str(limit_s)], digest = made(model, budget, how, limit_s)
        except InfeasibleBudgetError:
            taken[str(limit_s)] = None
    same = made(model, budget, how, LIMITS_S[-1])[1] == digest
    return {"model": model.stem, "budget": budget, **how, "taken": taken, "same": same}


def page(rows: Sequence[Row]) -> str:
    """The table."""
    complete = [row for row in rows if None not in row["taken"].values()]
    off = [max(row["taken"].values()) / min(row["taken"].values()) - 1 for row in complete]
    near = [row for row in complete if row["taken"]["4"] <= 1.05 * min(row["taken"].values())]
    lines = [
        "# How good a plan is after how long",
        "",
        "Written by `python -m reports.answers`: predicted step over the model's own, of plans with "
        "recompute and order alone (on the card: with residence and copies, too), by the time limit. "
        "Limits count work, in about the seconds of one core (`--reproducible`): the table does not "
        "depend on the machine.",
        "",
        f"After 4 s, {len(near)} of {len(rows)} plans are within 5% of the best that was found; over all "
        f"limits plans differ by at most {100 * max(off, default=0.0):.1f}%. "
        f"{sum(row['same'] for row in rows)} of {len(rows)} files and plans came out the same, to the "
        "byte, a second time.",
        "",
        f"| model | budget | on | {' | '.join(f'{s} s' for s in LIMITS_S)} | the same again |",
        f"|---|---:|---|{'---:|' * len(LIMITS_S)}---|",
        *(_line(row) for row in rows),
        "",
    ]
    return "\n".join(lines)


def _line(row: Row) -> str:
    taken = (row["taken"][str(s)] for s in LIMITS_S)
    cells = ["none" if t is None else f"×{t:.4f}" for t in taken]
    where = row.get("hardware", "CPU")
    again = "yes" if row["same"] else "**no**"
    return line(row["model"], row["budget"], where, *cells, again)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write."""
    parser = program("reports.answers", __doc__)
    parser.add_argument("--graphs", type=Path, metavar="DIR")
    options = parser.parse_args(arguments)
    asked = [(ZOO / f"{name}.onnx", budget, how) for name, budget, how in SAMPLES]
    if options.graphs:
        asked += [(options.graphs / f"{name}.onnx", budget, how) for name, budget, how in LARGE]
    rows: list[Row] = read_rows(RESULT, [])
    for model, budget, how in asked:
        row = row_of(model, budget, how)
        print(json.dumps(row), flush=True)
        key = (row["model"], row["budget"])
        rows = [known for known in rows if (known["model"], known["budget"]) != key] + [row]
        write_rows(RESULT, rows)
        PAGE.write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
