"""Bags of embeddings: sums or means of the rows from each offset to the next."""

from __future__ import annotations

import numpy as np
import torch
from torch import fx

from planner.export.aten.registry import Lowering, Result, dtype_of, lowers, shape_of
from planner.export.write.emit import Value

_SUM, _MEAN = 0, 1


@lowers("_embedding_bag", "_embedding_bag_forward_only", wide=True)
def embedding_bag(
    low: Lowering,
    table: fx.Node,
    rows: fx.Node,
    offsets: fx.Node,
    by_frequency: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    weights: fx.Node | None = None,
    with_last: bool = False,
    padding: int = -1,
) -> Result:
    """Lower to (bags [count, width], the bag of each row, rows in each bag, zeros)."""
    del sparse
    if by_frequency or with_last or padding >= 0 or mode not in (_SUM, _MEAN):
        raise low.unsupported("maxima, padding, a last offset, or gradients scaled by frequency")
    count, places = int(shape_of(offsets)[0]), int(shape_of(rows)[0])
    width = int(shape_of(table)[1])
    starts = low.cast(low.value(offsets), dtype_of(offsets), torch.int64, "starts")
    at = low.reshape(low.op("Range", *_bounds(low, places), tag="at"), [places, 1], "column")
    begun = low.op("LessOrEqual", starts, at, tag="begun")
    whole = low.cast(begun, torch.bool, torch.int64, "whole")
    last = low.op("ReduceSum", whole, low.integers(1), tag="last", keepdims=0)
    bag = low.op("Sub", last, low.scalar(1, torch.int64), tag="bag")
    taken = low.op("Gather", low.value(table), low.value(rows), tag="taken", axis=0)
    if weights is not None:
        taken = low.op(
            "Mul", taken, low.reshape(low.value(weights), [places, 1], "w"), tag="scaled"
        )
    total = _scattered(low, bag, taken, count, width)
    ends = low.op("Concat", _tail(low, starts, count), low.integers(places), tag="ends", axis=0)
    sizes = low.op("Sub", ends, starts, tag="sizes")
    if mode == _MEAN:
        total = low.op("Div", total, _divisor(low, sizes, count), tag="means")
    return [total, bag, sizes, low.builder.constant(np.zeros(count, np.int64))]


@lowers("_embedding_bag_backward", "_embedding_bag_dense_backward", wide=True)
def embedding_bag_backward(
    low: Lowering, dy: fx.Node, rows: fx.Node, *rest: fx.Node | int | bool | None
) -> Result:
    """Add each row's gradients: [bags, width] -> [rows of the table, width]."""
    if "dense" in str(low.node.target):
        bag, sizes, _, count, by_frequency, mode, weights, *_ = rest
    else:
        _, bag, sizes, _, count, by_frequency, mode, _, weights, *_ = rest
    if by_frequency or mode not in (_SUM, _MEAN):
        raise low.unsupported("maxima, or gradients scaled by frequency")
    assert isinstance(bag, fx.Node) and isinstance(sizes, fx.Node) and isinstance(count, int)
    grad = low.value(dy)
    if mode == _MEAN:
        grad = low.op(
            "Div", grad, _divisor(low, low.value(sizes), int(shape_of(dy)[0])), tag="each"
        )
    spread = low.op("Gather", grad, low.value(bag), tag="spread", axis=0)
    if isinstance(weights, fx.Node):
        spread = low.op("Mul", spread, low.reshape(low.value(weights), [-1, 1], "w"), tag="scaled")
    return _scattered(low, low.value(rows), spread, count, int(shape_of(dy)[1]))


@lowers("_embedding_bag_per_sample_weights_backward", wide=True)
def embedding_bag_weights_backward(
    low: Lowering,
    dy: fx.Node,
    table: fx.Node,
    rows: fx.Node,
    offsets: fx.Node,
    bag: fx.Node,
    *_: int,
) -> Result:
    """Lower the gradient of each weight: its row of the table times the gradient of its bag."""
    del offsets
    taken = low.op("Gather", low.value(table), low.value(rows), tag="taken", axis=0)
    spread = low.op("Gather", low.value(dy), low.value(bag), tag="spread", axis=0)
    return low.reduce("Sum", low.op("Mul", taken, spread, tag="each"), [1])


def _scattered(low: Lowering, rows: Value, updates: Value, count: int, width: int) -> Value:
    """Return [count, width] with updates [places, width] added to the rows in `rows`."""
    column = low.op("Unsqueeze", rows, low.integers(1), tag="rows")
    index = low.op("Expand", column, low.integers(1, width), tag="wide")
    zeros = low.filled(0, "zeros", [count, width])
    return low.op("ScatterElements", zeros, index, updates, tag="sum", axis=0, reduction="add")


def _divisor(low: Lowering, sizes: Value, count: int) -> Value:
    """Return the number of rows of each bag as a column of floats, 1 for an empty bag."""
    one = low.op("Max", sizes, low.integers(1), tag="at_least_one")
    return low.reshape(low.cast(one, torch.int64, low.dtype, "sizes_as"), [count, 1], "divisor")


def _bounds(low: Lowering, end: int) -> tuple[Value, Value, Value]:
    return tuple(low.scalar(n, torch.int64) for n in (0, end, 1))  # pyright: ignore


def _tail(low: Lowering, starts: Value, count: int) -> Value:
    edges = (low.integers(1), low.integers(count), low.integers(0))
    return low.op("Slice", starts, *edges, tag="tail")
