"""Puts the parts together: `python -m tests.reliability` writes `reports/reliability.md`.

Each part is measured by a program of its own, which writes its JSON to `reports/reliability/`:

    python -m tests.reliability.fuzz --graphs 10000
    python -m tests.reliability.misuse
    python -m tests.reliability.kills
    python -m tests.reliability.long_run
    python -m tests.reliability.stages
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.reliability import fuzz, kills, long_run, misuse, stages

FOLDER = Path(__file__).parents[2] / "reports" / "reliability"
OUTPUT = FOLDER.with_suffix(".md")

SECTIONS: tuple[tuple[str, str, Callable[[Any], str], str], ...] = (
    (
        "fuzz",
        "Random graphs",
        fuzz.table,
        "Graphs are drawn over every class of operators that planner knows: functions, initializers "
        "that are shared or may be overridden, outputs that are read, inputs that are outputs, "
        "optional inputs and outputs, several element types, empty tensors and scalars, symbolic "
        "dims, computed shapes, dead nodes, user names like planner's own. `tests/fuzz/properties.py` "
        "says what must hold; its judge is a plain session, written without planner.",
    ),
    (
        "misuse",
        "Misuse",
        misuse.summary,
        "Each command runs in a process and a folder of its own: [reliability/misuse.md]"
        "(reliability/misuse.md) has a row for each, with its message.",
    ),
    (
        "kills",
        "Ended at any moment",
        kills.table,
        "Commands are ended by a signal at a random moment, or meet a full disk. Outputs must be "
        "whole or absent, inputs untouched, no process left, and no temporary file after the next run.",
    ),
    (
        "long_run",
        "A long run",
        long_run.table,
        "A training graph and two rewritten models of it train side by side, one session each.",
    ),
    (
        "stages",
        "Large graphs",
        stages.table,
        "Seconds of each stage of `planner optimize` on training graphs of small tensors.",
    ),
)


def main() -> None:
    """Write the report."""
    parts = [
        "# Reliability",
        "What planner withstands, measured; "
        "`python -m tests.reliability` puts this page together from what the programs of "
        "`tests/reliability/` wrote. They were not all run at one revision: the random graphs name "
        "theirs, the others were measured shortly before it, on two cores that had other work as well.",
    ]
    for name, title, table, about in SECTIONS:
        data = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        parts += [f"## {title}", about, f"`python -m tests.reliability.{name}`:", table(data)]
    OUTPUT.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(f"wrote {OUTPUT}")


if __name__ == "__main__":
    main()
