"""Dropout. The forward pass draws a mask or is fed one, and the gradient reads the same tensor."""

from __future__ import annotations

import zlib

import torch
from torch import fx

from planner.export.aten.registry import Lowering, Result, dtype_of, lowers, shape_of
from planner.export.write.emit import Value


@lowers("native_dropout")
def dropout(low: Lowering, x: fx.Node, probability: float, training: bool | None) -> Result:
    """Lower dropout to (result, boolean mask). Each use has its own seed."""
    if training is False:
        raise low.unsupported("evaluation mode")
    mask = low.fed("bernoulli", "mask", shape_of(x), torch.bool, chance=1 - probability)
    if mask is not None:
        scale = 0.0 if probability == 1 else 1 / (1 - probability)
        return [low.op("Mul", low.value(x), _factor(low, mask, scale)), mask]
    return low.ops(
        "Dropout",
        low.value(x),
        low.scalar(probability, torch.float32),
        low.scalar(True, torch.bool),
        tags=("", "mask"),
        seed=zlib.crc32(low.node.name.encode()) & 0x7FFFFFFF,
    )


@lowers("native_dropout_backward")
def dropout_backward(low: Lowering, dy: fx.Node, mask: fx.Node, scale: float) -> Result:
    """Lower dropout's gradient, `dy mask scale`, with scale 1 / (1 - probability)."""
    assert dtype_of(mask) == torch.bool
    return low.op("Mul", low.value(dy), _factor(low, low.value(mask), scale))


def _factor(low: Lowering, mask: Value, scale: float) -> Value:
    kept = low.cast(mask, torch.bool, low.dtype, "kept")
    return low.op("Mul", kept, low.scalar(scale), tag="factor")
