"""Sums, means and maxima over axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import fx

from planner.export.aten.registry import (
    Lowering,
    Result,
    Rule,
    dtype_of,
    lowers,
    normalize,
    numpy_dtype,
    rank_of,
)


def _reduction(kind: str) -> Rule:
    def rule(
        low: Lowering,
        x: fx.Node,
        axes: Sequence[int] | None = None,
        keep: bool = False,
        **_: object,
    ) -> Result:
        """Reduces over every axis where none is named; the result's type may be wider."""
        rank = rank_of(x)
        source = low.cast(low.value(x), dtype_of(x), low.dtype)
        return low.reduce(kind, source, normalize(axes or range(rank), rank), keep=keep)

    return rule


lowers("sum", "sum.dim_IntList")(_reduction("Sum"))
lowers("mean", "mean.dim")(_reduction("Mean"))
lowers("amax")(_reduction("Max"))


@lowers("max.dim")
def largest(low: Lowering, x: fx.Node, axis: int, keep: bool = False) -> Result:
    """-> the largest along an axis, and where the first of them is."""
    dtype = dtype_of(x)
    computed = torch.int64 if dtype == torch.bool else dtype
    axis %= max(1, rank_of(x))
    value = low.cast(low.value(x), dtype, computed, "as_number")
    found = low.reduce("Max", value, [axis], keep=keep, tag="found")
    where = low.op("ArgMax", value, tag="where", axis=axis, keepdims=int(keep))
    return [low.cast(found, computed, dtype, "value"), where]


@lowers("histc")
def histc(low: Lowering, x: fx.Node, bins: int = 100, least: float = 0, most: float = 0) -> Result:
    """-> [bins]: how many elements are in each of as many equal ranges; those outside are in none."""
    if least == most:
        raise low.unsupported("the range follows from the values; give min and max")
    flat = low.reshape(low.value(x), [-1, 1], "flat")
    low_end, high_end = low.scalar(least, dtype_of(x)), low.scalar(most, dtype_of(x))
    inside = low.op(
        "And",
        low.op("GreaterOrEqual", flat, low_end, tag="from"),
        low.op("LessOrEqual", flat, high_end, tag="up_to"),
        tag="inside",
    )
    above = low.op("Sub", flat, low_end, tag="above")
    scaled = low.op("Mul", above, low.scalar(bins, dtype_of(x)), tag="scaled")
    place = low.op("Div", scaled, low.scalar(most - least, dtype_of(x)), tag="place")
    whole = low.op("Min", low.op("Floor", place, tag="floor"), low.scalar(bins - 1), tag="whole")
    ranges = low.builder.constant(np.arange(bins, dtype=numpy_dtype(dtype_of(x)))[None])
    here = low.op("And", low.op("Equal", whole, ranges, tag="equal"), inside, tag="here")
    return low.reduce("Sum", low.cast(here, torch.bool, low.dtype, "ones"), [0])
