"""Structural checks on a model proto: faults that would otherwise fail later, without a name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import networkx as nx
import onnx

from planner.errors import ModelError
from planner.onnxio.bodies import all_proto_nodes, proto_bodies, proto_reads
from planner.onnxio.functions import Functions, called, check_functions, functions_of
from planner.onnxio.tensors import check_tensors
from planner.onnxio.texts import check_texts

_STANDARD = ("", "ai.onnx")
_RUNTIME = (
    "MemcpyToHost",
    "MemcpyFromHost",
    "MaxPoolGrad",
    "AveragePoolGrad",
    "SimplifiedLayerNormalization",
)
"""ONNX Runtime's own operators in the default domain: ONNX has no schema for them."""
_SPARSE = (onnx.AttributeProto.SPARSE_TENSOR, onnx.AttributeProto.SPARSE_TENSORS)


def check_structure(proto: onnx.ModelProto, path: Path) -> None:
    """Raise ModelError, naming the node or tensor, where `proto` is not a graph planner can read."""
    check_texts(proto, str(path))
    if proto.ir_version <= 0 or not proto.opset_import:
        raise ModelError(f"{path} is not an ONNX model: it has no IR version or no operator sets")
    graph = proto.graph
    if not graph.node:
        raise ModelError(f"{path} has no nodes: there is nothing to plan")
    if not graph.output:
        raise ModelError(f"{path} has no graph outputs: nothing would be computed")
    if graph.sparse_initializer:
        name = graph.sparse_initializer[0].values.name
        raise ModelError(f"sparse initializer {name!r} is not supported; store it dense")
    _check_types(graph)
    _check_names_and_order(graph)
    functions = functions_of(proto)
    opset = _opset(proto.opset_import)
    for node in all_proto_nodes(graph):
        _check_node(node, functions, opset)
        for body in proto_bodies(node):
            _check_body(body, node)
    for key, function in functions.items():
        for node in all_proto_nodes(function):
            _check_node(
                node, functions, _opset(function.opset_import), f" in function {str(key)!r}"
            )
            for body in proto_bodies(node):
                _check_body(body, node)
    check_functions(proto, functions)
    check_tensors(graph, proto.functions)


def _opset(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Return the version of each operator set, by domain.

    Raises:
        ModelError: an operator set is imported in two versions.
    """
    found: dict[str, int] = {}
    for entry in imports:
        domain = "" if entry.domain in _STANDARD else entry.domain
        if found.setdefault(domain, entry.version) != entry.version:
            raise ModelError(
                f"operator set {domain or 'ai.onnx'!r} is imported in two versions, "
                f"{found[domain]} and {entry.version}"
            )
    return found


def _check_types(graph: onnx.GraphProto) -> None:
    """Refuse graph inputs and outputs other than dense tensors; an input may be an optional one."""
    inputs = {value.name for value in graph.input}
    for value in (*graph.input, *graph.output):
        kind = value.type.WhichOneof("value")
        is_left_out = kind == "optional_type" and value.name in inputs
        if is_left_out and value.type.optional_type.elem_type.HasField("tensor_type"):
            continue  # planner.lower.optional_input
        if kind != "tensor_type":
            raise ModelError(
                f"graph input or output {value.name!r} is a {kind or 'value of no type'}; "
                "only dense tensors are supported there: a sequence may be within the graph, with what "
                "is taken out of it or concatenated as an output"
            )


def _check_names_and_order(graph: onnx.GraphProto) -> None:
    initializers = [i.name for i in graph.initializer]
    inputs = [i.name for i in graph.input]
    outputs = [o.name for o in graph.output]
    lists = (("initializer", initializers), ("graph input", inputs), ("graph output", outputs))
    for what, names in lists:
        duplicate = _first_duplicate(names)
        if "" in names:
            raise ModelError(
                f"an {what} has no name" if what[0] == "i" else f"a {what} has no name"
            )
        if duplicate is not None:
            raise ModelError(f"{what} {duplicate!r} is defined twice; names must be unique")
    known = {*initializers, *inputs}
    producer: dict[str, int] = {}
    for index, node in enumerate(graph.node):
        for name in filter(None, node.output):
            if name in producer or name in known:
                raise ModelError(
                    f"tensor {name!r} is defined twice (again by node {describe(node, index)}); "
                    "names must be unique"
                )
            producer[name] = index
    available = set(known)
    for index, node in enumerate(graph.node):
        for name in proto_reads(node):
            if name in available:
                continue
            if name not in producer:
                raise ModelError(
                    f"node {describe(node, index)} reads {name!r}, which nothing produces"
                )
            _raise_unsorted(graph, producer, index, name)
        available.update(filter(None, node.output))
    for output in graph.output:
        if output.name not in available:
            raise ModelError(f"graph output {output.name!r} is produced by no node")


def _raise_unsorted(
    graph: onnx.GraphProto, producer: dict[str, int], index: int, name: str
) -> None:
    edges = nx.DiGraph()
    for reader, node in enumerate(graph.node):
        edges.add_edges_from((producer[i], reader) for i in proto_reads(node) if i in producer)
    try:
        cycle = nx.find_cycle(edges)
    except nx.NetworkXNoCycle:
        node, source = graph.node[index], graph.node[producer[name]]
        raise ModelError(
            f"the graph is not sorted: node {describe(node, index)} reads {name!r}, which "
            f"node {describe(source, producer[name])} produces later; sort it topologically first"
        ) from None
    nodes = " -> ".join(describe(graph.node[a], a) for a, _ in cycle)
    raise ModelError(f"the graph has a cycle: {nodes}")


def _check_node(
    node: onnx.NodeProto, functions: Functions, opset: dict[str, int], where: str = ""
) -> None:
    label = f"{node.name or '(unnamed)'!r} ({node.op_type}){where}"
    if not any(node.output):
        raise ModelError(f"node {label} has no outputs: it computes nothing; remove it")
    _check_attributes(node, label)
    if called(node) in functions:
        return
    domain = "" if node.domain in _STANDARD else node.domain
    if domain not in opset:
        raise ModelError(
            f"node {label} is of domain {node.domain!r}, which the model does not import"
        )
    if domain == "" and node.op_type not in _RUNTIME and not onnx.defs.has(node.op_type):
        raise ModelError(f"node {label}: ONNX has no operator of that name")


def _check_body(body: onnx.GraphProto, node: onnx.NodeProto) -> None:
    """Check that a body defines each name once. Its captured values are checked with its node."""
    label = f"{node.name or '(unnamed)'!r} ({node.op_type})"
    if body.sparse_initializer:
        raise ModelError(f"the body of node {label} has a sparse initializer; store it dense")
    made = [*(v.name for v in body.input), *(o for n in body.node for o in n.output if o)]
    inputs = {v.name for v in body.input}
    made += [i.name for i in body.initializer if i.name not in inputs]
    duplicate = _first_duplicate(made)
    if duplicate is not None:
        raise ModelError(f"tensor {duplicate!r} is defined twice in the body of node {label}")
    if not body.output:
        raise ModelError(f"the body of node {label} has no outputs")


def _check_attributes(node: onnx.NodeProto, label: str) -> None:
    duplicate = _first_duplicate(a.name for a in node.attribute)
    if duplicate is not None:
        raise ModelError(f"node {label} has the attribute {duplicate!r} twice")
    for attribute in node.attribute:
        if attribute.type in _SPARSE or attribute.HasField("sparse_tensor"):
            raise ModelError(
                f"node {label} has a sparse tensor ({attribute.name}), which is not supported; "
                "store it dense"
            )
        if attribute.type == onnx.AttributeProto.UNDEFINED and not attribute.ref_attr_name:
            raise ModelError(f"node {label} has the attribute {attribute.name!r} of no known type")
        if attribute.type == onnx.AttributeProto.STRINGS:
            _check_strings(attribute, label)


def _check_strings(attribute: onnx.AttributeProto, label: str) -> None:
    """Check that a list of strings is UTF-8: onnx_ir keeps other bytes only in single strings."""
    for text in attribute.strings:
        try:
            text.decode("utf-8")
        except UnicodeDecodeError:
            raise ModelError(
                f"node {label} has an attribute {attribute.name!r} that is not UTF-8 text"
            ) from None


def describe(node: onnx.NodeProto, index: int) -> str:
    """Return `'conv1' (Conv)`, or the node's position where it has no name."""
    return f"{node.name!r} ({node.op_type})" if node.name else f"#{index} ({node.op_type})"


def _first_duplicate(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
