"""Shapes of operators made by ONNX Runtime's fusions, and of planner's own copies."""

from __future__ import annotations

import onnx_ir as ir
from onnx_shape_inference import OpShapeInferenceRegistry, ShapeInferenceContext

from planner.onnxio.products import plain_order
from planner.onnxio.shape_rules.like import Rule, copied, input_at, set_like

_FUSED = {"FusedGemm": ("Gemm", 13), "FusedConv": ("Conv", 11)}
"""Operators of com.microsoft with a fused activation, each with the standard operator and version
whose shape rule it has."""


def register(registry: OpShapeInferenceRegistry) -> None:
    """Add the rules to `registry`."""
    for fused, (standard, version) in _FUSED.items():
        rule = registry.get("", standard, version=version)
        if rule is not None:
            registry.register("com.microsoft", fused, since_version=1)(rule)
    matmul = registry.get("", "MatMul", version=13)
    if matmul is not None:
        for op_type in ("FusedMatMul", "FusedMatMulActivation", "TransposeMatMul"):
            registry.register("com.microsoft", op_type, since_version=1)(_product(matmul))
    # the standard operator is of version 17; ONNX Runtime's fusion makes it in any
    layer_norm = registry.get("", "LayerNormalization", version=17)
    if layer_norm is not None:
        registry.register("", "LayerNormalization", since_version=1)(layer_norm)
    for op_type in ("MemcpyToHost", "MemcpyFromHost"):
        registry.register("", op_type, since_version=1)(copied)
    swaps = {"SwapIn": _as_told, "StoreTo": _as_told, "SwapInDone": copied, "LoadIn": copied}
    swaps |= dict.fromkeys(("SwapBegin", "SwapOut", "StoreOut", "SwapOutDone"), _token)
    for op_type, rule in swaps.items():
        registry.register("planner.swap", op_type, since_version=1)(rule)


def _token(ctx: ShapeInferenceContext, node: ir.Node) -> None:
    """Infer the one byte of a token, whose address names a swap."""
    ctx.set_dtype(node.outputs[0], ir.DataType.UINT8)
    ctx.set_shape(node.outputs[0], ir.Shape([1]))


def _as_told(ctx: ShapeInferenceContext, node: ir.Node) -> None:
    """Infer the type and shape that the node's attributes state."""
    dtype, shape = node.attributes.get_int("dtype"), node.attributes.get_ints("shape")
    if dtype is not None and shape is not None:
        ctx.set_dtype(node.outputs[0], ir.DataType(dtype))
        ctx.set_shape(node.outputs[0], ir.Shape(list(shape)))


def _product(matmul: Rule) -> Rule:
    """Return MatMul's rule for operands whose axes are reordered by attributes."""

    def rule(ctx: ShapeInferenceContext, node: ir.Node) -> None:
        operands = [_as_read(node, index, side) for index, side in enumerate("AB")]
        plain = ir.Node("", "MatMul", operands, num_outputs=1)
        matmul(ctx, plain)
        set_like(ctx, node.outputs[0], plain.outputs[0])

    return rule


def _as_read(node: ir.Node, index: int, side: str) -> ir.Value | None:
    """Return an operand of a product with its axes in MatMul's order."""
    value = input_at(node, index)
    if value is None or value.shape is None:
        return value
    order = plain_order(
        len(value.shape),
        swapped=bool(node.attributes.get_int(f"trans{side}", 0)),
        batch_behind=bool(node.attributes.get_int(f"transBatch{side}", 0)),
    )
    shape = ir.Shape([value.shape[axis] for axis in order])
    return ir.Value(name=value.name, shape=shape, type=value.type)
