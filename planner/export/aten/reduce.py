"""Sums, means, extremes and ranks over axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import fx

from planner.export.aten.registry import (
    ABSENT,
    Dim,
    Lowering,
    Result,
    Rule,
    dtype_of,
    lowers,
    normalize,
    numpy_dtype,
    rank_of,
    shape_of,
)
from planner.export.write.emit import Value


def _reduction(kind: str) -> Rule:
    def rule(
        low: Lowering,
        x: fx.Node,
        axes: Sequence[int] | None = None,
        keep: bool = False,
        **_: object,
    ) -> Result:
        """Lower a reduction: over every axis if none is named; the result's type may be wider."""
        rank = rank_of(x)
        source = low.cast(low.value(x), dtype_of(x), low.dtype)
        return low.reduce(kind, source, normalize(axes or range(rank), rank), keep=keep)

    return rule


lowers("sum", "sum.dim_IntList")(_reduction("Sum"))
lowers("mean", "mean.dim")(_reduction("Mean"))


_NARROW = frozenset({torch.bool, torch.int8, torch.uint8, torch.int16})
"""Types whose extremes ONNX Runtime cannot compute on every machine."""


def _extreme(kind: str) -> Rule:
    def rule(low: Lowering, x: fx.Node, axes: Sequence[int] = (), keep: bool = False) -> Result:
        """Lower a maximum or minimum over axes: NaN where any element is NaN."""
        rank, value = rank_of(x), low.operand(x, low.dtype)  # its type may be narrower
        each = normalize(axes or range(rank), rank)
        if low.dtype in _NARROW:
            value = low.cast(value, low.dtype, torch.int32, "as_number")
            largest = low.reduce(kind, value, each, keep=keep, tag="largest")
            return low.cast(largest, torch.int32, low.dtype)
        found = low.reduce(kind, value, each, keep=keep, tag="found")
        if not low.dtype.is_floating_point or not each:
            return found
        total = low.reduce("Sum", small(low, value), each, keep=keep, tag="total")
        return with_nan(low, found, total)

    return rule


lowers("amax", "max")(_extreme("Max"))
lowers("amin", "min")(_extreme("Min"))


def _extreme_along(op_type: str) -> Rule:
    def rule(low: Lowering, x: fx.Node, axis: int, keep: bool = False) -> Result:
        """Lower to (the largest or smallest along an axis, the index of its first occurrence)."""
        axis %= max(1, rank_of(x))
        where = _place(low, op_type, x, axis)
        found = low.op("GatherElements", low.value(x), where, tag="found", axis=axis)
        if keep or not rank_of(x):
            return [found, where]
        thin = low.integers(axis)
        return [low.op("Squeeze", v, thin, tag=t) for v, t in ((found, "value"), (where, "place"))]

    return rule


lowers("max.dim")(_extreme_along("ArgMax"))
lowers("min.dim")(_extreme_along("ArgMin"))


@lowers("argmax", "argmin")
def place_of_extreme(
    low: Lowering, x: fx.Node, axis: int | None = None, keep: bool = False
) -> Result:
    op_type = "ArgMax" if "argmax" in str(low.node.target) else "ArgMin"
    if axis is not None and rank_of(x):
        return _place(low, op_type, x, axis % rank_of(x), keep=keep)
    flat = low.reshape(low.value(x), [-1], "flat")
    return low.reshape(_place(low, op_type, x, 0, flat), low.shape)


def _place(
    low: Lowering, op_type: str, x: fx.Node, axis: int, value: Value = ABSENT, keep: bool = True
) -> Value:
    """Find the index of the first largest or smallest element; NaN counts as either."""
    nan = -math.inf if op_type == "ArgMin" else math.inf
    key = _ordered(low, value or low.value(x), low.type_of(x), nan)
    return low.op(op_type, key, tag="where", axis=axis, keepdims=int(keep))


def _ordered(low: Lowering, value: Value, dtype: torch.dtype, nan: float) -> Value:
    """Convert values to keys that ONNX Runtime's ArgMax, ArgMin and TopK order as PyTorch does.

    Args:
        nan: the number that replaces NaN.
    """
    if dtype.is_floating_point:
        return nan_as(low, value, dtype, nan)
    if dtype in (torch.int32, torch.int64):
        return value
    return low.cast(value, dtype, torch.int64, "as_number")


def small(low: Lowering, value: Value, tag: str = "small") -> Value:
    """Clip numbers to [-1, 1] for a finite sum; NaN stays."""
    return low.op("Clip", value, low.scalar(-1), low.scalar(1), tag=tag)


def with_nan(low: Lowering, extremes: Value, total: Value) -> Value:
    """Restore NaN in extremes, where ONNX Runtime's kernels lose it.

    Args:
        total: sums of the same elements, made `small`: a sum keeps NaN.
    """
    return low.op("Add", extremes, low.op("Mul", total, low.scalar(0), tag="zero_or_nan"))


def nan_as(low: Lowering, value: Value, dtype: torch.dtype, number: float) -> Value:
    """Replace NaN by a number, since ONNX Runtime's comparisons do not order NaN."""
    is_nan = low.op("IsNaN", value, tag="is_nan")
    return low.op("Where", is_nan, low.scalar(number, dtype), value, tag="comparable")


@lowers("sort", "sort.stable")
def sort(
    low: Lowering,
    x: fx.Node,
    axis: int = -1,
    descending: bool = False,
    *,
    stable: bool | None = None,
    dim: int | None = None,
) -> Result:
    """Lower to (elements sorted along an axis, their old indices); equal elements keep their order."""
    del stable
    axis = (axis if dim is None else dim) % max(1, rank_of(x))
    size = shape_of(x)[axis] if rank_of(x) else 1
    return _ranked(low, x, size, axis, is_largest=descending)


@lowers("topk")
def topk(
    low: Lowering,
    x: fx.Node,
    count: Dim,
    axis: int = -1,
    largest: bool = True,
    is_sorted: bool = True,
) -> Result:
    """Lower to (the largest or smallest elements along an axis, their indices)."""
    del is_sorted
    return _ranked(low, x, count, axis % max(1, rank_of(x)), is_largest=largest)


def _ranked(low: Lowering, x: fx.Node, count: Dim, axis: int, *, is_largest: bool) -> list[Value]:
    """Rank elements along an axis by TopK; NaN ranks above all numbers."""
    value = low.value(x)
    if not rank_of(x):
        return [value, low.filled(0, "where", dtype=torch.int64)]
    key = _ordered(low, value, low.type_of(x), math.inf)
    _, where = low.ops(
        "TopK", key, low.extent(count), tags=("ranked", "where"), axis=axis, largest=int(is_largest)
    )
    return [low.op("GatherElements", value, where, axis=axis), where]


@lowers("histc")
def histc(low: Lowering, x: fx.Node, bins: int = 100, least: float = 0, most: float = 0) -> Result:
    """Count the elements in each of `bins` equal ranges; elements outside all ranges are not counted."""
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
