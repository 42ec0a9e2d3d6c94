"""Training as people write it, through the whole line: `python -m tests.recipes [WORD...]`.

    python -m tests.recipes                 every recipe, and every optimizer of torch.optim
    python -m tests.recipes optimizers vae  those with one of these words in the name
    python -m tests.recipes --missing       those without a row
    python -m tests.recipes --page-only     the page alone, from what was measured

Each is exported, which compares three steps with PyTorch's; its first step is compared once more by a
program that knows nothing of the exporter; and a plan whose live bytes are within 70% of the peak (85%
where none is, or what the error names) is verified on ONNX Runtime, in processes of their own.
Writes `reports/recipes.json`, a row at a time, and `reports/recipes.md` from it.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from reports.shared import FOLDER, Row, line, plain, program, read_rows, short, write_rows

RESULT, PAGE = FOLDER / "recipes.json", FOLDER / "recipes.md"

NEAR, NEAR_HALF = 1e-3, 0.05
"""How far the first step may be from PyTorch's, and where a type has 16 bits."""

ROWS = 8
"""Recipes that one process measures: its start takes longer than one of them."""

EXPECTED = ("optimizers.LBFGS", "optimizers.SparseAdam")
"""What must be refused: an optimizer that runs the step itself, and one of sparse gradients."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write."""
    parser = program("tests.recipes", __doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--time-limit", type=float, default=1.0, help="seconds for each plan")
    parser.add_argument("--missing", action="store_true", help="only what has no row yet")
    parser.add_argument("--page-only", action="store_true")
    options = parser.parse_args(arguments)
    from tests.recipes.measure import recipes

    known = recipes()
    rows: dict[str, Row] = read_rows(RESULT, {})
    asked = [n for n in known if not options.words or any(w in n for w in options.words)]
    apart = _Apart()
    for name in () if options.page_only else asked:
        if options.missing and name in rows:
            continue
        start = time.monotonic()
        rows[name] = apart.row(name, options.time_limit)
        rows[name]["seconds"] = time.monotonic() - start
        print(json.dumps(rows[name]), flush=True)
        rows = {n: rows[n] for n in known if n in rows}
        write_rows(RESULT, rows)
    PAGE.write_text(page(list(rows.values()), options.time_limit), encoding="utf-8")
    return 0


class _Apart:
    """A process apart that measures, and a new one after `ROWS` recipes or where it has ended."""

    def __init__(self) -> None:
        self._pool = self._made()

    def row(self, name: str, time_limit_s: float) -> Row:
        """The row of a recipe."""
        from tests.recipes.measure import row_named

        try:
            return self._pool.submit(row_named, name, time_limit_s).result()
        except BrokenProcessPool:
            self._pool = self._made()
            return {"recipe": name, "export": "the process ended"}

    def _made(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.recipes.measure", "planner.api"])
        return ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=ROWS)


def why_not(row: Row) -> str:
    """The first thing that does not hold; "" where all does."""
    if row["export"]:
        return row["export"]
    if row["unchecked"]:
        return f"not compared: {row['unchecked']}"
    if row["plan"] != "verified":
        return f"{row['plan']}: {row.get('why', 'verification')}"
    if row["identical"] != row["outputs"]:
        return "results differ"
    if row["plain_differ"]:
        return f"other bits in plain sessions: {', '.join(row['plain_differ'])}"
    if row["apart"] is not None and not row["apart"] <= (NEAR_HALF if row["is_half"] else NEAR):
        return f"{row['apart']:.1e} from PyTorch's step"
    return ""


def page(rows: Sequence[Row], time_limit_s: float) -> str:
    """The rows as Markdown."""
    import onnxruntime
    import torch

    from reports.planned import BUDGETS

    expected = [row for row in rows if row["recipe"].startswith(EXPECTED)]
    wanted = [row for row in rows if row not in expected]
    exported = [row for row in wanted if not row["export"]]
    checked = [row for row in exported if not row["unchecked"]]
    verified = [row for row in exported if row["plan"] == "verified"]
    plain = [row for row in verified if not row["plain_differ"]]
    judged = [row for row in exported if row["apart"] is not None]
    hold = [row for row in wanted if not why_not(row)]
    text = [
        "# Recipes",
        "",
        f"PyTorch {torch.__version__}, onnxruntime {onnxruntime.__version__}; written by "
        "`python -m tests.recipes`. Training as people write it, on networks of a few layers.",
        "",
        f"**{len(hold)} of {len(wanted)} hold ({len(hold) / max(len(wanted), 1):.0%})**: "
        f"{len(exported)} are exported, {len(checked)} of these compared with PyTorch's own step over "
        f"three steps as they are exported, {len(verified)} planned in {time_limit_s:g} s and verified, "
        f"{len(plain)} with the same bits where `onnxruntime.InferenceSession(path)` opens both files.",
        "",
        "LBFGS, which runs the step itself, and SparseAdam, whose gradients are sparse, must be refused "
        f"and are not counted: {sum(not row['export'] for row in expected)} of their {len(expected)} "
        "rows are exported.",
        "",
        f"*Apart*: the first step of {len(judged)} recipes, update included, beside PyTorch once more, "
        "by a program that knows nothing of the exporter: the norm of the difference of loss, gradients "
        f"and changes of parameters and buffers, by the norm of PyTorch's; at most {NEAR:g}, "
        f"{NEAR_HALF:g} with types of 16 bits. Empty where the step draws random numbers. *Plain*: "
        f"results that are the same bits in plain sessions. The budget is {BUDGETS[0]} of the peak of "
        f"live bytes, {BUDGETS[1]} where no plan fits, or what the error names.",
        "",
        "| recipe | nodes | apart | plan | identical | plain | KiB | seconds |",
        "|---|---:|---:|---|---:|---:|---|---:|",
        *(_line(row) for row in rows if not row["export"]),
        "",
    ]
    return "\n".join(
        text
        + _told("Not exported", [r for r in wanted if r["export"]])
        + _told("Exported, and does not hold", [r for r in exported if why_not(r)])
        + _told("Refused, as they must be", expected)
    )


def _told(title: str, rows: Sequence[Row]) -> list[str]:
    """A table of what is said of each; nothing where there is none."""
    if not rows:
        return []
    told = [f"| {row['recipe']} | {short(why_not(row) or '**exported**', 400)} |" for row in rows]
    return [f"## {title}", "", "| recipe | what is said |", "|---|---|", *told, ""]


def _line(row: Row) -> str:
    apart = row["apart"]
    cells = [
        f"**{row['recipe']}**" if why_not(row) else row["recipe"],
        f"{row['nodes']:,}",
        "" if apart is None else f"{apart:.0e}",
    ]
    if "outputs" in row:
        share = row["budget_bytes"] / row["peak_bytes"]
        cells += [
            f"{row['plan']}, {share:.0%}",
            f"{row['identical']} of {row['outputs']}",
            plain(row),
            f"{row['peak_bytes'] / 1024:.1f} -> {row['planned_bytes'] / 1024:.1f}",
        ]
    else:
        cells += [row["plan"], "", "", ""]
    cells.append(f"{row['seconds']:.0f}")
    return line(*cells)


if __name__ == "__main__":
    sys.exit(main())
