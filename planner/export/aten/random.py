"""Random numbers, each use with a seed of its own, as `planner.export.aten.dropout` has it."""

from __future__ import annotations

import zlib

import torch
from onnx import helper
from torch import fx

from planner.export.aten.registry import Lowering, Result, lowers, numpy_dtype
from planner.export.emit import Value


@lowers(
    "rand", "rand_like", "uniform", "randn", "randn_like", "normal_functional", "uniform_functional"
)
def draw(low: Lowering, *given: object, **_: object) -> Result:
    """Uniform in [0, 1), or normal with mean 0 and deviation 1; two numbers say otherwise."""
    name = str(low.node.target)
    bounds = [float(x) for x in given[1:3] if isinstance(x, int | float)]
    first, second = bounds if len(bounds) == 2 else (0.0, 1.0)
    return _drawn(low, "Normal" if "norm" in name or "randn" in name else "Uniform", first, second)


@lowers("bernoulli", "bernoulli.p")
def bernoulli(low: Lowering, chance: fx.Node, p: float | None = None, **_: object) -> Result:
    """1 with a chance: one for all places, or each its own."""
    limit = low.value(chance) if p is None else low.scalar(p)
    drawn = _drawn(low, "Uniform", 0.0, 1.0, tag="drawn")
    is_one = low.op("Less", drawn, limit, tag="is_one")
    return low.cast(is_one, torch.bool, low.dtype, "")


def _drawn(low: Lowering, kind: str, first: float, second: float, tag: str = "") -> Value:
    names = ("mean", "scale") if kind == "Normal" else ("low", "high")
    attributes: dict[str, object] = dict(zip(names, (first, second), strict=True))
    attributes["seed"] = float(zlib.crc32(low.node.name.encode()) & 0xFFFFFF)
    attributes["dtype"] = helper.np_dtype_to_tensor_dtype(numpy_dtype(low.dtype))
    if any(isinstance(dim, torch.SymInt) for dim in low.shape):
        like = low.filled(0, "like")
        return low.op(f"Random{kind}Like", like, tag=tag, **attributes)
    return low.op(f"Random{kind}", tag=tag, shape=[int(d) for d in low.shape], **attributes)


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
    """-> result, and the slope at each place: 1 where x is positive, else one drawn."""
    del noise, generator
    slope = _drawn(low, "Uniform", lower, upper, tag="drawn")
    if not training:
        slope = low.filled((lower + upper) / 2, "mean")
    positive = low.op("Greater", low.value(x), low.scalar(0), tag="positive")
    factor = low.op("Where", positive, low.scalar(1), slope, tag="slope")
    return [low.op("Mul", low.value(x), factor), factor]
