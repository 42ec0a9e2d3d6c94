"""From a traced joint graph to an ONNX training graph.

Graph inputs: the caller's, then parameters and buffers under the module's own names. Outputs:
`loss`, `<parameter>_grad` for each parameter, `<buffer>_new` for each buffer that changes; or,
with an optimizer, `<parameter>_new` and the optimizer's state in place of the gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from onnx import ModelProto, ValueInfoProto
from torch import fx

from planner.export.aten import RULES, Lowering
from planner.export.aten.registry import describe, dtype_of, numpy_dtype, shape_of
from planner.export.emit import Builder, Value, value_info
from planner.export.errors import ExportError, UnsupportedOperator
from planner.export.joint import JointGraph
from planner.export.optim import Optimizer, StateTensor
from planner.export.torchlib import translate

LOSS = "loss"
GRADIENT_SUFFIX = "_grad"
UPDATED_SUFFIX = "_new"
BATCH = "batch"
"""Name of the symbolic first dimension."""

_SYMBOLIC = (torch.SymInt, torch.SymFloat)
"""Numbers that follow from open dimensions."""

_FOLD_LIMIT = 1 << 20
"""Constants are computed at export time up to this many bytes."""


@dataclass(frozen=True, kw_only=True)
class TrainingGraph:
    """A finished model and what its inputs and outputs are."""

    model: ModelProto
    inputs: tuple[str, ...]
    parameters: tuple[str, ...]
    """Those that receive a gradient."""
    buffers: tuple[str, ...]
    """Buffers, and parameters without gradient, that the graph reads."""
    state: tuple[StateTensor, ...]
    """Inputs of the optimizer."""


def lower(
    joint: JointGraph,
    name: str,
    *,
    optimizer: Optimizer | None = None,
    initializers: Mapping[str, np.ndarray] | None = None,
) -> TrainingGraph:
    """Write `joint` as an ONNX model called `name`.

    `initializers` gives values to parameters and buffers that shall be stored in the model;
    the others are graph inputs.
    """
    initializers = initializers or {}
    builder = Builder()
    tensors = {**joint.parameters, **joint.buffers}
    lowering = Lowering(builder, _symbols(joint))
    for key, node in {**joint.inputs, **tensors}.items():
        lowering.values[node] = builder.reserve(key)
    _lower_nodes(joint, lowering)
    _check_symbolic(joint)

    outputs = [_output(builder, lowering, joint.loss, LOSS)]
    gradients = {
        key: _output(builder, lowering, node, key + GRADIENT_SUFFIX)
        for key, node in joint.gradients.items()
    }
    buffers = [
        _output(builder, lowering, node, key + UPDATED_SUFFIX)
        for key, node in joint.updated_buffers.items()
    ]
    state: list[StateTensor] = []
    if optimizer is None:
        outputs += gradients.values()
    else:
        shapes = {
            key: [int(dim) for dim in shape_of(node)] for key, node in joint.parameters.items()
        }
        state, updated = optimizer.append(builder, shapes, GRADIENT_SUFFIX, UPDATED_SUFFIX)
        outputs += [value_info(key, np.dtype(np.float32), shape) for key, shape in updated]
    outputs += buffers

    read = builder.read_for(output.name for output in outputs)
    kept = [key for key in tensors if key in read]
    inputs = [_value_info(key, node) for key, node in joint.inputs.items()]
    inputs += [_value_info(key, tensors[key]) for key in kept if key not in initializers]
    inputs += [value_info(item.name, np.dtype(np.float32), item.shape) for item in state]
    stored = {key: initializers[key] for key in kept if key in initializers}
    return TrainingGraph(
        model=builder.finish(name, inputs, outputs, stored),
        inputs=tuple(joint.inputs),
        parameters=tuple(joint.parameters),
        buffers=tuple(key for key in joint.buffers if key in read),
        state=tuple(state),
    )


def _lower_nodes(joint: JointGraph, lowering: Lowering) -> None:
    """Lower each operator in the traced order, computing what is constant right away.

    Raises:
        UnsupportedOperator: naming the first operator that has no rule, and all others.
    """
    module = joint.module
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
                array = folded[operand].detach().numpy()
                lowering.values[operand] = lowering.builder.literal(array, operand.name)
        try:
            lowering.values[node] = _apply(node, lowering)
        except UnsupportedOperator as error:
            line = _line_of(node, joint.first_use)
            missing.setdefault(error.operator, error.called_at(line))
            lowering.values[node] = _stand_in(node, lowering)
    if missing:
        first, *others = missing.values()
        raise first.together_with(others)
    for node in module.graph.find_nodes(op="output")[0].all_input_nodes:
        if node in folded and node not in lowering.values:
            lowering.values[node] = lowering.builder.constant(folded[node].detach().numpy())


def _line_of(node: fx.Node, first_use: Mapping[str, str]) -> str:
    """The line of source behind an operator, behind the one that it is a part of, or behind the one whose
    gradient it computes; "" where none is known."""
    for operator in (str(node.target), str(node.meta.get("original_aten"))):
        for name in (operator, operator.replace("_backward", "")):
            if name in first_use:
                return first_use[name]
    return ""


def _stand_in(node: fx.Node, lowering: Lowering) -> Any:
    """A name for what cannot be made, so that everything else that is missing is found too."""
    held = node.meta.get("val")
    if isinstance(held, tuple | list):
        return [lowering.builder.fresh(f"{node.name}.{i}") for i in range(len(held))]
    return lowering.builder.fresh(node.name)


def _apply(node: fx.Node, lowering: Lowering) -> Any:
    """Run the rule for one operator."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        if getattr(target, "__name__", "") == "getitem":
            source, index = node.args
            return cast(Sequence[Value], lowering.values[cast(fx.Node, source)])[cast(int, index)]
        if isinstance(node.meta.get("val"), _SYMBOLIC):
            return None  # Arithmetic on dimensions: rules read the result from the shapes.
        raise UnsupportedOperator(str(target), describe(node))
    if isinstance(node.meta.get("val"), _SYMBOLIC):
        return None
    rule = RULES.get(str(target).removeprefix("aten."))
    if rule is None:
        return _translated(node, lowering)
    args, kwargs = fx.map_arg((node.args, node.kwargs), _dimension)
    try:
        return rule(lowering, *args, **kwargs)
    except (TypeError, KeyError) as error:
        raise UnsupportedOperator(str(target), describe(node), f"unknown form ({error})") from error


def _translated(node: fx.Node, lowering: Lowering) -> Any:
    """What torchlib makes of an operator without a rule."""
    try:
        found = translate(node, lowering)
    except TypeError as error:
        raise UnsupportedOperator(str(node.target), describe(node), str(error)) from error
    if found is None:
        raise UnsupportedOperator(str(node.target), describe(node))
    return found


def _dimension(operand: fx.Node) -> Any:
    """A traced dimension, or a number made of some, as what it stands for; tensors stay what they are."""
    value = operand.meta.get("val")
    return value if isinstance(value, _SYMBOLIC) else operand


def _fold(node: fx.Node, folded: Mapping[fx.Node, torch.Tensor]) -> torch.Tensor | None:
    """The node's value, where it depends on no input, is small, and is always the same."""
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


def _symbols(joint: JointGraph) -> dict[str, tuple[Value, int]]:
    """Where each symbolic dimension of the inputs can be read."""
    symbols: dict[str, tuple[Value, int]] = {}
    for key, node in joint.inputs.items():
        for axis, dim in enumerate(shape_of(node)):
            if isinstance(dim, torch.SymInt):
                symbols.setdefault(str(dim.node.expr), (key, axis))
    return symbols


def _check_symbolic(joint: JointGraph) -> None:
    """Raise where a dimension that was to stay open was taken for a constant on the way."""
    for name, node in joint.inputs.items():
        if name in joint.symbolic and str(shape_of(node)[0]).isdigit():
            raise ExportError(
                f"the batch of input {name!r} cannot stay symbolic: the module computes with "
                f"{shape_of(node)[0]} as a constant; export without a symbolic batch"
            )


def _output(builder: Builder, lowering: Lowering, node: fx.Node, name: str) -> ValueInfoProto:
    builder.call(lowering.value(node), name)
    return _value_info(name, node)


def _value_info(name: str, node: fx.Node) -> ValueInfoProto:
    dims = [BATCH if isinstance(dim, torch.SymInt) else dim for dim in shape_of(node)]
    return value_info(name, numpy_dtype(dtype_of(node)), dims)
