"""Whether operations may run in chunks of rows.

split   "none": each operation runs as a whole.
        "auto": those that are too large for the budget run in chunks, with their neighbours, where
        no plan fits without that, or the plan takes less time. Where sums are added up in parts,
        or a kernel takes another path for fewer rows, the numbers are the same up to rounding.
"""

from __future__ import annotations

from typing import Literal

SplitMode = Literal["none", "auto"]

MAX_CHUNKS = 64
"""Of one region: each has nodes of its own."""
