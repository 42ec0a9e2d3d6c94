"""What holds in the sessions that a script opens: bits, bytes that are held, growth of a process.

    python -m reports.session                      the samples of models/zoo
    python -m reports.session --graphs DIR         the larger graphs of that folder
    python -m reports.session DIR/a.onnx:60 ...    these too, at a percentage of their peak each
    python -m reports.session --loops              whole trainings by `planner run`, beside Python's own
    python -m reports.session --page-only          the page alone, from what was measured

Each row is one `planner.optimize` without copies to the host, with its verification, whose processes
open both files by `onnxruntime.InferenceSession(path)` and the rewritten one by
`planner.open_session(path)`. Where no plan is held within the budget, the row is made again at what the
error names, and says so. A loop is `models/scripts/train_session.py`, a script that knows nothing of
planner, started by `python` and by `planner run --budget P%`. Writes `session.json` and `session.md` in
this folder, a row at a time; the page counts the rows of `reports.networks`, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from reports.planned import planned
from reports.shared import FOLDER, ZOO, Row, line, mib, plain, program, read_rows, write_rows

RESULT, PAGE = FOLDER / "session.json", FOLDER / "session.md"
NETWORKS = FOLDER / "networks.json"
SAMPLES = "mlp_adamw:90 mlp_adamw:75 resnet18:80 resnet18:60 gpt:80 gpt:60 gpt:40"
LARGE = "mlp_s_adamw:80 gpt_s:60 resnet18_s:80 bert_base:80 gpt2_small:60 resnet50_b32:60"
"""Training graphs of `models/` with more layers and larger batches, for a machine with 24 GiB."""
LOOPS = (
    ("resnet18", "--batch 64 --image-size 64 --width 8", 70),
    ("unet", "--batch 8 --image-size 64 --width 8 --layers 3", 70),
    ("gpt2", "--batch 16 --seq 64 --width 128 --layers 4 --heads 4 --vocabulary 256", 60),
)
"""Networks of `models.build` with AdamW in the graph, their sizes, and the budget in percent."""
STEPS = 50
NEAR = 1.001
"""Factor on the budget for constants, which a session keeps beside the planned regions."""
FAR = 0.03
"""Largest error of a prediction that the page does not name."""


def row_of(model: Path, percent: int, time_limit_s: float) -> Row:
    """Measure one model at one budget."""
    asked = f"{percent}%"
    found = planned(model, None, time_limit_s, budgets=(asked,), swap="none")
    return {"model": model.stem, "asked": asked, **found}


def loop_of(net: str, size: str, percent: int, time_limit_s: float) -> Row:
    """A training of `STEPS` steps in plain Python and by `planner run`: losses that are equal."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "step.onnx"

        def losses(*command: str, said: str = "") -> list[str]:
            environment = {**os.environ, "XDG_CACHE_HOME": folder, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(
                [sys.executable, *command],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            )
            assert said in done.stderr, done.stderr
            return [line for line in done.stdout.splitlines() if "0x" in line]

        losses("-m", "models.build", net, *size.split(), "--optimizer", "adamw", "-o", str(model))
        train = ("-m", "models.scripts.train_session", "--model", str(model), "--steps", str(STEPS))
        plan = ("--explain", "--budget", f"{percent}%", "--time-limit", str(time_limit_s))
        plain = losses(*train)
        planned = losses("-m", "planner", "run", *plan, *train, said="planned now")
    equal = sum(one == other for one, other in zip(plain, planned, strict=True))
    return {
        "loop": net,
        "size": size,
        "asked": f"{percent}%",
        "steps": len(plain),
        "distinct": len(set(plain)),
        "equal": equal,
    }


def over_and_off(rows: Sequence[Row]) -> tuple[list[Row], str]:
    """(rows that hold more than their budget as `planner.open_session` opens the file; how far off the
    predictions of what is held are, as the end of a sentence). Where the budget bounds live bytes, since
    so little comes and goes, a page more or less is neither."""
    held = [row for row in rows if row.get("budget_of", "held") == "held"]
    over = [row for row in held if row["measured_held_bytes"] > NEAR * row["budget_bytes"]]
    off = [
        (abs(row[f"measured_{key}"] / row[key] - 1), row.get("network") or row.get("model"), of)
        for row in held
        for key, of in (
            ("held_bytes", "recommended"),
            ("default_held_bytes", "default options"),
            ("default_held_before_bytes", "the original, default options"),
        )
    ]
    most = max((share for share, _, _ in off if share <= FAR), default=0.0)
    far = [f"{name} ({of}: {share:.0%})" for share, name, of in sorted(off) if share > FAR]
    said = f"within {100 * most:.1f}%"
    return over, f"{said} in {len(off) - len(far)} of {len(off)} figures" + (
        f"; the others: {', '.join(far)}" if far else ""
    )


def page(rows: Sequence[Row], time_limit_s: float) -> str:
    """Return the tables."""
    loops = [row for row in rows if "loop" in row]
    rows = [row for row in rows if "loop" not in row]
    good = [row for row in rows if "why" not in row]
    same = [row for row in good if not row["plain_differ"]]
    over, off = over_and_off(good)
    ort = next((row["ort_version"] for row in good), "?")
    lines = [
        "# In the sessions that a script opens",
        "",
        f"onnxruntime {ort}, CPU; written by `python -m reports.session`, {time_limit_s:g} s for each "
        "plan, no copies to the host. MiB.",
        "",
        f"{len(same)} of {len(good)} rows give the same bits in plain sessions of both files "
        "(`onnxruntime.InferenceSession(path)`), all results compared; "
        f"{len(over)} hold more than the budget, by more than 0.1%, as `planner.open_session(path)` "
        "opens them. What is held "
        f"is predicted {off}, for each way of opening.",
        "",
        "*held* is what ONNX Runtime's arena took from the system, with inputs and initializers: as "
        "`planner.open_session` opens the rewritten file, and under default options, the original before "
        "the rewritten one, the second run included. *grown* is by how much a process of its own grew "
        "over three runs: the high-water mark of its resident set, less what it had before the first, "
        "session and inputs included. With `planner.open_session` it has the results of two steps in it, "
        "as a loop that keeps the last ones has them; *results* is one step's. *refused*: no plan was "
        "found that is held within the budget asked for; the row is for 2% above what the error named.",
        "",
        "| model | asked | budget | live | bits, plain | held | grown | results | default held | "
        "default grown | step time |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
        *(_line(row) for row in good),
        "",
    ]
    lines += [f"{row['model']}, {row['asked']}: {row['why']}" for row in rows if "why" in row]
    lines += ["", *_loops(loops), "", *_networks()]
    return "\n".join(lines).rstrip() + "\n"


def _loops(loops: Sequence[Row]) -> list[str]:
    head = [
        "## Whole trainings",
        "",
        f"`models/scripts/train_session.py` over {STEPS} steps of AdamW on real data, started by "
        "`python` and by `planner run --budget P%`, one thread: losses that are equal, bit for bit.",
        "",
        "| network | size | budget | losses equal | different from step to step |",
        "|---|---|---:|---:|---:|",
    ]
    return head + [
        f"| {row['loop']} | `{row['size']}` | {row['asked']} | {row['equal']} of {row['steps']} "
        f"| {row['distinct']} |"
        for row in loops
    ]


def _networks() -> list[str]:
    """Summarize the same from the rows of `reports.networks`."""
    rows = read_rows(NETWORKS, {}).values()
    looked = [row for row in rows if "plain_outputs" in row]
    same = [row for row in looked if not row["plain_differ"]]
    over, off = over_and_off(looked)
    held = [row for row in looked if row["budget_of"] == "held"]
    return [
        "## Networks of the catalogue",
        "",
        f"Of {len(looked)} networks in [`networks.md`](networks.md), {len(same)} give the same bits in "
        f"plain sessions of both files, in all results; {len(over)} of {len(held)} hold more than their "
        f"budget as `planner.open_session` opens them; what is held is predicted {off}.",
        "",
    ] + [
        f"{row['network']}: other bits in {', '.join(row['plain_differ'])}"
        for row in looked
        if row["plain_differ"]
    ]


def _line(row: Row) -> str:
    asked = row["asked"] if row["budget"] == row["asked"] else f"{row['asked']}, refused"
    return line(
        row["model"],
        asked,
        mib(row["budget_bytes"]),
        mib(row["planned_bytes"]),
        plain(row),
        mib(row["measured_held_bytes"]),
        mib(row["grown_bytes"]),
        mib(row["results_bytes"]),
        f"{mib(row['measured_default_held_before_bytes'])} -> "
        f"{mib(row['measured_default_held_bytes'])}",
        f"{mib(row['default_grown_before_bytes'])} -> {mib(row['default_grown_bytes'])}",
        "" if row["ratio"] is None else f"×{row['ratio']:.3f}",
    )


def _key(row: Row) -> tuple[str, ...]:
    return (row.get("model", ""), row.get("loop", ""), row["asked"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write the page."""
    parser = program("reports.session", __doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL:PERCENT")
    parser.add_argument("--graphs", type=Path, metavar="DIR")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds for each plan")
    parser.add_argument("--loops", action="store_true")
    parser.add_argument("--page-only", action="store_true")
    options = parser.parse_args(arguments)
    rows: list[Row] = read_rows(RESULT, [])
    folder, names = (options.graphs, LARGE) if options.graphs else (ZOO, SAMPLES)
    known = (name.partition(":") for name in names.split())
    asked = options.models or [f"{folder}/{name}.onnx:{percent}" for name, _, percent in known]
    pairs = (text.rpartition(":") for text in asked)
    work: list[Callable[[], Row]]
    work = [partial(row_of, Path(path), int(p), options.time_limit) for path, _, p in pairs]
    if options.loops:
        work = [partial(loop_of, *loop, options.time_limit) for loop in LOOPS]
    for measured in () if options.page_only else work:
        row = measured()
        print(json.dumps(row), flush=True)
        rows = [known for known in rows if _key(known) != _key(row)] + [row]
        write_rows(RESULT, rows)
    PAGE.write_text(page(rows, options.time_limit), encoding="utf-8")


if __name__ == "__main__":
    main()
