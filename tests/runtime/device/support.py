"""Small graphs with nodes on both sides, and what must hold once copies stand at the borders."""

from __future__ import annotations

import random

import numpy as np
import onnx_ir as ir

from planner.graph.model import TrainingGraph
from planner.pipeline.prepare.graphs import analysed_graph
from planner.runtime.device.borders import FROM_HOST, TO_HOST
from tests.runtime.support import constant, model_of, op, tensor

COPIES = {FROM_HOST, TO_HOST}


def graph_of(model: ir.Model) -> TrainingGraph:
    """The model's training graph, as if read from a file."""
    return analysed_graph(ir.from_proto(ir.to_proto(model)), {})


def no_host(op_type: str, domain: str, opset: int) -> tuple[int, ...]:
    """A device whose kernels read and write device memory alone."""
    return ()


def second_of_add(op_type: str, domain: str, opset: int) -> tuple[int, ...]:
    """A device whose Add reads its second input in host memory."""
    return (1,) if op_type == "Add" else ()


def size_makes_host(op_type: str, domain: str, opset: int) -> tuple[int, ...]:
    """A device whose Neg leaves its output in host memory."""
    return (0,) if op_type == "Neg" else ()


def copies(model: ir.Model) -> list[tuple[str, str, str]]:
    """(operator, value read, value made) of each copy, in order."""
    return [
        (node.op_type, str(node.inputs[0].name), str(node.outputs[0].name))  # type: ignore[union-attr]
        for node in model.graph
        if node.op_type in COPIES
    ]


def reads(model: ir.Model, name: str) -> list[str]:
    """Names of what the node called `name` reads."""
    (node,) = (node for node in model.graph if node.name == name)
    return [str(value.name) for value in node.inputs if value is not None]


def listing(model: ir.Model) -> list[tuple[str | None, ...]]:
    """Nodes with what they read and make, then the graph's outputs."""
    nodes = [
        (node.name, node.op_type, *(v and v.name for v in node.inputs), "->", node.outputs[0].name)
        for node in model.graph
    ]
    return [*nodes, tuple(value.name for value in model.graph.outputs)]


def without(model: ir.Model, kept: set[str]) -> ir.Model:
    """A clone without the copies that are not in `kept`, their readers reading the value itself."""
    clone = model.clone()
    for node in list(clone.graph):
        if node.op_type in COPIES and node.name not in kept:
            source = node.inputs[0]
            assert source is not None
            node.outputs[0].replace_all_uses_with(source)
            clone.graph.remove(node, safe=True)
    return clone


def mixed_model(seed: int, nodes: int) -> tuple[ir.Model, dict[str, bool]]:
    """A random graph and placement: graph inputs, an initializer, copies in the file."""
    draw = random.Random(seed)
    weight = constant("w", np.ones((4, 4), np.float32))
    values = [tensor("x", 4, 4), tensor("y", 4, 4), weight]
    inputs, made, placement = values[:2], [], {}
    for index in range(nodes):
        kind = draw.choice(["Add", "Neg", "Relu", FROM_HOST, TO_HOST])
        count = 2 if kind == "Add" else 1
        node = op(f"n{index}", kind, *(draw.choice(values) for _ in range(count)), shape=(4, 4))
        placement[f"n{index}"] = kind in COPIES or draw.random() < 0.5
        made.append(node)
        values.append(node.outputs[0])
    outputs = draw.sample([node.outputs[0] for node in made], min(3, nodes))
    return model_of(inputs, outputs, made, [weight]), placement
