"""Sums, means and maxima over axes."""

from __future__ import annotations

from collections.abc import Sequence

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
