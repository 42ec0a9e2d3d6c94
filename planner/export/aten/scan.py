"""Running sums and products along an axis, and reversal."""

from __future__ import annotations

import numpy as np
import torch
from torch import fx

from planner.export.aten.registry import Lowering, Result, lowers, rank_of, shape_of


@lowers("cumsum", wide=True)
def cumsum(low: Lowering, x: fx.Node, axis: int, *, dtype: torch.dtype | None = None) -> Result:
    del dtype
    value = low.operand(x, low.dtype)
    return low.op("CumSum", value, low.scalar(axis % max(1, rank_of(x)), torch.int64))


@lowers("cumprod", wide=True)
def cumprod(low: Lowering, x: fx.Node, axis: int, *, dtype: torch.dtype | None = None) -> Result:
    """Lower cumprod: expand [..., n] to [..., n, n], set 1 above the diagonal, and multiply rows."""
    del dtype
    value = low.operand(x, low.dtype)
    axis %= max(1, rank_of(x))
    count = int(shape_of(x)[axis])
    rows = low.op("Unsqueeze", value, low.integers(axis), tag="rows")
    dims = [1] * (rank_of(x) + 1)
    dims[axis], dims[axis + 1] = count, count
    upto = low.builder.constant(np.tri(count, dtype=np.bool_).reshape(dims))
    kept = low.op("Where", upto, rows, low.scalar(1), tag="kept")
    return low.reduce("Prod", kept, [axis + 1])


@lowers("flip")
def flip(low: Lowering, x: fx.Node, axes: list[int]) -> Result:
    count, rank = len(axes), rank_of(x)
    ends = [np.iinfo(np.int64).min] * count
    edges = ([-1] * count, ends, [axis % rank for axis in axes], [-1] * count)
    return low.op("Slice", low.value(x), *(low.integers(*edge) for edge in edges))
