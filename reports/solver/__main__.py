"""Measure the solver: on published instances, against published methods, on training graphs, by size.

    python -m reports.solver moccasin --instances FOLDER --limits 60 300
    python -m reports.solver checkmate --sizes 50 100 --limits 300
    python -m reports.solver real MODEL.onnx ...       (the samples of models/zoo if none is named)
    python -m reports.solver synthetic --sizes 1000 3000 --percents 70 50
    python -m reports.solver growth
    python -m reports.solver tables                    only write solver.md from the rows there are

Rows go to `reports/solver/PART.json` one by one, and `reports/solver.md` is written from all of them.
A row that is measured again replaces the old one; the others stay with --keep.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from reports.shared import program, write_rows
from reports.solver.parts import PARTS
from reports.solver.row import METHODS, measure
from reports.solver.synthetic import FAMILIES
from reports.solver.tables import FOLDER, KEY, Row, key_of, markdown, rows_of


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a part of the measurements, or write the tables."""
    options = _options(arguments)
    if options.part != "tables":
        _measure(options)
    _write_report(options.folder)


def _write_report(folder: Path) -> None:
    (folder.parent / "solver.md").write_text(markdown(folder), encoding="utf-8")


def _measure(options: argparse.Namespace) -> None:
    folder: Path = options.folder
    rows: list[Row] = rows_of(options.part, folder) if options.keep or options.missing else []
    for case in PARTS[options.part](options):
        key = tuple(case.key[name] for name in KEY)
        place = next((i for i, row in enumerate(rows) if key_of(row) == key), len(rows))
        if options.missing and place < len(rows):
            continue
        figures = measure(
            list(case.problems.values()),
            case.method,
            limit_s=case.limit_s,
            workers=options.workers,
            seed=options.seed,
        )
        if "order" in figures:
            figures["order"] = list(case.problems)[figures["order"]]
        row = {**case.key, **figures}
        rows[place : place + 1] = [row]
        write_rows(folder / f"{options.part}.json", rows)
        _write_report(folder)
        said = {k: row.get(k) for k in ("added", "bound", "gap", "seconds", "engine", "error")}
        print(*key, {k: v for k, v in said.items() if v is not None}, flush=True)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = program("reports.solver", __doc__)
    parser.add_argument("part", choices=[*PARTS, "tables"])
    parser.add_argument("models", nargs="*", type=Path, help="ONNX files, for real")
    parser.add_argument("--instances", type=Path, metavar="FOLDER", help="published instances")
    parser.add_argument("--only", default="", metavar="TEXT", help="instances whose name has it")
    parser.add_argument("--limits", type=float, nargs="+", metavar="SECONDS", help="[60]")
    parser.add_argument("--percents", type=float, nargs="+", help="budgets, of the base peak")
    parser.add_argument("--modes", nargs="+", choices=["recompute", "swap", "both"])
    parser.add_argument("--serial", action="store_true", help="also copies that add to the step")
    parser.add_argument("--methods", nargs="+", choices=METHODS, help="of moccasin and checkmate")
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--sizes", type=int, nargs="+", metavar="OPERATIONS")
    parser.add_argument("--hardware", default="a100-40gb", help="profile, for real [a100-40gb]")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="keep rows that are not measured again")
    parser.add_argument("--missing", action="store_true", help="measure only rows not there yet")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where rows are kept")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
