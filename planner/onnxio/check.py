"""Structural checks on a model proto: everything that would otherwise fail later, unnamed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import networkx as nx
import onnx
import onnx_ir as ir

from planner.errors import ModelError

_STANDARD = ("", "ai.onnx")
BLOCKED_LAYOUT = "com.microsoft.nchwc"
_RUNTIME = ("MemcpyToHost", "MemcpyFromHost", "MaxPoolGrad", "AveragePoolGrad")
"""ONNX Runtime's own operators in the default domain: ONNX has no schema for them."""


def check_structure(proto: onnx.ModelProto, path: Path) -> None:
    """Raise ModelError, naming the node or tensor, where `proto` is not a graph planner can read."""
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
    functions = {(f.domain, f.name) for f in proto.functions}
    opset = {o.domain: o.version for o in proto.opset_import}
    for node in graph.node:
        _check_node(node, functions, opset)


def _check_types(graph: onnx.GraphProto) -> None:
    for value in (*graph.input, *graph.output):
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type":
            raise ModelError(
                f"graph input or output {value.name!r} is a {kind or 'value of no type'}; "
                "only dense tensors are supported"
            )


def _check_names_and_order(graph: onnx.GraphProto) -> None:
    initializers = [i.name for i in graph.initializer]
    inputs = [i.name for i in graph.input]
    outputs = [o.name for o in graph.output]
    lists = (("initializer", initializers), ("graph input", inputs), ("graph output", outputs))
    for what, names in lists:
        duplicate = _first_duplicate(names)
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
        for name in filter(None, node.input):
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
        edges.add_edges_from((producer[i], reader) for i in node.input if i in producer)
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
    node: onnx.NodeProto, functions: set[tuple[str, str]], opset: dict[str, int]
) -> None:
    label = f"{node.name or '(unnamed)'!r} ({node.op_type})"
    for attribute in node.attribute:
        if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
            raise ModelError(
                f"node {label} has a subgraph ({attribute.name}); control flow is not supported: "
                "unroll it or export without it"
            )
    if (node.domain, node.op_type) in functions:
        return
    if node.domain == BLOCKED_LAYOUT:
        raise ModelError(
            f"node {label} works on ONNX Runtime's blocked layout (NCHWc), which is for one kind of "
            "processor alone; save the optimized model at the level ORT_ENABLE_EXTENDED instead"
        )
    domain = "" if node.domain in _STANDARD else node.domain
    if domain not in opset and not (domain == "" and "ai.onnx" in opset):
        raise ModelError(
            f"node {label} is of domain {node.domain!r}, which the model does not import"
        )
    if domain == "" and node.op_type not in _RUNTIME and not onnx.defs.has(node.op_type):
        raise ModelError(f"node {label}: ONNX has no operator of that name")


def describe(node: onnx.NodeProto, index: int) -> str:
    """`'conv1' (Conv)`, or the node's position where it has no name."""
    return f"{node.name!r} ({node.op_type})" if node.name else f"#{index} ({node.op_type})"


def _first_duplicate(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def check_external_data(proto: onnx.ModelProto, folder: Path) -> None:
    """Raise ModelError where an external-data file is missing, too short, or outside `folder`;
    reads no data."""
    for tensor in proto.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        fields = {entry.key: entry.value for entry in tensor.external_data}
        location = fields.get("location", "")
        file = folder / location
        if Path(location).is_absolute() or ".." in Path(location).parts:
            raise ModelError(
                f"external data of initializer {tensor.name!r} is {location!r}, which does not lie "
                "below the model's folder"
            )
        if not location or not file.is_file():
            raise ModelError(
                f"external data of initializer {tensor.name!r} is missing: {location or '?'} "
                f"should stand beside the model, in {folder}"
            )
        size = _tensor_bytes(tensor)
        length = _field(tensor, fields, "length", size)
        if length != size:
            raise ModelError(
                f"external data of initializer {tensor.name!r} is {length} bytes long; its type "
                f"and shape need {size}"
            )
        end = _field(tensor, fields, "offset", 0) + length
        if file.stat().st_size < end:
            raise ModelError(
                f"external data file {location} is truncated: initializer {tensor.name!r} ends at "
                f"byte {end}, the file at {file.stat().st_size}"
            )


def _field(tensor: onnx.TensorProto, fields: Mapping[str, str], key: str, default: int) -> int:
    text = fields.get(key, str(default))
    if not text.isascii() or not text.isdigit():
        raise ModelError(
            f"external data of initializer {tensor.name!r}: {key} {text!r} is not a number of bytes"
        )
    return int(text)


def _tensor_bytes(tensor: onnx.TensorProto) -> int:
    try:
        bits = ir.DataType(tensor.data_type).bitwidth
    except (TypeError, ValueError):
        raise ModelError(
            f"initializer {tensor.name!r} has a type of no fixed size ({tensor.data_type})"
        ) from None
    return -(-math.prod(tensor.dims) * bits // 8)
