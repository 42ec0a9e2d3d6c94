"""A group as a program of `planner.fused::Pointwise`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.fuse.groups import Group, GroupSearch, Shape, Space
from planner.fuse.operators import Writer
from planner.graph.model import Tensor, TensorId


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The program of a node.

    Attributes:
        text: the node's attribute `program`.
        inputs, outputs: tensors of the graph, in the node's order.
    """

    text: str
    inputs: tuple[TensorId, ...]
    outputs: tuple[TensorId, ...]


def outside(ground: GroupSearch, group: Group) -> tuple[TensorId, ...]:
    """Return a group's inputs in the order of first use, without constants."""
    members = {*group.operations, *group.again}
    found: dict[TensorId, None] = {}
    for op in sorted(members):
        for tensor in ground.read(ground.graph.operations[op]):
            made_here = ground.graph.tensors[tensor].producer in members
            if not made_here and tensor not in ground.constants:
                found[tensor] = None
    return tuple(found)


def program_of(
    ground: GroupSearch, group: Group, outputs: tuple[TensorId, ...], dying: frozenset[TensorId]
) -> Program | None:
    """Write a group's program; return None where its inputs do not broadcast to its space.

    Args:
        outputs: the tensors that the node writes.
        dying: inputs that nothing else reads: the node may overwrite one of these.
    """
    graph, space = ground.graph, group.space
    inputs = list(outside(ground, group))
    first = _in_place(ground, space, inputs, outputs, dying)
    if first is not None:
        inputs.remove(first)
        inputs.insert(0, first)
    shapes = [graph.tensors[t].shape for t in inputs]
    if not inputs or np.broadcast_shapes(*shapes) != space.shape:
        return None
    writer = Writer()
    names = {t: f"x{i}" for i, t in enumerate(inputs)}
    head = [f"axes {space.axes}"] if space.axes else []
    for tensor, name in names.items():
        row = " row" if _is_row(space, graph.tensors[tensor].shape) else ""
        head.append(f"{name} = input {graph.tensors[tensor].dtype}{row}")
    _write(ground, group, writer, names)
    tail = [f"output {names[t]}{_axes(space, graph.tensors[t])}" for t in outputs]
    text = "\n".join((*head, *writer.lines, *tail)) + "\n"
    return Program(text=text, inputs=tuple(inputs), outputs=outputs)


def _write(ground: GroupSearch, group: Group, writer: Writer, names: dict[TensorId, str]) -> None:
    """Write the steps, and add the names of their results to `names`."""
    graph = ground.graph
    for op in sorted({*group.operations, *group.again}):
        operation = graph.operations[op]
        row = ground.row(operation)
        assert row is not None
        values: list[str] = []
        for tensor in ground.read(operation):
            if tensor not in names:
                names[tensor] = writer.constant(
                    graph.tensors[tensor].dtype, ground.constants[tensor]
                )
            values.append(names[tensor])
        dtype = graph.tensors[operation.inputs[0]].dtype
        attributes = dict(operation.attributes or {})
        if operation.op_type == "Pow":
            attributes["exponent"] = ground.exponent(operation)
        made = row.emit(writer, values, dtype, attributes)
        names.update(zip(operation.outputs, made, strict=False))


def _is_row(space: Space, shape: Shape) -> bool:
    """Tell whether an input has one element per row."""
    return bool(space.axes) and all(dim == 1 for dim in shape[-space.axes :])


def _axes(space: Space, tensor: Tensor) -> str:
    """Return the suffix of an output's line: whether it keeps a row's axes."""
    if not space.axes or tensor.shape == space.shape:
        return ""
    return " keep"


def _in_place(
    ground: GroupSearch,
    space: Space,
    inputs: list[TensorId],
    outputs: tuple[TensorId, ...],
    dying: frozenset[TensorId],
) -> TensorId | None:
    """Return an input that the first output may overwrite; None where there is none."""
    graph = ground.graph
    target = graph.tensors[outputs[0]]
    for tensor in inputs:
        found = graph.tensors[tensor]
        alike = found.shape == target.shape == space.shape and found.dtype == target.dtype
        if alike and tensor in dying and not found.is_persistent:
            return tensor
    return None
