"""Views of a tensor's memory: a size, a stride for each axis, and where it begins."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import fx

from planner.export.aten.registry import Lowering, Result, lowers, rank_of, shape_of
from planner.export.emit import Value


@lowers("as_strided")
def as_strided(
    low: Lowering,
    x: fx.Node,
    sizes: Sequence[int],
    strides: Sequence[int],
    start: int | None = None,
) -> Result:
    """Elements of a contiguous tensor, which may occur more than once."""
    places = _places(low, sizes, strides, start)
    flat = low.reshape(low.value(x), [-1], "flat")
    if _is_all(places, x):
        return low.reshape(flat, sizes)
    return low.op("Gather", flat, low.builder.constant(places), axis=0)


@lowers("as_strided_scatter")
def as_strided_scatter(
    low: Lowering,
    x: fx.Node,
    source: fx.Node,
    sizes: Sequence[int],
    strides: Sequence[int],
    start: int | None = None,
) -> Result:
    """x with the elements of the view replaced."""
    places = _places(low, sizes, strides, start)
    if _is_all(places, x):
        return low.reshape(low.value(source), shape_of(x))
    if np.unique(places).size != places.size:
        raise low.unsupported("a view in which one element is at several places")
    return _written(low, low.reshape(low.value(x), [-1], "flat"), places, source)


@lowers("diagonal", "diagonal_copy")
def diagonal(low: Lowering, x: fx.Node, offset: int = 0, first: int = 0, second: int = 1) -> Result:
    """Picked by its places: a product with ones and zeros would spread what is not finite beside it."""
    rank, shape = rank_of(x), shape_of(x)
    first, second = first % rank, second % rank
    others = [axis for axis in range(rank) if axis not in (first, second)]
    wide = shape[second]
    turned = low.transpose(low.value(x), [*others, first, second], "turned")
    flat = low.reshape(turned, [*(shape[axis] for axis in others), shape[first] * wide], "flat")
    start = offset if offset >= 0 else -offset * wide
    if isinstance(low.shape[-1], int) and isinstance(wide, int):
        places = low.builder.constant(int(start) + np.arange(low.shape[-1]) * (wide + 1))
    else:
        ends = [
            low.op("Squeeze", low.extent(n), tag=t) for n, t in ((0, "0"), (low.shape[-1], "n"))
        ]
        count = low.op("Range", *ends, low.scalar(1, torch.int64), tag="count")
        apart = low.op("Mul", count, low.extent(wide + 1), tag="apart")
        places = low.op("Add", apart, low.extent(start), tag="places")
    return low.op("Gather", flat, places, axis=rank - 2)


@lowers("diagonal_scatter")
def diagonal_scatter(
    low: Lowering, x: fx.Node, source: fx.Node, offset: int = 0, first: int = 0, second: int = 1
) -> Result:
    """x with a diagonal replaced."""
    places = _diagonal(low, offset, first, second)
    return _written(low, low.reshape(low.value(x), [-1], "flat"), places, source)


@lowers("diagonal_backward")
def diagonal_backward(
    low: Lowering, dy: fx.Node, sizes: Sequence[int], offset: int, first: int, second: int
) -> Result:
    """Zeros, with a diagonal."""
    places = _diagonal(low, offset, first, second)
    return _written(low, low.filled(0, "zeros", [math.prod(sizes)]), places, dy)


@lowers("diag_embed")
def diag_embed(
    low: Lowering, x: fx.Node, offset: int = 0, first: int = -2, second: int = -1
) -> Result:
    """Zeros, with x as a diagonal."""
    places = _diagonal(low, offset, first, second)
    return _written(low, low.filled(0, "zeros", [math.prod(low.shape)]), places, x)


def _diagonal(low: Lowering, offset: int, first: int, second: int) -> np.ndarray:
    """Where the elements of a diagonal of the result lie."""
    if not all(isinstance(size, int) for size in low.shape):
        raise low.unsupported("a symbolic dimension")
    shape = [int(size) for size in low.shape]
    return np.arange(math.prod(shape)).reshape(shape).diagonal(offset, first, second)


def _written(low: Lowering, flat: Value, places: np.ndarray, source: fx.Node) -> Value:
    """A flat tensor with some elements replaced, in the shape of the result."""
    index = low.builder.constant(places.astype(np.int64).reshape(-1))
    updates = low.reshape(low.value(source), [-1], "updates")
    written = low.op("ScatterElements", flat, index, updates, tag="written", axis=0)
    return low.reshape(written, low.shape)


def _places(
    low: Lowering, sizes: Sequence[int], strides: Sequence[int], start: int | None
) -> np.ndarray:
    """Where each element of the view lies."""
    if not all(isinstance(number, int) for number in (*sizes, *strides)):
        raise low.unsupported("a symbolic dimension")
    places = np.full([1] * len(sizes), start or 0, np.int64)
    for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        thin = [-1 if at == axis else 1 for at in range(len(sizes))]
        places = places + (np.arange(size) * stride).reshape(thin)
    return places


def _is_all(places: np.ndarray, x: fx.Node) -> bool:
    """Whether the view is the whole tensor, in order."""
    count = x.meta["val"].numel()
    return places.size == count and bool((places.reshape(-1) == np.arange(count)).all())
