"""Explicit copies where a value passes between the CPU and the device.

ONNX Runtime adds these copies itself when it creates a session (MemcpyTransformer in
onnxruntime/core/optimizer/transformer_memcpy.cc). A model that has them already is left alone, so
that planner decides their places. Its rules, which this module follows:

    made on the device, read on the host    one MemcpyToHost, for all readers on the host
    made on the host, read on the device    one MemcpyFromHost, for all readers on the device
    graph input read on both sides          one MemcpyFromHost; read on one side, it is fed there
    initializer                             no copy: one read on both sides is kept twice
    graph output                            no copy: it is fetched from where it was made

A device kernel reads some inputs in host memory and leaves some outputs there (shapes, axes): such an
input counts as read on the host, such an output as made on the host.

On the samples of `models/zoo` these are the copies that onnxruntime 1.31.1 adds for the WebGPU plugin
0.4.0. Two things differ. For a graph output made on the device and read on the host, ONNX Runtime
gives the file's name to the host's copy; here the value on the device keeps it, and names keep their
meaning. And copies are placed where they cost the device least: a copy to the host right after the
producer, a copy from it right before the first reader.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import onnx_ir as ir

from planner.graph.rules import FROM_HOST, TO_HOST
from planner.onnxio.names import FreeNames
from planner.runtime.device.predict.assumed import is_constant

Indices = Callable[[str, str, int], Collection[int]]
"""Returns the inputs or outputs in host memory of (op_type, domain, opset)."""


def with_borders(
    model: ir.Model,
    on_device: Mapping[str, bool],
    host_inputs: Indices,
    host_outputs: Indices,
) -> ir.Model:
    """Return a clone with a copy at every border; one per value and direction.

    Memcpy nodes of the file stay. Whatever their entry in `on_device`, a MemcpyToHost reads on the device
    and writes on the host, a MemcpyFromHost the reverse.

    Args:
        model: sorted, without subgraphs.
        on_device: whether each node runs on the device, by its name.
        host_inputs: inputs that a device kernel reads in host memory.
        host_outputs: outputs that a device kernel leaves in host memory.
    """
    clone = model.clone()
    graph = clone.graph
    sides = Sides(clone, on_device, host_inputs, host_outputs)
    names = FreeNames(clone)
    order = {node: position for position, node in enumerate(graph)}
    values = [*graph.inputs, *(value for node in graph for value in node.outputs)]
    for value in values:
        if is_constant(value):
            continue
        readers = sorted(value.uses(), key=lambda use: (order[use[0]], use[1]))
        by_side: dict[bool, list[tuple[ir.Node, int]]] = {True: [], False: []}
        for node, index in readers:
            by_side[sides.reads_device(node, index)].append((node, index))
        home = sides.home(value)
        if home is None:  # a graph input: fed on the host, unless all read it on the device
            home = not by_side[False]
        across = by_side[not home]
        if not across:
            continue
        copy = _copy(value, TO_HOST if home else FROM_HOST, names)
        producer = value.producer()
        if home and producer is not None:
            graph.insert_after(producer, copy)
        else:
            graph.insert_before(across[0][0], copy)
        for node, index in across:
            node.replace_input_with(index, copy.outputs[0])
    return clone


class Sides:
    """The side on which each node reads and writes."""

    def __init__(
        self,
        model: ir.Model,
        on_device: Mapping[str, bool],
        host_inputs: Indices,
        host_outputs: Indices,
    ) -> None:
        self._opsets = model.opset_imports
        self._on_device = on_device
        self._host_inputs = host_inputs
        self._host_outputs = host_outputs

    def reads_device(self, node: ir.Node, index: int) -> bool:
        """Tell whether the node reads this input in device memory."""
        if node.op_type in (TO_HOST, FROM_HOST):
            return node.op_type == TO_HOST
        return self._on_device[str(node.name)] and index not in self._host_inputs(*self._key(node))

    def home(self, value: ir.Value) -> bool | None:
        """Tell whether the value is made in device memory; None for a graph input."""
        node = value.producer()
        if node is None:
            return None
        if node.op_type in (TO_HOST, FROM_HOST):
            return node.op_type == FROM_HOST
        made_at = node.outputs.index(value)
        return self._on_device[str(node.name)] and made_at not in self._host_outputs(
            *self._key(node)
        )

    def _key(self, node: ir.Node) -> tuple[str, str, int]:
        return node.op_type, node.domain, self._opsets.get(node.domain, 1)


def _copy(value: ir.Value, op_type: str, names: FreeNames) -> ir.Node:
    place = "on_host" if op_type == TO_HOST else "on_device"
    name = names.fresh(f"{value.name}__{place}")
    output = ir.Value(name=name, type=value.type, shape=value.shape)
    return ir.Node("", op_type, [value], outputs=[output], name=name)
