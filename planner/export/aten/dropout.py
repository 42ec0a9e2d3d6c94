"""Dropout. The forward pass draws a mask and keeps it; the gradient reads that same tensor."""

from __future__ import annotations

import zlib

import torch
from torch import fx

from planner.export.aten.registry import Lowering, Result, lowers


@lowers("native_dropout")
def dropout(low: Lowering, x: fx.Node, probability: float, training: bool | None) -> Result:
    """-> result, boolean mask. Each use draws from a seed of its own."""
    if training is False:
        raise low.unsupported("evaluation mode")
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
    """`dy mask scale`, the scale being 1 / (1 - probability)."""
    kept = low.cast(low.value(mask), torch.bool, low.dtype, "kept")
    return low.op("Mul", low.value(dy), low.op("Mul", kept, low.scalar(scale), tag="factor"))
