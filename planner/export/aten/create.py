"""Tensors made from nothing. Most are folded into constants before they reach these rules."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from planner.export.aten.registry import Dim, Lowering, Result, dtype_of, lowers


@lowers("zeros", "zeros_like", "new_zeros", "empty_like", "empty.memory_format", "new_empty")
def zeros(low: Lowering, *_: object, **__: object) -> Result:
    """Also stands for memory left uninitialized."""
    return low.filled(0)


@lowers("ones", "ones_like", "new_ones")
def ones(low: Lowering, *_: object, **__: object) -> Result:
    return low.filled(1)


@lowers("full", "full_like", "fill.Scalar")
def full(low: Lowering, like: object, value: float, **_: object) -> Result:
    del like
    return low.filled(value)


@lowers("new_full")
def new_full(low: Lowering, x: fx.Node, sizes: Sequence[Dim], value: float, **_) -> Result:
    del x, sizes
    return low.filled(value)


@lowers("arange", "arange.start", "arange.start_step")
def arange(low: Lowering, *bounds: Dim, **_: object) -> Result:
    start, stop, step = {1: (0, *bounds, 1), 2: (*bounds, 1), 3: bounds}[len(bounds)]
    ends = (low.op("Squeeze", low.extent(end), tag="bound") for end in (start, stop, step))
    return low.op("Range", *ends)


@lowers("triu", "tril")
def triangle(low: Lowering, x: fx.Node, diagonal: int = 0) -> Result:
    """The part on or beyond a diagonal; booleans take a detour that runtimes can follow."""
    upper = int("triu" in str(low.node.target))
    value = low.cast(low.value(x), dtype_of(x), torch.int64) if _boolean(x) else low.value(x)
    index = low.scalar(diagonal, torch.int64)
    if not _boolean(x):
        return low.op("Trilu", value, index, upper=upper)
    part = low.op("Trilu", value, index, tag="part", upper=upper)
    return low.cast(part, torch.int64, torch.bool, tag="")


def _boolean(x: fx.Node) -> bool:
    return dtype_of(x) == torch.bool
