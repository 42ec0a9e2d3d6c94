"""Lower a traced joint graph to an ONNX training graph.

Graph inputs: the caller's, then parameters and buffers under the module's own names. Outputs: `loss`,
other results of the loss function, `<parameter>_grad` for each parameter, and `<buffer>_new` for each
buffer that changes. With an optimizer, `<parameter>_new` and the optimizer's state replace the gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from onnx import ModelProto, ValueInfoProto
from torch import fx

from planner.export.apart.complex.rewrite import without_complex
from planner.export.aten import Lowering
from planner.export.aten.registry import Dim, describe, dtype_of, numpy_dtype, shape_of
from planner.export.dims import named, names_of
from planner.export.draws import Draw, Random
from planner.export.errors import ExportError, UnsupportedKernel
from planner.export.optim import GRADIENT_SUFFIX, UPDATED_SUFFIX, Optimizer, StateTensor, Trained
from planner.export.trace.joint import JointGraph
from planner.export.trace.returned import LOSS
from planner.export.update.traced import TracedUpdate
from planner.export.update.write import write_update
from planner.export.write.emit import Builder, Value, value_info
from planner.export.write.kernels import missing_bfloat16, refusal, with_casts
from planner.export.write.nodes import info_of, line_of, lower_nodes, output_of


@dataclass(frozen=True, kw_only=True)
class LoweredStep:
    """A finished model, and the roles of its inputs and outputs."""

    model: ModelProto
    inputs: tuple[str, ...]
    parameters: tuple[str, ...]
    """Parameters that receive a gradient."""
    buffers: tuple[str, ...]
    """Buffers, and parameters without gradient, that the graph reads."""
    state: tuple[StateTensor, ...]
    """The optimizer's inputs."""
    results: tuple[str, ...] = ()
    """Outputs that the loss function returns beside the loss."""
    draws: tuple[Draw, ...] = ()
    """Random tensors that are inputs."""
    missing_on_cpu: tuple[str, ...] = ()
    """Operators that ONNX Runtime's CPU provider cannot run in bfloat16, which keep the model from
    loading there."""


def lower(
    joint: JointGraph,
    name: str,
    *,
    optimizer: Optimizer | TracedUpdate | None = None,
    initializers: Mapping[str, np.ndarray] | None = None,
    cast_for_cpu: bool = False,
    random: Random = "graph",
) -> LoweredStep:
    """Write `joint` as an ONNX model called `name`.

    Args:
        initializers: values of the parameters and buffers to store in the model; the others are graph
            inputs.
        cast_for_cpu: make bfloat16 run on the CPU too: see `planner.export.write.kernels`.
        random: draw random tensors in the graph ("graph"), or take them as inputs ("inputs").

    Raises:
        ExportError: an operator cannot be written.
        UsageError: two tensors would have the same name.
    """
    initializers = initializers or {}
    joint = without_complex(joint)
    builder = Builder()
    tensors = {**joint.parameters, **joint.buffers}
    lowering = Lowering(builder, _symbols(joint), random=random)
    for key, node in {**joint.inputs, **tensors}.items():
        lowering.values[node] = builder.reserve(key)
    names = names_of(joint.open, _input_shapes(joint))
    for key in joint.outputs:
        builder.promise(key)
    lower_nodes(
        joint.module,
        lowering,
        first_use=joint.first_use,
        lowered=lambda node: _check_open(node, joint),
    )
    outputs, state = _outputs(joint, lowering, optimizer, names)
    read = builder.read_for(output.name for output in outputs)
    kept = [key for key in tensors if key in read]
    state = [item for item in state if item.name in read]
    draws = [draw for draw in lowering.draws if draw.name in read]
    inputs = [*_given(joint, names)]
    inputs += [info_of(key, tensors[key]) for key in kept if key not in initializers]
    of_state = [item for item in state if item.name not in joint.inputs]
    inputs += [value_info(item.name, item.dtype, item.shape) for item in of_state]
    inputs += [value_info(d.name, numpy_dtype(d.dtype), named(d.dims, names)) for d in draws]
    stored = {key: initializers[key] for key in kept if key in initializers}
    model = builder.finish(name, inputs, outputs, stored)
    model = with_casts(model, for_cpu=cast_for_cpu)
    return LoweredStep(
        model=model,
        missing_on_cpu=missing_bfloat16(model),
        draws=tuple(draws),
        inputs=tuple(joint.inputs),
        parameters=tuple(joint.parameters),
        buffers=tuple(key for key in joint.buffers if key in read),
        state=tuple(state),
        results=tuple(joint.outputs),
    )


def _given(joint: JointGraph, names: Mapping[str, str]) -> Iterator[ValueInfoProto]:
    """Yield the graph inputs for the step's own inputs."""
    for key, node in joint.inputs.items():
        yield value_info(key, numpy_dtype(dtype_of(node)), named(shape_of(node), names))


def _outputs(
    joint: JointGraph,
    lowering: Lowering,
    optimizer: Optimizer | TracedUpdate | None,
    names: Mapping[str, str],
) -> tuple[list[ValueInfoProto], Sequence[StateTensor]]:
    """Write the update's nodes; return the outputs in order, and the optimizer's state."""
    outputs = [output_of(lowering, joint.loss, LOSS)]
    outputs += [output_of(lowering, node, key, names=names) for key, node in joint.outputs.items()]
    gradients = {
        key: output_of(lowering, node, key + GRADIENT_SUFFIX)
        for key, node in joint.gradients.items()
    }
    rewritten = optimizer.updated if isinstance(optimizer, TracedUpdate) else {}
    if optimizer is not None and not isinstance(optimizer, TracedUpdate):
        rewritten = joint.parameters
    held = {**joint.parameters, **joint.buffers}
    buffers = [
        output_of(lowering, node, key + UPDATED_SUFFIX, dtype_of(held[key]))
        for key, node in joint.updated_buffers.items()
        if key not in rewritten
    ]
    state: Sequence[StateTensor] = ()
    if optimizer is None:
        outputs += gradients.values()
    elif isinstance(optimizer, TracedUpdate):
        state, updated = write_update(optimizer, joint, lowering)
        outputs += updated
        outputs += [info for key, info in gradients.items() if optimizer.leaves_gradient(key)]
    else:
        trained = {
            key: Trained(
                shape=tuple(int(dim) for dim in shape_of(node)),
                dtype=numpy_dtype(dtype_of(node)),
                value=lowering.operand(joint.updated_buffers.get(key, node), dtype_of(node)),
            )
            for key, node in joint.parameters.items()
        }
        state, made = optimizer.append(lowering.builder, trained, GRADIENT_SUFFIX, UPDATED_SUFFIX)
        outputs += [value_info(key, item.dtype, item.shape) for key, item in made]
    return [*outputs, *buffers], state


def _input_shapes(joint: JointGraph) -> dict[str, list[Dim]]:
    return {key: shape_of(node) for key, node in joint.inputs.items()}


def _check_open(node: fx.Node, joint: JointGraph) -> None:
    """Raise ExportError where lowering the node fixed an open dimension, or made two of them equal."""
    try:
        names_of(joint.open, _input_shapes(joint))
    except ExportError as error:
        raise ExportError(f"{error}: at {describe(node)}, {node.target}") from error


def check_kernels(graph: LoweredStep, joint: JointGraph) -> None:
    """Raise ExportError where ONNX Runtime's CPU provider cannot run a node of the graph.

    The error names the operator in `joint` from which the node was lowered.
    """
    model = with_casts(graph.model, for_cpu=True) if graph.missing_on_cpu else graph.model
    found = refusal(model)
    if found is None:
        return
    name, said = found
    made = next(node for node in model.graph.node if node.name == name)
    for node in joint.module.graph.nodes:
        if node.name == name.partition(".")[0]:
            line = line_of(node, joint.first_use)
            raise UnsupportedKernel(
                f"{made.op_type} in {_type_name(node)}", str(node.target), describe(node), line
            )
    raise ExportError(f"ONNX Runtime's CPU provider cannot run the optimizer's step: {said}")


def _type_name(node: fx.Node) -> str:
    """Return the floating-point type of an operator's result or operands."""
    held = [node.meta.get("val"), *(operand.meta.get("val") for operand in node.all_input_nodes)]
    kinds = [t.dtype for t in held if isinstance(t, torch.Tensor) and t.dtype.is_floating_point]
    return str(kinds[0] if kinds else getattr(held[0], "dtype", "its type")).removeprefix("torch.")


def _symbols(joint: JointGraph) -> dict[str, tuple[Value, int]]:
    """Map each symbolic dimension to an input and axis that have its size."""
    symbols: dict[str, tuple[Value, int]] = {}
    for key, node in joint.inputs.items():
        for axis, dim in enumerate(shape_of(node)):
            if isinstance(dim, torch.SymInt):
                symbols.setdefault(str(dim.node.expr), (key, axis))
    return symbols
