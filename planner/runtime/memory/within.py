"""Bytes that the bodies of a node hold while it runs, in addition to the outer graph's.

A body runs as a graph of its own, in the same arena. Its peak is that of its timeline, without
captured values, which belong to the outer graph, and without values that become the node's outputs.
In addition:

    If      the larger of its branches
    Loop    carried values of one pass, which the next one reads, and all slices of the scan outputs,
            which are joined at the end (core/providers/cpu/controlflow/loop.cc)
    Scan    the state twice, of the step before and of this one (`LoopStateVariable` in
            core/providers/cpu/controlflow/scan_utils.h); inputs scanned along another axis than the first
            are transposed first (scan_9.cc)

Where a shape within a body is unknown, so are the body's bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import onnx
import onnx_ir as ir

from planner.errors import ModelError
from planner.graph.build import build_graph
from planner.graph.liveness import timeline
from planner.graph.model import TrainingGraph
from planner.graph.schedule import default_order
from planner.onnxio.bodies import bodies, captured, has_bodies
from planner.onnxio.kinds import SEQUENCE
from planner.onnxio.load import ValueType, value_types
from planner.onnxio.names import name_nodes
from planner.runtime.memory.workspace import workspace

INNER_KEY = "pkg.planner.inner_bytes"
"""Metadata key of a node whose bodies have unknown sizes: their assumed bytes."""

_EXECUTOR_BYTES = 1024
"""Bytes of the few scalars that repeated runs of a body need: pass, condition."""

Types = Mapping[str, ValueType]


class OpenBodyError(ModelError):
    """The bytes of a node's bodies are unknown; `node` is the node's name."""

    def __init__(self, node: ir.Node) -> None:
        super().__init__(
            f"the memory that the bodies of node {node.name!r} ({node.op_type}) hold while they "
            f"run is not known; give an upper bound, as in --bound '{node.name}=64MB'"
        )
        self.node = str(node.name)


def with_bodies(graph: TrainingGraph, model: ir.Model, types: Types) -> TrainingGraph:
    """Return the graph with the bytes that its nodes' bodies hold.

    Args:
        model: the model of `graph`; types: types of its values.

    Raises:
        OpenBodyError: the bytes of a node's bodies are unknown.
    """
    nodes = {str(node.name): node for node in model.graph if has_bodies(node)}
    if not nodes:
        return graph
    opset = dict(model.graph.opset_imports)
    operations = tuple(
        replace(op, inner_bytes=_known_bytes(nodes[op.name], types, opset, model.ir_version))
        if op.name in nodes
        else op
        for op in graph.operations
    )
    return replace(graph, operations=operations)


def _known_bytes(node: ir.Node, types: Types, opset: Mapping[str, int], ir_version: int) -> int:
    """Return the bytes that a node's bodies hold: as computed, or as noted after a run (`INNER_KEY`)."""
    found = bytes_within(node, types, opset, ir_version)
    if found is None:
        text = node.metadata_props.get(INNER_KEY, "")
        if not (text.isascii() and text.isdigit() and len(text) < 16):
            raise OpenBodyError(node)
        return int(text)
    return found


def bytes_within(
    node: ir.Node, types: Types, opset: Mapping[str, int], ir_version: int
) -> int | None:
    """Return the most bytes that a node's bodies hold at once; None where a size is unknown.

    Args:
        types: types of the outer values that the node and its bodies read.
        opset: versions of the operator sets.
    """
    most = 0
    for body in bodies(node):
        given = _given(node, body, types)
        held = None if given is None else _peak(node, body, given, types, opset, ir_version)
        if held is None:
            return None
        most = max(most, held)
    if node.op_type not in _BETWEEN:
        return most if node.op_type == "If" else None
    return most + _BETWEEN[node.op_type](node, types)


def constant_bytes(node: ir.Node) -> int:
    """Return the bytes of the constants in a node's bodies: a session keeps them, and no run shows
    them."""
    found = 0
    for body in bodies(node):
        for part in (body, *body.subgraphs()):
            tensors = [value.const_value for value in part.initializers.values()]
            tensors += [n.attributes["value"].as_tensor() for n in part if "value" in n.attributes]
            found += sum(
                ValueType(dtype=tensor.dtype, shape=tuple(tensor.shape.numpy())).bytes
                for tensor in tensors
                if tensor is not None
            )
    return found


def _given(node: ir.Node, body: ir.Graph, types: Types) -> list[ValueType] | None:
    """Return the types of a body's inputs; None where the operator is unknown."""
    outer = [None if v is None or not v.name else types.get(str(v.name)) for v in node.inputs]
    if node.op_type == "If":
        return []
    if node.op_type == "Loop":
        scalars = [ValueType(dtype=t, shape=()) for t in (ir.DataType.INT64, ir.DataType.BOOL)]
        found = [*scalars, *outer[2:]]
    elif node.op_type == "Scan":
        axes = _axes(node, "scan_input_axes", _scanned(node))
        states = outer[: len(outer) - len(axes)]
        slices = [
            None if kind is None else ValueType(dtype=kind.dtype, shape=_without(kind.shape, axis))
            for kind, axis in zip(outer[len(states) :], axes, strict=True)
        ]
        found = [*states, *slices]
    else:
        return None
    return None if None in found else [kind for kind in found if kind is not None]


def _peak(
    node: ir.Node,
    body: ir.Graph,
    given: Sequence[ValueType],
    types: Types,
    opset: Mapping[str, int],
    ir_version: int,
) -> int | None:
    """Return the peak of a body, without captured values and the node's outputs."""
    read = {str(v.name): types.get(str(v.name)) for v in captured(node)}
    if any(kind is None or kind.called == SEQUENCE for kind in (*read.values(), *given)):
        return None
    inputs = {str(v.name): kind for v, kind in zip(body.inputs, given, strict=True)}
    inputs.update((name, kind) for name, kind in read.items() if kind is not None)
    model = _alone(body, inputs, opset, ir_version)
    if not len(model.graph):
        return 0
    try:
        found = value_types(model, {})
        graph = build_graph(model, found)
        graph = with_bodies(graph, model, found)
    except ModelError:
        return None
    after = [found.get(str(v.name)) for v in _handed_on(node, body)]
    before = given[2:] if node.op_type == "Loop" else given[: len(after)]
    if any(b != a for b, a in zip(before, after, strict=True)):
        return None  # a state that grows
    order = default_order(graph)
    line = timeline(graph, order)
    extra = workspace(graph, threads=1)
    made = {t for t in graph.outputs}
    most = 0
    for step, op in enumerate(order):
        held = sum(r.bytes for r in line.ranges if r.start <= step < r.end and r.tensor not in made)
        most = max(most, held + (extra[op].bytes if op in extra else 0))
    constants = sum(t.bytes for t in graph.tensors if t.is_initializer and t.name not in read)
    return most + constants


def _handed_on(node: ir.Node, body: ir.Graph) -> Sequence[ir.Value]:
    """Return the values that a body makes for the next pass."""
    if node.op_type == "Loop":
        return body.outputs[1 : len(node.inputs) - 1]
    if node.op_type == "Scan":
        return body.outputs[: len(node.inputs) - _scanned(node)]
    return ()


def _alone(body: ir.Graph, inputs: Types, opset: Mapping[str, int], ir_version: int) -> ir.Model:
    """Return a body as a model, with its captured values as inputs."""
    proto = ir.to_proto(body)
    own = {i.name for i in proto.initializer}
    del proto.input[:]
    for name, kind in inputs.items():
        if name not in own:
            value = onnx.helper.make_tensor_value_info(name, int(kind.dtype), kind.shape)
            proto.input.append(value)
    made = {name for n in proto.node for name in n.output}
    # values passed through unchanged: no node makes them, and they hold no bytes
    outputs = [v for v in proto.output if v.name in made]
    del proto.output[:]
    proto.output.extend(outputs)
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opset.items()]
    model = ir.from_proto(
        onnx.helper.make_model(proto, opset_imports=imports, ir_version=ir_version)
    )
    name_nodes(model)
    return model


def _between_passes(node: ir.Node, types: Types) -> int:
    carried = _EXECUTOR_BYTES + sum(_bytes(v, types) for v in node.inputs[2:])
    return carried + sum(_bytes(v, types) for v in node.outputs[len(node.inputs) - 2 :])


def _between_steps(node: ir.Node, types: Types) -> int:
    inputs = _axes(node, "scan_input_axes", _scanned(node))
    states = len(node.inputs) - len(inputs)
    outputs = _axes(node, "scan_output_axes", len(node.outputs) - states)
    turned = [v for v, axis in zip(node.inputs[states:], inputs, strict=True) if axis]
    turned += [v for v, axis in zip(node.outputs[states:], outputs, strict=True) if axis]
    state = sum(_bytes(v, types) for v in node.inputs[:states])
    return _EXECUTOR_BYTES + 2 * state + sum(_bytes(v, types) for v in turned)


_BETWEEN = {"Loop": _between_passes, "Scan": _between_steps}


def _bytes(value: ir.Value | None, types: Types) -> int:
    return types[str(value.name)].bytes if value is not None and value.name else 0


def _scanned(node: ir.Node) -> int:
    return node.attributes.get_int("num_scan_inputs", 0)


def _axes(node: ir.Node, name: str, count: int) -> Sequence[int]:
    return node.attributes.get_ints(name, [0] * count)


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    place = axis % len(shape) if shape else 0
    return shape[:place] + shape[place + 1 :]
