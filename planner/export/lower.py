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
from planner.export.aten.registry import Dim, array_of, describe, dtype_of, numpy_dtype, shape_of
from planner.export.complexes import without_complex
from planner.export.dims import named, names_of
from planner.export.draws import Draw, Random
from planner.export.emit import Builder, Value, value_info
from planner.export.errors import ExportError, UnsupportedKernel, UnsupportedOperator
from planner.export.joint import JointGraph
from planner.export.kernels import missing_bfloat16, refusal, with_casts
from planner.export.optim import Optimizer, StateTensor, Trained
from planner.export.promotion import promote
from planner.export.torchlib import translate

LOSS = "loss"
GRADIENT_SUFFIX = "_grad"
UPDATED_SUFFIX = "_new"
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
    draws: tuple[Draw, ...] = ()
    """Random tensors that are inputs."""
    missing_on_cpu: tuple[str, ...] = ()
    """Operators that ONNX Runtime's CPU provider cannot run in bfloat16, which keep the model from
    loading there."""


def lower(
    joint: JointGraph,
    name: str,
    *,
    optimizer: Optimizer | None = None,
    initializers: Mapping[str, np.ndarray] | None = None,
    cast_for_cpu: bool = False,
    random: Random = "graph",
) -> TrainingGraph:
    """Write `joint` as an ONNX model called `name`.

    Args:
        initializers: values of the parameters and buffers that shall be stored in the model; the
            others are graph inputs.
        cast_for_cpu: bfloat16 runs on the CPU, too: see `planner.export.kernels`.
        random: who draws random tensors.

    Raises:
        ExportError: an operator cannot be written, or not run on the CPU in its type.
    """
    initializers = initializers or {}
    joint = without_complex(joint)
    promote(joint.module.graph)
    builder = Builder()
    tensors = {**joint.parameters, **joint.buffers}
    lowering = Lowering(builder, _symbols(joint), random=random)
    for key, node in {**joint.inputs, **tensors}.items():
        lowering.values[node] = builder.reserve(key)
    names = names_of(joint.open, _input_shapes(joint))
    _lower_nodes(joint, lowering)

    outputs = [_output(builder, lowering, joint.loss, LOSS)]
    gradients = {
        key: _output(builder, lowering, node, key + GRADIENT_SUFFIX)
        for key, node in joint.gradients.items()
    }
    buffers = [
        _output(builder, lowering, node, key + UPDATED_SUFFIX, dtype_of(joint.buffers[key]))
        for key, node in joint.updated_buffers.items()
    ]
    state: list[StateTensor] = []
    if optimizer is None:
        outputs += gradients.values()
    else:
        trained = {
            key: Trained(
                shape=tuple(int(dim) for dim in shape_of(node)), dtype=numpy_dtype(dtype_of(node))
            )
            for key, node in joint.parameters.items()
        }
        state, updated = optimizer.append(builder, trained, GRADIENT_SUFFIX, UPDATED_SUFFIX)
        outputs += [value_info(key, made.dtype, made.shape) for key, made in updated]
    outputs += buffers

    read = builder.read_for(output.name for output in outputs)
    kept = [key for key in tensors if key in read]
    inputs = [
        value_info(key, numpy_dtype(dtype_of(node)), named(shape_of(node), names))
        for key, node in joint.inputs.items()
    ]
    inputs += [_value_info(key, tensors[key]) for key in kept if key not in initializers]
    inputs += [value_info(item.name, item.dtype, item.shape) for item in state]
    draws = [draw for draw in lowering.draws if draw.name in read]
    inputs += [
        value_info(draw.name, numpy_dtype(draw.dtype), named(draw.dims, names)) for draw in draws
    ]
    stored = {key: initializers[key] for key in kept if key in initializers}
    model = builder.finish(name, inputs, outputs, stored)
    model = with_casts(model, for_cpu=cast_for_cpu)
    missing = missing_bfloat16(model)
    _check_kernels(with_casts(model, for_cpu=True) if missing else model, joint)
    return TrainingGraph(
        model=model,
        missing_on_cpu=missing,
        draws=tuple(draws),
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
                array = array_of(folded[operand])
                lowering.values[operand] = lowering.builder.literal(array, operand.name)
        try:
            lowering.values[node] = _apply(node, lowering)
            _check_open(node, joint)
        except UnsupportedOperator as error:
            line = _line_of(node, joint.first_use)
            missing.setdefault(error.operator, error.called_at(line))
            lowering.values[node] = _stand_in(node, lowering)
    if missing:
        first, *others = missing.values()
        raise first.together_with(others)
    for node in module.graph.find_nodes(op="output")[0].all_input_nodes:
        if node in folded and node not in lowering.values:
            lowering.values[node] = lowering.builder.constant(array_of(folded[node]))


def _input_shapes(joint: JointGraph) -> dict[str, list[Dim]]:
    return {key: shape_of(node) for key, node in joint.inputs.items()}


def _check_open(node: fx.Node, joint: JointGraph) -> None:
    """Raise where lowering the node took an open dimension for a constant, or two for one."""
    try:
        names_of(joint.open, _input_shapes(joint))
    except ExportError as error:
        raise ExportError(f"{error}: at {describe(node)}, {node.target}") from error


def _check_kernels(model: ModelProto, joint: JointGraph) -> None:
    """Raise where ONNX Runtime's CPU provider cannot run a node, naming what it was made of."""
    found = refusal(model)
    if found is None:
        return
    name, said = found
    made = next(node for node in model.graph.node if node.name == name)
    for node in joint.module.graph.nodes:
        if node.name == name.partition(".")[0]:
            line = _line_of(node, joint.first_use)
            raise UnsupportedKernel(
                f"{made.op_type} in {_type_name(node)}", str(node.target), describe(node), line
            )
    raise ExportError(f"ONNX Runtime's CPU provider cannot run the optimizer's step: {said}")


def _type_name(node: fx.Node) -> str:
    """The floating-point type of what an operator reads or makes."""
    held = [node.meta.get("val"), *(operand.meta.get("val") for operand in node.all_input_nodes)]
    kinds = [t.dtype for t in held if isinstance(t, torch.Tensor) and t.dtype.is_floating_point]
    return str(kinds[0] if kinds else getattr(held[0], "dtype", "its type")).removeprefix("torch.")


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
    if isinstance(node.meta.get("val"), _SYMBOLIC) or target.namespace == "profiler":
        return None
    key = str(target).removeprefix("aten.")
    if key not in RULES:
        if lowering.random == "inputs" and torch.Tag.nondeterministic_seeded in target.tags:
            reason = "it draws at random, and what it draws cannot be fed"
            raise UnsupportedOperator(str(target), describe(node), reason)
        return _translated(node, lowering)
    args, kwargs = fx.map_arg((node.args, node.kwargs), _dimension)
    try:
        return lowering.apply(key, args, kwargs)
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
    if isinstance(found, str) and isinstance(node.meta.get("val"), list | tuple):
        reason = "torchlib makes an ONNX sequence of it"
        raise UnsupportedOperator(str(node.target), describe(node), reason)
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


def _output(
    builder: Builder,
    lowering: Lowering,
    node: fx.Node,
    name: str,
    dtype: torch.dtype | None = None,
) -> ValueInfoProto:
    """Call a traced value `name`, converted where another type is wanted."""
    lowering.node = node
    builder.call(lowering.operand(node, dtype or dtype_of(node)), name)
    return _value_info(name, node, dtype)


def _value_info(name: str, node: fx.Node, dtype: torch.dtype | None = None) -> ValueInfoProto:
    return value_info(name, numpy_dtype(dtype or dtype_of(node)), named(shape_of(node), {}))
