"""ONNX files that others made: `python -m tests.files [WORD...]`.

    python -m tests.files                 every model of the onnx package, and of eleven wheels
    python -m tests.files onnx silero     those with one of these words in the name
    python -m tests.files --page-only     the page alone, from what was measured

Each is planned for the CPU, within 60% of its peak of live bytes (90%, or what the error names, where
there is no plan within that), written, and verified on ONNX Runtime, in a process of its own. Open dims
get the sizes that the error suggests, or those that the model needs (`SIZES`). The wheels are downloaded,
not installed. Rows go to `reports/files.json`, each as it is measured, and `reports/files.md` is written
from them.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from reports.shared import (
    FOLDER,
    Row,
    apart,
    line,
    mib,
    plain,
    program,
    read_rows,
    short,
    write_rows,
)

RESULT, PAGE = FOLDER / "files.json", FOLDER / "files.md"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write."""
    parser = program("tests.files", __doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--time-limit", type=float, default=3.0, help="seconds for each plan")
    parser.add_argument("--folder", type=Path, help="keeps what is downloaded")
    parser.add_argument("--page-only", action="store_true")
    options = parser.parse_args(arguments)
    rows: dict[str, Row] = read_rows(RESULT, {})
    with tempfile.TemporaryDirectory() as temporary:
        if not options.page_only:
            _measure(rows, options.words, options.folder or Path(temporary), options.time_limit)
    PAGE.write_text(page(list(rows.values()), options.time_limit), encoding="utf-8")


def _measure(rows: dict[str, Row], words: Sequence[str], folder: Path, limit_s: float) -> None:
    from tests.files.sources import of_onnx, of_wheels

    for file in (*of_onnx(), *of_wheels(folder)):
        if not words or any(word in file.name for word in words):
            rows[file.name] = _apart(file.name, file.path, limit_s)
            print(json.dumps(rows[file.name]), flush=True)
            write_rows(RESULT, rows)


def _apart(name: str, path: Path, limit_s: float) -> Row:
    """The row of a file, in a process that goes with it."""
    from tests.files.measure import row_of

    ended = {"file": name, "outcome": "refused", "why": "the process ended"}
    return apart(row_of, name, path, limit_s) or ended


def page(rows: Sequence[Row], limit_s: float) -> str:
    """The rows as Markdown."""
    import onnx
    import onnxruntime

    from tests.files.measure import SIZES

    run = [row for row in rows if row["outcome"] != "not loaded"]
    old = [row for row in run if row.get("brought_up")]
    of = Counter(row["outcome"] for row in run)
    verified = [row for row in run if row["outcome"] == "verified"]
    same = [row for row in verified if not row["plain_differ"]]
    refused = [row for row in run if row["outcome"] == "refused"]
    text = [
        "# Files of others",
        "",
        f"onnx {onnx.__version__}, onnxruntime {onnxruntime.__version__}, CPU; written by "
        f"`python -m tests.files`, {limit_s:g} s for each plan.",
        "",
        f"Of {len(rows)} files ONNX Runtime loads {len(run)}, {len(old)} of them once they are brought "
        "up to operator set 17 (`onnx.version_converter`), as the error says. Open dims have the sizes "
        f"that the error suggests, {len(SIZES)} files those that they need (`SIZES`). "
        f"Of these {of['verified']} are planned and "
        f"verified, {len(same)} of them with the same bits in plain sessions of both files; "
        f"{of['nothing to gain']} have nothing to gain (no plan needs less than the model as it is); "
        f"{len(refused)} are refused.",
        "",
        "| file | budget | live | held | bits, plain |",
        "|---|---|---|---:|---:|",
        *(_line(row) for row in verified),
        "",
        "## Refused",
        "",
        "| file | why |",
        "|---|---|",
        *(f"| {row['file']} | {short(row.get('why', 'verification'))} |" for row in refused),
        "",
        "## Nothing to gain",
        "",
        ", ".join(row["file"] for row in run if row["outcome"] == "nothing to gain") + ".",
        "",
        "## Not loaded by ONNX Runtime",
        "",
        "| file | why |",
        "|---|---|",
        *(f"| {r['file']} | {short(r['not_loaded'])} |" for r in rows if r not in run),
    ]
    return "\n".join(text) + "\n"


def _line(row: Row) -> str:
    cells = [
        row["file"],
        f"{100 * row['budget_bytes'] / row['peak_bytes']:.0f}%",
        " -> ".join(mib(row[key], ".2f") for key in ("peak_bytes", "planned_bytes")),
        mib(row.get("measured_held_bytes"), ".2f"),
        plain(row),
    ]
    return line(*cells)


if __name__ == "__main__":
    main()
