"""Strided views of a tensor's memory: a size, a stride for each axis, and an offset."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import fx

from planner.export.aten.registry import Dim, Lowering, Result, lowers, rank_of, shape_of
from planner.export.write.emit import Value


@lowers("as_strided")
def as_strided(
    low: Lowering,
    x: fx.Node,
    sizes: Sequence[int],
    strides: Sequence[int],
    start: int | None = None,
) -> Result:
    """Gather elements of a tensor by their places in its memory; one may be read more than once."""
    places = _places(low, x, sizes, strides, start)
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
    """Replace the elements of x that the view shows."""
    places = _places(low, x, sizes, strides, start)
    if _is_all(places, x):
        return low.reshape(low.value(source), shape_of(x))
    if np.unique(places).size != places.size:
        raise low.unsupported("a view that holds one element in several places")
    return _written(low, low.reshape(low.value(x), [-1], "flat"), places, source)


@lowers("diagonal", "diagonal_copy")
def diagonal(low: Lowering, x: fx.Node, offset: int = 0, first: int = 0, second: int = 1) -> Result:
    """Lower diagonal by gathering: a product with ones and zeros would spread non-finite neighbours."""
    shape, order = shape_of(x), _last(rank_of(x), first, second)
    *lead, high, wide = (shape[axis] for axis in order)
    turned = low.transpose(low.value(x), order, "turned")
    flat = low.reshape(turned, [*lead, high * wide], "flat")
    return low.op("Gather", flat, _steps(low, low.shape[-1], wide, offset), axis=len(lead))


def _last(rank: int, first: int, second: int) -> list[int]:
    """Return the axes with two of them moved to the end."""
    ends = [first % rank, second % rank]
    return [axis for axis in range(rank) if axis not in ends] + ends


def _steps(low: Lowering, count: Dim, wide: Dim, offset: int) -> Value:
    """Return the positions of a diagonal's elements in a flat plane with rows of length `wide`."""
    start = offset if offset >= 0 else -offset * wide
    if isinstance(count, int) and isinstance(wide, int):
        return low.builder.constant(int(start) + np.arange(count) * (wide + 1))
    end = low.op("Squeeze", low.extent(count), tag="count")
    zero, one = low.scalar(0, torch.int64), low.scalar(1, torch.int64)
    apart = low.op(
        "Mul", low.op("Range", zero, end, one, tag="at"), low.extent(wide + 1), tag="apart"
    )
    return low.op("Add", apart, low.extent(start), tag="places")


@lowers("diagonal_scatter")
def diagonal_scatter(
    low: Lowering, x: fx.Node, source: fx.Node, offset: int = 0, first: int = 0, second: int = 1
) -> Result:
    """Lower to x with a diagonal replaced."""
    places = _diagonal(low, offset, first, second)
    return _written(low, low.reshape(low.value(x), [-1], "flat"), places, source)


@lowers("diagonal_backward")
def diagonal_backward(
    low: Lowering, dy: fx.Node, sizes: Sequence[int], offset: int, first: int, second: int
) -> Result:
    """Lower to zeros with the gradient on a diagonal."""
    order = _last(len(sizes), first, second)
    *lead, high, wide = (low.shape[axis] for axis in order)
    places = _steps(low, shape_of(dy)[-1], wide, offset)
    index = low.op("Expand", places, low.shape_value(shape_of(dy)), tag="index")
    zeros = low.filled(0, "zeros", [*lead, high * wide])
    flat = low.op("ScatterElements", zeros, index, low.value(dy), tag="flat", axis=len(lead))
    plane = low.reshape(flat, [*lead, high, wide], "plane")
    return low.transpose(plane, [order.index(axis) for axis in range(len(order))])


@lowers("diag_embed")
def diag_embed(
    low: Lowering, x: fx.Node, offset: int = 0, first: int = -2, second: int = -1
) -> Result:
    """Lower to zeros with x on a diagonal."""
    places = _diagonal(low, offset, first, second)
    return _written(low, low.filled(0, "zeros", [math.prod(low.shape)]), places, x)


def _diagonal(low: Lowering, offset: int, first: int, second: int) -> np.ndarray:
    """Return the flat positions of a diagonal's elements in the result."""
    if not all(isinstance(size, int) for size in low.shape):
        raise low.unsupported("a symbolic dimension")
    shape = [int(size) for size in low.shape]
    return np.arange(math.prod(shape)).reshape(shape).diagonal(offset, first, second)


def _written(low: Lowering, flat: Value, places: np.ndarray, source: fx.Node) -> Value:
    """Replace elements of a flat tensor; return it in the shape of the result."""
    index = low.builder.constant(places.astype(np.int64).reshape(-1))
    updates = low.reshape(low.value(source), [-1], "updates")
    written = low.op("ScatterElements", flat, index, updates, tag="written", axis=0)
    return low.reshape(written, low.shape)


def _places(
    low: Lowering, x: fx.Node, sizes: Sequence[int], strides: Sequence[int], start: int | None
) -> np.ndarray:
    """Return the index in the flattened x of each element of the view.

    Sizes, strides and start are of x's memory, which need not be contiguous: after `transpose`, its rows
    are columns there.
    """
    held: torch.Tensor = x.meta["val"]
    layout = (*held.shape, *held.stride(), held.storage_offset())
    if not all(isinstance(number, int) for number in (*sizes, *strides, *layout)):
        raise low.unsupported("a symbolic dimension")
    begin = int(held.storage_offset())
    own = _in_memory(held.shape, held.stride(), begin).reshape(-1)
    wanted = _in_memory(sizes, strides, begin if start is None else start)
    if not wanted.size or not own.size:
        return wanted
    index_of = np.full(1 + max(int(own.max()), int(wanted.max())), -1, np.int64)
    index_of[own] = np.arange(own.size)
    places = index_of[wanted]
    if (places < 0).any():
        raise low.unsupported(
            "a view of memory beyond the tensor's own elements: call .contiguous() on the tensor first, "
            "or take the view of the whole tensor"
        )
    return places


def _in_memory(sizes: Sequence[int], strides: Sequence[int], start: int) -> np.ndarray:
    """Return where each element of a tensor lies in memory, in elements from its beginning."""
    places = np.full([1] * len(sizes), start, np.int64)
    for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        thin = [-1 if at == axis else 1 for at in range(len(sizes))]
        places = places + (np.arange(size) * stride).reshape(thin)
    return places


def _is_all(places: np.ndarray, x: fx.Node) -> bool:
    """Tell whether the view is the whole tensor, in order."""
    count = x.meta["val"].numel()
    return places.size == count and bool((places.reshape(-1) == np.arange(count)).all())
