"""Small models to break: a graph on `x` of [SIDE, SIDE] with output `y`, unless told otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto as T
from onnx import helper as h

SIDE = 16


def info(name: str, *shape: int | str | None, dtype: int = T.FLOAT) -> onnx.ValueInfoProto:
    """A tensor by name, shape and element type."""
    return h.make_tensor_value_info(name, dtype, shape)


def node(kind: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    """A node that bears the name of its first output."""
    name = attributes.pop("name", outputs[0] if outputs else kind)
    return h.make_node(kind, inputs, outputs, name=name, **attributes)


def proto(
    nodes: Iterable[onnx.NodeProto],
    *,
    inputs: Sequence[onnx.ValueInfoProto] | None = None,
    outputs: Sequence[onnx.ValueInfoProto] | None = None,
    initializers: Sequence[onnx.TensorProto] = (),
    opsets: Sequence[tuple[str, int]] = (("", 18),),
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """A model of these nodes."""
    graph = h.make_graph(
        list(nodes),
        "case",
        inputs or [info("x", SIDE, SIDE)],
        outputs or [info("y", SIDE, SIDE)],
        list(initializers),
    )
    imports = [h.make_opsetid(domain, version) for domain, version in opsets]
    return h.make_model(graph, opset_imports=imports, ir_version=9, functions=list(functions))


def diamond(length: int = 6) -> list[onnx.NodeProto]:
    """A chain whose values are all read again on the way back."""
    nodes = [node("Tanh", ["x" if i == 0 else f"a{i - 1}"], [f"a{i}"]) for i in range(length)]
    last = f"a{length - 1}"
    for i in reversed(range(length - 1)):
        nodes.append(node("Mul", [last, f"a{i}"], ["y" if i == 0 else f"b{i}"]))
        last = f"b{i}"
    return nodes


def save(model: onnx.ModelProto, path: str | Path = "model.onnx") -> str:
    """Write the model's bytes, whatever they are worth."""
    Path(path).write_bytes(model.SerializeToString())
    return str(path)
