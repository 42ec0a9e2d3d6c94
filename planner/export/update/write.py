"""Lower the update to ONNX nodes after those of the step."""

from __future__ import annotations

import numpy as np
from onnx import ValueInfoProto
from torch import Tensor

from planner.export.apart.complex.rewrite import is_complex
from planner.export.aten import Lowering
from planner.export.aten.registry import dtype_of
from planner.export.errors import UpdateRefused
from planner.export.optim import UPDATED_SUFFIX, StateTensor
from planner.export.trace.joint import JointGraph
from planner.export.update.trace import WITH_COMPLEX
from planner.export.update.traced import TracedUpdate
from planner.export.write.dtypes import array_of, numpy_dtype
from planner.export.write.emit import Value
from planner.export.write.nodes import lower_nodes, output_of


def write_update(
    update: TracedUpdate, joint: JointGraph, lowering: Lowering
) -> tuple[list[StateTensor], list[ValueInfoProto]]:
    """Append the update; return (inputs that it adds, its outputs).

    The step's gradients must be named already.
    """
    if any(is_complex(node.meta.get("val")) for node in update.module.graph.nodes):
        raise UpdateRefused(WITH_COMPLEX)
    builder = lowering.builder
    for name, node in update.fed.items():
        lowering.values[node] = _value_of(name, update, joint, lowering)
    for node, tensor in update.constants.items():
        lowering.values[node] = builder.literal(array_of(tensor), node.name)
    state: list[StateTensor] = []
    for item in update.state:
        if item.name not in joint.inputs:
            lowering.values[item.node] = builder.reserve(item.name)
        state.append(
            StateTensor(
                name=item.name,
                shape=tuple(item.initial.shape),
                dtype=numpy_dtype(item.initial.dtype),
                initial=_initial(item.initial),
            )
        )
    lower_nodes(update.module, lowering, first_use={})
    made = [(f"{name}{UPDATED_SUFFIX}", node) for name, node in update.updated.items()]
    made += [(f"{s.name}{UPDATED_SUFFIX}", s.new) for s in update.state if s.new is not None]
    made += update.results.items()
    return state, [output_of(lowering, node, name, dtype_of(node)) for name, node in made]


def _value_of(name: str, update: TracedUpdate, joint: JointGraph, lowering: Lowering) -> Value:
    """Return the ONNX value of a tensor of the step after the backward pass."""
    if name in joint.open:
        raise UpdateRefused(f"it reads the input {name!r}, whose size is open")
    if name not in joint.updated_buffers:
        return name
    if name not in update.updated:
        return f"{name}{UPDATED_SUFFIX}"
    held = {**joint.parameters, **joint.buffers}[name]
    return lowering.operand(joint.updated_buffers[name], dtype_of(held))


def _initial(tensor: Tensor) -> float | np.ndarray:
    """Return the initial value: one number if all elements are equal, else an array."""
    if tensor.is_meta:
        return 0.0
    array = array_of(tensor)
    first = array.flat[0] if array.size else 0
    return float(first) if (array == first).all() else array
