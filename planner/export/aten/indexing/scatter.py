"""Scatter operators that add or reduce elements of one tensor into another at given positions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from planner.export.aten.reduce import small, with_nan
from planner.export.aten.registry import Lowering, Result, lowers, shape_of
from planner.export.write.emit import Value

_REDUCTIONS = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}
_NEUTRAL = {"sum": 0, "mean": 0, "prod": 1, "amax": -math.inf, "amin": math.inf}


@lowers("scatter_add", wide=True)
def scatter_add(low: Lowering, x: fx.Node, axis: int, index: fx.Node, source: fx.Node) -> Result:
    operands = (low.value(x), low.value(index), _as_index(low, source, index))
    return low.op("ScatterElements", *operands, axis=axis, reduction="add")


@lowers("scatter_reduce.two", wide=True)
def scatter_reduce(
    low: Lowering, x: fx.Node, axis: int, index: fx.Node, source: fx.Node, kind: str, **options: Any
) -> Result:
    """Lower scatter_reduce; without `include_self`, elements of x that receive a value are left out."""
    start, where, added = low.value(x), low.value(index), _as_index(low, source, index)
    counts_itself = options.get("include_self", True)
    if not counts_itself:
        none = low.op("Expand", _neutral(low, kind), low.shape_value(shape_of(index)), tag="none")
        start = low.op("ScatterElements", start, where, none, tag="start", axis=axis)

    def scattered(onto: Value, values: Value, reduction: str, tag: str) -> Value:
        return low.op(
            "ScatterElements", onto, where, values, tag=tag, axis=axis, reduction=reduction
        )

    found = scattered(start, added, _REDUCTIONS[kind], "found")
    if kind == "mean":
        if not low.dtype.is_floating_point:
            raise low.unsupported("the mean of whole numbers")
        ones = low.filled(1, "ones", shape_of(index))
        counts = scattered(low.filled(float(counts_itself), "own"), ones, "add", "counts")
        return low.op("Div", found, low.op("Max", counts, low.scalar(1), tag="divisors"))
    if kind not in ("amax", "amin") or not low.dtype.is_floating_point:
        return found
    bounded = small(low, start, "small_start"), small(low, added, "small_added")
    return with_nan(low, found, scattered(*bounded, "add", "total"))


def _neutral(low: Lowering, kind: str) -> Value:
    """Return the neutral element of the reduction."""
    number = _NEUTRAL[kind]
    if not low.dtype.is_floating_point and math.isinf(number):
        limits = torch.iinfo(low.dtype)
        number = limits.min if number < 0 else limits.max
    return low.scalar(number)


def _as_index(low: Lowering, source: fx.Node, index: fx.Node) -> Value:
    """Return the part of the source that has the index's shape."""
    sizes, held = shape_of(index), shape_of(source)
    axes = [a for a, (size, has) in enumerate(zip(sizes, held, strict=True)) if size != has]
    if not axes:
        return low.value(source)
    ends = low.shape_value([sizes[a] for a in axes])
    starts = low.integers(*[0] * len(axes))
    return low.op("Slice", low.value(source), starts, ends, low.integers(*axes), tag="part")
