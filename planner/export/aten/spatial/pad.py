"""Gradients of padding that repeats the border."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import fx

from planner.export.aten.registry import Lowering, Result, lowers, numpy_dtype, shape_of
from planner.export.aten.spatial.pool import along


@lowers(
    "replication_pad1d_backward",
    "replication_pad2d_backward",
    "replication_pad3d_backward",
    wide=True,
)
def replication_pad_backward(
    low: Lowering, dy: fx.Node, x: fx.Node, widths: Sequence[int]
) -> Result:
    """Sum the gradients of each element's copies, by a product with a 0-1 matrix per axis."""
    value = low.value(dy)
    for back in range(len(widths) // 2):
        size, before = int(shape_of(x)[-1 - back]), widths[2 * back]
        places = np.arange(int(shape_of(dy)[-1 - back])) - before
        matrix = np.zeros((len(places), size), numpy_dtype(low.dtype))
        matrix[np.arange(len(places)), places.clip(0, size - 1)] = 1
        value = along(low, value, -1 - back, matrix)
    return value
