"""How close the numbers of a rewritten model are to the original's, by what was done to it.

numbers    "exact": the same bits. Recompute, copies and another order change none.
           "rounding": the same up to rounding: what was added in one piece is added in several, or
           a kernel takes another path for fewer rows, or a fused node has another polynomial. Each
           output has to be within `RELATIVE`.
           "lossy": something was stored in a smaller type, as was asked for. What that does to each
           output is measured and said; only a NaN or an infinity that the original does not have
           is a failure.
"""

from __future__ import annotations

from typing import Literal

Numbers = Literal["exact", "rounding", "lossy"]
NUMBERS: tuple[Numbers, ...] = ("exact", "rounding", "lossy")

RELATIVE = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 1e-3, "float64": 1e-6}
"""Tolerance of an output by type, as a share of its largest element; other types must be equal."""


def least_exact(*numbers: Numbers) -> Numbers:
    """What holds of a model to which several things were done."""
    return max(numbers, key=NUMBERS.index)
