"""Graphs within nodes: the branches of an If, the bodies of a Loop and a Scan.

A body reads the inputs that its node passes to it, and captures values of the graphs around it by name.
ONNX Runtime counts captured values as inputs of the node (core/graph/graph.h, `ImplicitInputDefs`): they
are made before it runs, and stay until it is done.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx_ir as ir

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def bodies(node: ir.Node) -> tuple[ir.Graph, ...]:
    """Return the graphs in a node's attributes, in the order of the attributes."""
    found: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            found.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS:
            found.extend(attribute.as_graphs())
    return tuple(found)


def nodes_within(node: ir.Node) -> Iterator[ir.Node]:
    """Yield every node of a node's bodies, nested bodies included."""
    for body in bodies(node):
        yield from body.all_nodes()


def captured(node: ir.Node) -> tuple[ir.Value, ...]:
    """Return the values of outer graphs that a node's bodies read, each once, in the order of first
    use."""
    own: set[int] = set()
    read: dict[int, ir.Value] = {}
    for body in bodies(node):
        for part in (body, *body.subgraphs()):
            own.update(id(v) for v in (*part.inputs, *part.initializers.values()))
            read.update((id(v), v) for v in part.outputs)
        for inner in body.all_nodes():
            own.update(id(v) for v in inner.outputs)
            read.update((id(v), v) for v in inner.inputs if v is not None and v.name)
    return tuple(value for key, value in read.items() if key not in own)


def reads(node: ir.Node) -> tuple[ir.Value, ...]:
    """Return the values that a node reads: its inputs in order, then other values that its bodies
    capture."""
    inputs = tuple(value for value in node.inputs if value is not None and value.name)
    if not has_bodies(node):
        return inputs
    known = {id(value) for value in inputs}
    return (*inputs, *(value for value in captured(node) if id(value) not in known))


def has_bodies(node: ir.Node) -> bool:
    """Tell whether a node's attributes hold graphs."""
    for attribute in node.attributes.values():  # noqa: SIM110 (asked of every node, often)
        if attribute.type in _GRAPHS:
            return True
    return False


def rewire(node: ir.Node, replaced: dict[ir.Value, ir.Value]) -> None:
    """Make a node's bodies capture other values of the graphs around it."""
    for body in bodies(node):
        for part in (body, *body.subgraphs()):
            for place, value in enumerate(part.outputs):
                if value in replaced:
                    part.outputs[place] = replaced[value]
        for inner in body.all_nodes():
            for place, value in enumerate(inner.inputs):
                if value is not None and value in replaced:
                    inner.replace_input_with(place, replaced[value])


# -- the same for serialized models (protos) -----------------------------------------------------


def proto_bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs in a node's attributes."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH or attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def proto_reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node reads, captured ones included."""
    yield from filter(None, node.input)
    for body in proto_bodies(node):
        yield from proto_captured(body)


def proto_captured(body: onnx.GraphProto) -> Iterator[str]:
    """Yield the names that a body captures."""
    known = {v.name for v in body.input} | {i.name for i in body.initializer}
    for node in body.node:
        yield from (name for name in proto_reads(node) if name not in known)
        known.update(node.output)
    yield from (v.name for v in body.output if v.name not in known)


def all_proto_nodes(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """Yield every node of a graph or a function, nested bodies included."""
    for node in graph.node:
        yield node
        for body in proto_bodies(node):
            yield from all_proto_nodes(body)
