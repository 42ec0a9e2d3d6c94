"""Shape rules for operators that the shape inference library does not know.

blocked    ONNX Runtime's blocked layout of images (NCHWc)
control    loops
fused      operators made by ONNX Runtime's fusions, and planner's own copies
gradients  the gradient operators of onnxruntime-training, by table and by rule
losses     losses, normalizations and accumulators of onnxruntime-training
old        operators of old operator sets
sequences  sequences of tensors, and their items
vectors    long vectors, whose elements the library would track one by one
"""

from __future__ import annotations

import functools

from onnx_shape_inference import registry

from planner.onnxio.shape_rules import (
    blocked,
    control,
    fused,
    gradients,
    losses,
    old,
    sequences,
    vectors,
)


@functools.cache
def register() -> None:
    """Register all rules, once."""
    registry.collect()
    blocked.register(registry)
    control.register(registry)
    fused.register(registry)
    gradients.register(registry)
    losses.register(registry)
    old.register(registry)
    sequences.register(registry)
    vectors.register(registry)
