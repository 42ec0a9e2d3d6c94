"""`reports/held.md` from its rows."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnxruntime as ort

MIB = 2**20
GOAL = 1.5


def write_page(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write the page."""
    path.write_text("\n".join(_lines(rows)) + "\n")


def _lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "# What default options hold"
    yield ""
    yield (
        f"`python -m reports.held`, onnxruntime {ort.__version__}, {platform.machine()}. Each figure is "
        "of a fresh process with default options: *growth* is the high-water mark of its resident memory "
        "less what was resident once the session and the inputs were there, after the first run and "
        "after the third; *held* is the arena's own figure after three runs. Outputs are dropped before "
        "the next run. The budget has inputs and initializers in it, growth has not. "
        "[Measuring](../docs/measuring.md#what-default-options-hold-and-what-moves-it) "
        "says what the variants are."
    )
    for row in rows:
        budget = row["budget_bytes"]
        yield ""
        title = f"{row['model']} at {row['budget']}: {budget / MIB:.1f} MiB"
        yield f"## {title}, {GOAL} times that {GOAL * budget / MIB:.1f}"
        yield ""
        yield "| variant | held MiB | growth MiB, run 1 | run 3 | times the budget | bits |"
        yield "|---|---:|---:|---:|---:|---|"
        original = next(v for v in row["variants"] if v["variant"] == "original")
        for found in row["variants"]:
            first, *_, last = found["growth_bytes"]
            same = "same" if found["digest"] == original["digest"] else "differ"
            held = max(found["held_bytes"]) / MIB
            yield (
                f"| {found['variant']} | {held:.1f} | {first / MIB:.1f} | {last / MIB:.1f} | "
                f"{last / budget:.2f} | {same} |"
            )
