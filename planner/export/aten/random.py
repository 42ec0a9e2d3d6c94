"""Random numbers, drawn with a seed per use like `planner.export.aten.dropout`, or fed."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from onnx import helper
from torch import fx

from planner.export.aten.registry import (
    HALF,
    Dim,
    Lowering,
    Result,
    lowers,
    numpy_dtype,
)
from planner.export.write.emit import Value


@lowers(
    "rand", "rand_like", "uniform", "randn", "randn_like", "normal_functional", "uniform_functional"
)
def draw(low: Lowering, *given: object, **_: object) -> Result:
    """Lower to uniform in [0, 1), or normal with mean 0 and deviation 1, unless two numbers are given."""
    name = str(low.node.target)
    bounds = [float(x) for x in given[1:3] if isinstance(x, int | float)]
    # The tracer leaves out defaults: `uniform_(-1, 1)` arrives with -1 only.
    first, second = (*bounds, *(0.0, 1.0)[len(bounds) :])
    return _drawn(low, "Normal" if "norm" in name or "randn" in name else "Uniform", first, second)


@lowers("bernoulli", "bernoulli.p")
def bernoulli(low: Lowering, chance: fx.Node, p: float | None = None, **_: object) -> Result:
    """Lower to 1 with a probability, one for all elements or one for each."""
    if p is not None:
        mask = low.fed("bernoulli", "mask", low.shape, torch.bool, chance=p)
        if mask is not None:
            return low.cast(mask, torch.bool, low.dtype, "")
    limit = low.value(chance) if p is None else low.scalar(p)
    drawn = _drawn(low, "Uniform", 0.0, 1.0, tag="drawn")
    is_one = low.op("Less", drawn, limit, tag="is_one")
    return low.cast(is_one, torch.bool, low.dtype, "")


@lowers("randint", "randint.low", "randint_like", "randint_like.low_dtype")
def integers(low: Lowering, *given: object, **_: object) -> Result:
    """Lower to integers from the first bound (0 if only one is given) up to, excluding, the second."""
    bounds = [x for x in given if isinstance(x, int)]
    first, last = bounds if len(bounds) == 2 else (0, bounds[0])
    drawn = _drawn(low, "Uniform", 0.0, 1.0, tag="drawn", dtype=torch.float64)
    spread = low.op("Mul", drawn, low.scalar(last - first, torch.float64), tag="spread")
    whole = low.op("Floor", spread, tag="floor")
    moved = low.op("Add", whole, low.scalar(first, torch.float64), tag="moved")
    return low.cast(moved, torch.float64, low.dtype, "")


@lowers("randperm")
def permutation(low: Lowering, count: Dim, **_: object) -> Result:
    """Lower to the order that sorts random numbers."""
    drawn = _drawn(low, "Uniform", 0.0, 1.0, tag="drawn", dtype=torch.float32)
    places = low.ops("TopK", drawn, low.extent(count), tags=("sorted", "places"), axis=0)[1]
    return low.cast(places, torch.int64, low.dtype, "")


@lowers("exponential")
def exponential(low: Lowering, x: fx.Node, rate: float = 1.0, **_: object) -> Result:
    """Lower to `-log(1 - u) / rate`, by inversion."""
    del x
    drawn = _drawn(low, "Uniform", 0.0, 1.0, tag="drawn")
    rest = low.op("Sub", low.scalar(1), drawn, tag="rest")
    return low.op("Mul", low.op("Log", rest, tag="log"), low.scalar(-1 / rate))


def _drawn(
    low: Lowering,
    kind: str,
    first: float,
    second: float,
    tag: str = "",
    dtype: torch.dtype | None = None,
) -> Value:
    """Draw random numbers, or read them from an input if the caller feeds them.

    Half types are drawn as float32 and rounded.

    Args:
        kind: "Normal", with `first` the mean and `second` the scale; or "Uniform", from `first` to
            `second`.
        dtype: type of the numbers; by default that of the node's result.
    """
    dtype = dtype or low.dtype
    wide = torch.float32 if dtype in HALF else dtype
    fed = low.fed("normal" if kind == "Normal" else "uniform", "drawn", low.shape, wide)
    if fed is not None:
        return low.cast(_moved(low, kind, fed, (first, second), wide), wide, dtype, tag)
    names = ("mean", "scale") if kind == "Normal" else ("low", "high")
    attributes: dict[str, Any] = dict(zip(names, (first, second), strict=True))
    attributes["seed"] = float(zlib.crc32(low.node.name.encode()) & 0xFFFFFF)
    attributes["dtype"] = helper.np_dtype_to_tensor_dtype(numpy_dtype(wide))
    name = tag if wide == dtype else f"{tag or 'drawn'}_wide"
    if any(isinstance(dim, torch.SymInt) for dim in low.shape):
        like = low.filled(0, "like", dtype=wide)
        drawn = low.op(f"Random{kind}Like", like, tag=name, **attributes)
    else:
        sizes = [int(dim) for dim in low.shape]
        drawn = low.op(
            f"Random{kind}", tag=name if sizes else "row", shape=sizes or [1], **attributes
        )
        if not sizes:
            drawn = low.reshape(drawn, [], name)
    return low.cast(drawn, wide, dtype, tag)


def _moved(
    low: Lowering, kind: str, fed: Value, bounds: tuple[float, float], dtype: torch.dtype
) -> Value:
    """Scale fed numbers: [0, 1) to the bounds, or standard normal to a mean and deviation."""
    first, second = bounds
    width = second if kind == "Normal" else second - first
    if width != 1:
        fed = low.op("Mul", fed, low.scalar(width, dtype), tag="widened")
    return fed if first == 0 else low.op("Add", fed, low.scalar(first, dtype), tag="moved_by")


@lowers("rrelu_with_noise_functional")
def random_relu(
    low: Lowering,
    x: fx.Node,
    noise: fx.Node,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: object = None,
) -> Result:
    """Lower to (result, slope of each element: 1 where x is positive, else drawn)."""
    del noise, generator
    slope = (
        _drawn(low, "Uniform", lower, upper, tag="drawn")
        if training
        else low.filled((lower + upper) / 2, "mean")
    )
    positive = low.op("Greater", low.value(x), low.scalar(0), tag="positive")
    factor = low.op("Where", positive, low.scalar(1), slope, tag="slope")
    return [low.op("Mul", low.value(x), factor), factor]
