"""Checks of a model's functions, after which inlining can neither fail nor run away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import networkx as nx
import onnx

from planner.errors import ModelError
from planner.onnxio.bodies import all_proto_nodes, proto_reads

MAX_NODES = 2_000_000
"""The most nodes of a model with its functions inlined. Functions that call each other twice, thirty
deep, would make a thousand million."""


class FunctionId(NamedTuple):
    """The key by which a node calls a function."""

    domain: str
    name: str
    overload: str

    def __str__(self) -> str:
        text = f"{self.domain}::{self.name}" if self.domain else self.name
        return f"{text}:{self.overload}" if self.overload else text


Functions = Mapping[FunctionId, onnx.FunctionProto]


def called(node: onnx.NodeProto) -> FunctionId:
    """Return the function that `node` calls, if one of that name exists."""
    return FunctionId(node.domain, node.op_type, node.overload)


def functions_of(proto: onnx.ModelProto) -> Functions:
    """Return the model's functions.

    Raises:
        ModelError: two functions have the same name.
    """
    found: dict[FunctionId, onnx.FunctionProto] = {}
    for function in proto.functions:
        key = FunctionId(function.domain, function.name, function.overload)
        if key in found:
            raise ModelError(f"function {str(key)!r} is defined twice; names must be unique")
        found[key] = function
    return found


def check_functions(proto: onnx.ModelProto, functions: Functions) -> None:
    """Raise ModelError where the model's functions cannot be inlined.

    They must not be recursive, must fit their calls and the model's operator sets, and must make at
    most `MAX_NODES` nodes.
    """
    if not functions:
        return
    nodes = _nodes_inlined(functions)
    opset = {o.domain: o.version for o in proto.opset_import}
    for key, function in functions.items():
        _check_body(key, function)
        for wanted in function.opset_import:
            has = opset.get(wanted.domain, wanted.version)
            if has != wanted.version:
                raise ModelError(
                    f"function {str(key)!r} is written in version {wanted.version} of the operator "
                    f"set {wanted.domain or 'ai.onnx'!r}, the model in version {has}; convert one"
                )
        _check_calls(all_proto_nodes(function), functions)
    _check_calls(all_proto_nodes(proto.graph), functions)
    total = sum(nodes.get(called(node), 1) for node in all_proto_nodes(proto.graph))
    if total > MAX_NODES:
        raise ModelError(
            f"the model has {total} nodes once its functions are inlined; planner takes up to "
            f"{MAX_NODES}"
        )


def _nodes_inlined(functions: Functions) -> dict[FunctionId, int]:
    """Return the number of nodes of each function, with all calls within it inlined."""
    calls = nx.DiGraph()
    calls.add_nodes_from(functions)
    for key, function in functions.items():
        within = all_proto_nodes(function)
        calls.add_edges_from((key, called(n)) for n in within if called(n) in functions)
    try:
        order = list(reversed(list(nx.topological_sort(calls))))
    except nx.NetworkXUnfeasible:
        cycle = [a for a, _ in nx.find_cycle(calls)]
        text = " -> ".join(map(str, [*cycle, cycle[0]]))
        raise ModelError(f"functions call each other in a circle: {text}") from None
    count: dict[FunctionId, int] = {}
    for key in order:
        within = all_proto_nodes(functions[key])
        count[key] = sum(count.get(called(node), 1) for node in within)
    return count


def _check_body(key: FunctionId, function: onnx.FunctionProto) -> None:
    """Check a function's names: each is defined once, before it is read, and every output is defined."""
    known = set(function.input)
    if len(known) != len(function.input):
        raise ModelError(f"function {str(key)!r} has two inputs of one name")
    for node in function.node:
        for name in proto_reads(node):
            if name not in known:
                raise ModelError(
                    f"function {str(key)!r}: a node ({node.op_type}) reads {name!r}, which nothing "
                    "before it produces"
                )
        for name in filter(None, node.output):
            if name in known:
                raise ModelError(f"function {str(key)!r} defines {name!r} twice")
            known.add(name)
    for name in function.output:
        if name not in known or name in function.input:
            raise ModelError(f"output {name!r} of function {str(key)!r} is produced by no node")
    if len(set(function.output)) != len(function.output):
        raise ModelError(f"function {str(key)!r} has two outputs of one name")


def _check_calls(nodes: Iterable[onnx.NodeProto], functions: Functions) -> None:
    for node in nodes:
        function = functions.get(called(node))
        if function is None:
            continue
        for what, given, takes in (
            ("inputs", node.input, function.input),
            ("outputs", node.output, function.output),
        ):
            if len(given) > len(takes):
                raise ModelError(
                    f"node {node.name!r} calls function {str(called(node))!r} with {len(given)} "
                    f"{what}; the function has {len(takes)}"
                )
        if len(node.output) < len(function.output):  # ONNX Runtime does not load such a call
            raise ModelError(
                f"node {node.name!r} calls function {str(called(node))!r} for {len(node.output)} "
                f"outputs; name all {len(function.output)} of the function"
            )
