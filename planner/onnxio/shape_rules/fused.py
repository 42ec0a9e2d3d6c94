"""Shapes of what ONNX Runtime's fusions make, and of planner's own copies."""

from __future__ import annotations

from onnx_shape_inference import OpShapeInferenceRegistry

from planner.onnxio.shape_rules.like import copied

_FUSED = {"FusedGemm": ("Gemm", 13), "FusedConv": ("Conv", 11)}
"""Operators of com.microsoft with an activation fused in, each with the standard one it has the
shape of, and that one's version."""


def register(registry: OpShapeInferenceRegistry) -> None:
    """Add the rules to `registry`."""
    for fused, (standard, version) in _FUSED.items():
        rule = registry.get("", standard, version=version)
        if rule is not None:
            registry.register("com.microsoft", fused, since_version=1)(rule)
    # the standard operator is of version 17; ONNX Runtime's fusion makes it in any
    layer_norm = registry.get("", "LayerNormalization", version=17)
    if layer_norm is not None:
        registry.register("", "LayerNormalization", since_version=1)(layer_norm)
    for op_type in ("MemcpyToHost", "MemcpyFromHost"):
        registry.register("", op_type, since_version=1)(copied)
