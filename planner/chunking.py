"""Whether operations may run in chunks of rows.

split   "none": each operation runs as a whole.
        "auto": those that are too large for the budget run in chunks, with their neighbours, where
        no plan fits without that, or the plan takes less time. Where sums are added up in parts,
        or a kernel takes another path for fewer rows, the numbers are the same up to rounding.
"""

from __future__ import annotations

from typing import Literal

from planner.errors import UsageError

SplitMode = Literal["none", "auto"]
SPLIT: tuple[SplitMode, ...] = ("none", "auto")

MAX_CHUNKS = 64
"""Of one region: each has nodes of its own."""


def check_split(split: str, budget: str | None) -> None:
    """Raise UsageError where it is no choice, or there is no budget for anything to be too large for."""
    if split not in SPLIT:
        raise UsageError(f"--split is none or auto, not {split!r}")
    if split == "auto" and budget is None:
        raise UsageError(
            "--split auto splits what is too large for a budget: give a --budget beside --max-slowdown"
        )
