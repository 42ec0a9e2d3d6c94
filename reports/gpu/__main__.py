"""What has to be asked of a machine with an NVIDIA GPU: `python -m reports.gpu --graphs FOLDER`.

    python -m reports.gpu --graphs FOLDER        as much as fits into ten minutes; again: what is left
    python -m reports.gpu bits control           these alone
    python -m reports.gpu --rehearse             the same checks on the CPU, which prove nothing of a GPU

Each check is a process of its own of at most 120 s. First comes what everything else rests on
(`reports/gpu/basics.py`), then fused operations (`reports/gpu/fused.py`) and plans of large graphs
(`reports/gpu/large.py`), whose ONNX files are in FOLDER. Rows are kept in `reports/gpu.json` as they are
measured, with the card's name; what is there is not measured again (but with `--again`), failures
included; what was too slow is, since times of operations are kept, and a plan whose files are gone where
they are read. Without a card the command says so and ends with status 2; with 1 where a check fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from planner.cost.measured import device_names
from planner.processes.children import run_child
from reports.gpu.child import answer_in
from reports.shared import FOLDER, Row, program, read_rows, write_rows

RESULT = FOLDER / "gpu.json"
_CHECK_S = 120.0
_SLOW = "too slow"
_LEAST_S = 20.0
"""The least time left at which a check may begin."""


def names_of(*, cuda: bool) -> list[str]:
    """Return the names of all checks, in order."""
    from reports.gpu import basics, fused
    from reports.gpu.large import CASES, REHEARSED

    cases = CASES if cuda else REHEARSED
    return [*basics.CHECKS, *fused.CHECKS, *(name for case in cases for name in case.checks)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks, and keep their answers."""
    parser = program("reports.gpu", __doc__)
    parser.add_argument("checks", nargs="*", help="names; all, where none is given")
    parser.add_argument("--seconds", type=float, default=600.0, help="for this call")
    parser.add_argument("--graphs", type=Path, default=FOLDER, help="folder of the large graphs")
    parser.add_argument("--work", type=Path, help="where plans stay from call to call")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU; nothing is written")
    parser.add_argument("--again", action="store_true", help="measure what is measured already")
    asked = parser.parse_args(arguments)
    cards = () if asked.rehearse else device_names()
    if not cards and not asked.rehearse:
        print("no NVIDIA GPU is here: nothing is measured (--rehearse: the CPU)", file=sys.stderr)
        return 2
    known = names_of(cuda=not asked.rehearse)
    strange = next((name for name in asked.checks if name not in known), None)
    if strange is not None:
        parser.error(f"there is no check {strange!r}; there are {', '.join(map(repr, known))}")
    rows: dict[str, Row] = {} if asked.rehearse else read_rows(RESULT, {})
    kept = [n for n, r in rows.items() if r["cards"] == [*cards] and r.get("error") != _SLOW]
    left = [name for name in asked.checks or known if asked.again or name not in kept]
    work = asked.work or Path(tempfile.gettempdir()) / "planner-gpu"
    wanted = [*dict.fromkeys(n for name in left for n in (missing_plan(name, work), name) if n)]
    until = time.monotonic() + asked.seconds
    holds = True
    for place, name in enumerate(wanted):
        left_s = until - time.monotonic()
        if left_s < _LEAST_S:
            print(f"{len(wanted) - place} checks are left: call again", file=sys.stderr)
            break
        if missing_plan(name, work) not in ("", name):
            continue  # the plan's row says why; the next call tries again
        row = measured(name, asked, work, min(_CHECK_S, left_s))
        holds = holds and bool(row.get("holds"))
        print(json.dumps({"check": name, **row}), flush=True)
        if not asked.rehearse:
            rows[name] = {"cards": [*cards], **row}
            write_rows(RESULT, rows)
    return 0 if holds else 1


def missing_plan(name: str, work: Path) -> str:
    """Return the check that makes the plan which a check reads, or ""; "" where its files are there."""
    title = name.rpartition(": ")[0]
    is_there = not title or (work / title / "facts.json").is_file()
    return "" if is_there else f"{title}: plan"


def measured(name: str, asked: argparse.Namespace, work: Path, limit_s: float) -> Row:
    """Return the answer of one check, or the reason why there is none."""
    command = [sys.executable, "-m", "reports.gpu.child", name, "--work", str(work)]
    command += ["--graphs", str(asked.graphs), *(["--rehearse"] if asked.rehearse else [])]
    start = time.monotonic()
    try:
        done = run_child(command, timeout_s=limit_s)
    except subprocess.TimeoutExpired:
        return {"seconds": round(limit_s, 1), "error": _SLOW, "holds": False}
    seconds = round(time.monotonic() - start, 1)
    found = answer_in(done.stdout)
    if found is None:
        said = (done.stderr or done.stdout).strip()[-600:]
        return {"seconds": seconds, "status": done.returncode, "error": said, "holds": False}
    return {"seconds": seconds, **found}


if __name__ == "__main__":
    sys.exit(main())
