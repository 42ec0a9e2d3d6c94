"""Sums, means and maxima over axes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from planner.export.aten.registry import (
    Lowering,
    Result,
    Rule,
    dtype_of,
    lowers,
    normalize,
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


@lowers("max.dim", "min.dim")
def extreme(low: Lowering, x: fx.Node, axis: int, keep: bool = False) -> Result:
    """-> the largest or smallest along an axis, and where the first of them is."""
    kind = "Max" if "max" in str(low.node.target) else "Min"
    dtype = dtype_of(x)
    computed = torch.int64 if dtype == torch.bool else dtype
    axis %= max(1, rank_of(x))
    value = low.cast(low.value(x), dtype, computed, "as_number")
    found = low.reduce(kind, value, [axis], keep=keep, tag="found")
    where = low.op(f"Arg{kind}", value, tag="where", axis=axis, keepdims=int(keep))
    return [low.cast(found, computed, dtype, "value"), where]
