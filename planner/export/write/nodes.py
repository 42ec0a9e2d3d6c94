"""Lower the nodes of a traced graph to ONNX nodes, one operator after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from onnx import ValueInfoProto
from torch import fx

from planner.export.aten import RULES, Lowering
from planner.export.aten.registry import array_of, describe, dtype_of, numpy_dtype, shape_of
from planner.export.dims import named
from planner.export.errors import UnsupportedOperator
from planner.export.write.emit import Value, value_info
from planner.export.write.promotion import promote
from planner.export.write.torchlib import translate

_SYMBOLIC = (torch.SymInt, torch.SymFloat)
"""Types of numbers that depend on open dimensions."""

_FOLD_LIMIT = 1 << 20
"""Bytes up to which a constant is computed at export time."""


def lower_nodes(
    module: fx.GraphModule,
    lowering: Lowering,
    *,
    first_use: Mapping[str, str],
    lowered: Callable[[fx.Node], None] = lambda node: None,
) -> None:
    """Lower each operator in the traced order, and compute constants at once.

    Args:
        first_use: source lines by operator.
        lowered: called after each operator.

    Raises:
        UnsupportedOperator: names the first operator that has no rule, and all others.
    """
    promote(module.graph)
    folded: dict[fx.Node, torch.Tensor] = {}
    missing: dict[str, UnsupportedOperator] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            folded[node] = getattr(module, node.target)
        if node.op != "call_function":
            continue
        constant = _fold(node, folded)
        if constant is not None:
            folded[node] = constant
            continue
        lowering.node = node
        for operand in node.all_input_nodes:
            if operand in folded and operand not in lowering.values:
                held = folded[operand]
                if not isinstance(held, torch.Tensor):
                    reason = f"it reads a {type(held).__name__}, which a graph cannot hold"
                    error = UnsupportedOperator(str(node.target), describe(node), reason)
                    raise error.called_at(line_of(node, first_use))
                array = array_of(held)
                lowering.values[operand] = lowering.builder.literal(array, operand.name)
        try:
            lowering.values[node] = _apply(node, lowering)
            lowered(node)
        except UnsupportedOperator as error:
            line = line_of(node, first_use)
            missing.setdefault(error.operator, error.called_at(line))
            lowering.values[node] = _stand_in(node, lowering)
    if missing:
        first, *others = missing.values()
        raise first.together_with(others)
    for node in module.graph.find_nodes(op="output")[0].all_input_nodes:
        if node in folded and node not in lowering.values:
            lowering.values[node] = lowering.builder.constant(array_of(folded[node]))


def line_of(node: fx.Node, first_use: Mapping[str, str]) -> str:
    """Return the source line of an operator, or of one that it is a part or a gradient of.

    "" means that none is known.
    """
    for operator in (str(node.target), str(node.meta.get("original_aten"))):
        for name in (operator, operator.replace("_backward", "")):
            if name in first_use:
                return first_use[name]
    return ""


def _stand_in(node: fx.Node, lowering: Lowering) -> Any:
    """Return a placeholder name for a missing result, to go on and find all missing operators."""
    held = node.meta.get("val")
    if isinstance(held, tuple | list):
        return [lowering.builder.fresh(f"{node.name}.{i}") for i in range(len(held))]
    return lowering.builder.fresh(node.name)


def _apply(node: fx.Node, lowering: Lowering) -> Any:
    """Lower one operator by its rule."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        if getattr(target, "__name__", "") == "getitem":
            source, index = node.args
            return cast(Sequence[Value], lowering.values[cast(fx.Node, source)])[cast(int, index)]
        if isinstance(node.meta.get("val"), _SYMBOLIC):
            return None  # Arithmetic on dimensions: rules compute it from the shapes.
        raise UnsupportedOperator(str(target), describe(node))
    if isinstance(node.meta.get("val"), _SYMBOLIC) or target.namespace == "profiler":
        return None
    key = str(target).removeprefix("aten.")
    if key not in RULES:
        if lowering.random == "inputs" and torch.Tag.nondeterministic_seeded in target.tags:
            reason = "it draws random numbers, and these cannot be fed as an input"
            raise UnsupportedOperator(str(target), describe(node), reason)
        return _translated(node, lowering)
    args, kwargs = fx.map_arg((node.args, node.kwargs), _dimension)
    try:
        return lowering.apply(key, args, kwargs)
    except (TypeError, KeyError) as error:
        raise UnsupportedOperator(str(target), describe(node), f"unknown form ({error})") from error


def _translated(node: fx.Node, lowering: Lowering) -> Any:
    """Lower an operator without a rule by torchlib."""
    try:
        found = translate(node, lowering)
    except TypeError as error:
        raise UnsupportedOperator(str(node.target), describe(node), str(error)) from error
    if found is None:
        raise UnsupportedOperator(str(node.target), describe(node))
    if isinstance(found, str) and isinstance(node.meta.get("val"), list | tuple):
        reason = "torchlib makes an ONNX sequence of it"
        raise UnsupportedOperator(str(node.target), describe(node), reason)
    return found


def _dimension(operand: fx.Node) -> Any:
    """Return the symbolic number of a traced dimension or an expression of some; tensors as they are."""
    value = operand.meta.get("val")
    return value if isinstance(value, _SYMBOLIC) else operand


def _fold(node: fx.Node, folded: Mapping[fx.Node, torch.Tensor]) -> torch.Tensor | None:
    """Return the node's value if it depends on no input, is small, and is deterministic; else None."""
    value = node.meta.get("val")
    target = node.target
    if (
        not isinstance(target, torch._ops.OpOverload)
        or not isinstance(value, torch.Tensor)
        or torch.Tag.nondeterministic_seeded in target.tags
        or "empty" in target.name()
        or any(isinstance(dim, torch.SymInt) for dim in value.shape)
        or value.numel() * value.element_size() > _FOLD_LIMIT
        or not all(operand in folded for operand in node.all_input_nodes)
    ):
        return None
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda operand: folded[operand])
    return target(*args, **kwargs)


def output_of(
    lowering: Lowering,
    node: fx.Node,
    name: str,
    dtype: torch.dtype | None = None,
    names: Mapping[str, str] | None = None,
) -> ValueInfoProto:
    """Name a traced value `name` as an output, converted if another type is given.

    Args:
        names: names of open dimensions, by symbol.
    """
    lowering.node = node
    lowering.builder.call(lowering.operand(node, dtype or dtype_of(node)), name)
    return info_of(name, node, dtype, names)


def info_of(
    name: str,
    node: fx.Node,
    dtype: torch.dtype | None = None,
    names: Mapping[str, str] | None = None,
) -> ValueInfoProto:
    return value_info(
        name, numpy_dtype(dtype or dtype_of(node)), named(shape_of(node), names or {})
    )
