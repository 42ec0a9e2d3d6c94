"""Promote mixed operand types as PyTorch does: ONNX's operators require one type.

The table of promoting operators and their types is that of PyTorch's own exporter
(torch.onnx._internal.fx.passes.type_promotion, not public), made from `torch._refs`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, fx
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Kind
from torch.onnx._internal.fx.passes.type_promotion import (
    ElementwiseTypePromotionRule,
    TypePromotionTable,
)

_MORE = {
    "clamp_max": (0, 1),
    "clamp_min": (0, 1),
    "mse_loss_backward": (0, 1, 2),
    "pow": (0, 1),
    "stack": (0,),
}
"""Positions of the promoted operands, for promoting operators that the table lacks."""

_OF_TRUTH = ("logical_and", "logical_not", "logical_or", "logical_xor")
"""Operators that convert every operand to a truth value."""


def promote(graph: fx.Graph) -> None:
    """Insert a cast before each operand that its operator first converts to another type."""
    for node in list(graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        with graph.inserting_before(node):
            for place, dtype in _wanted(node).items():
                node.update_arg(place, _converted(node.args[place], dtype))


def _wanted(node: fx.Node) -> dict[int, torch.dtype]:
    """Return the type that each operand is converted to, by its position."""
    assert isinstance(node.target, torch._ops.OpOverload)
    packet = node.target.overloadpacket
    if node.target.namespace == "aten" and packet.__name__ in _OF_TRUTH:
        return dict.fromkeys(range(len(node.args)), torch.bool)
    rule = _table().get_rule(packet)
    if rule is None:
        return {}
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda operand: operand.meta.get("val"))
    return dict(rule.preview_type_promotion(args, kwargs).args_dtypes)


def _converted(operand: Any, dtype: torch.dtype) -> Any:
    if isinstance(operand, list | tuple):
        return [_converted(part, dtype) for part in operand]
    held = operand.meta.get("val") if isinstance(operand, fx.Node) else None
    if not isinstance(held, Tensor) or held.dtype == dtype:
        return operand
    cast = operand.graph.call_function(
        torch.ops.aten._to_copy.default, (operand,), {"dtype": dtype}
    )
    cast.meta["val"] = held.to(dtype)
    return cast


@cache
def _table() -> TypePromotionTable:
    table = TypePromotionTable()
    for name, places in _MORE.items():
        table.add_rule(ElementwiseTypePromotionRule("aten", name, places, (), Kind.NO_OPMATH))
    return table
