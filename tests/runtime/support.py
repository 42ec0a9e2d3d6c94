"""Small models for the runtime tests, built with onnx-ir and judged by ONNX Runtime."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from planner.graph.model import OpId, TrainingGraph
from planner.onnxio.load import load_model
from planner.pipeline.prepare.graphs import analysed_graph
from planner.runtime.memory.arena import (
    RECOMMENDED,
    capped,
    demand_under_cap,
    reserved_bytes,
    simulate,
)
from planner.runtime.memory.bfc import ROUNDING, ArenaFullError, round_up

FLOAT = ir.TensorType(ir.DataType.FLOAT)


def tensor(name: str, *shape: int) -> ir.Value:
    """A float value."""
    return ir.Value(name=name, shape=ir.Shape(shape), type=FLOAT)


def constant(name: str, array: np.ndarray) -> ir.Value:
    """An initializer."""
    return ir.Value(name=name, const_value=ir.tensor(array, name=name))


def model_of(
    inputs: list[ir.Value],
    outputs: list[ir.Value],
    nodes: list[ir.Node],
    initializers: list[ir.Value] | None = None,
) -> ir.Model:
    """A model at opset 20."""
    graph = ir.Graph(
        inputs,
        outputs,
        nodes=nodes,
        initializers=initializers or [],
        opset_imports={"": 20},
        name="test",
    )
    return ir.Model(graph, ir_version=10)


def save(model: ir.Model, path: Path) -> tuple[Path, TrainingGraph]:
    """Write the model; its path and training graph."""
    ir.save(model, path)
    return path, analysed_graph(load_model(path).model, {})


def fits(graph: TrainingGraph, order: Sequence[OpId], cap_bytes: int) -> bool:
    """Whether two runs, with small initializers, fit in an arena of one region of so many bytes."""
    demand = demand_under_cap(graph, order, threads=1)
    try:
        simulate(graph, order, capped(cap_bytes), demand=demand)
    except ArenaFullError:
        return False
    return True


def op(name: str, op_type: str, *inputs: ir.Value, shape: tuple[int, ...], **attributes) -> ir.Node:
    """A node with one float output called like the node."""
    node = ir.node(op_type, list(inputs), attributes, name=name)
    value = node.outputs[0]
    value.name, value.shape, value.type = f"{name}:out", ir.Shape(shape), FLOAT
    return node


def random_model(seed: int, nodes: int) -> ir.Model:
    """A random graph of elementwise operators, in-place ones, views and concatenations."""
    choose = random.Random(seed)
    rows = [choose.randint(1, 40) * 100 for _ in range(3)]
    values = [tensor(f"x{i}", r, 8) for i, r in enumerate(rows)]
    shapes = {v: (r, 8) for v, r in zip(values, rows, strict=True)}
    inputs, made = list(values), []
    flat = constant("flat", np.array([-1], np.int64))
    for index in range(nodes):
        source = choose.choice(values[-6:])
        shape = shapes[source]
        name = f"n{index}"
        kind = choose.choice(
            ["Neg", "Exp", "Relu", "Sigmoid", "Softmax", "Add", "Mul", "Reshape", "Concat", "Where"]
        )
        alike = [v for v in values if shapes[v] == shape]
        if kind in ("Add", "Mul"):
            node = op(name, kind, source, choose.choice(alike), shape=shape)
        elif kind == "Reshape":
            shape = (int(np.prod(shape)),)
            node = op(name, kind, source, flat, shape=shape)
        elif kind == "Concat":
            shape = (2 * shape[0], *shape[1:])
            if shape[0] > 100_000:
                continue
            node = op(name, kind, source, choose.choice(alike), shape=shape, axis=0)
        elif kind == "Where":
            mask = ir.node("Greater", [source, choose.choice(alike)], name=f"{name}_mask")
            mask.outputs[0].name = f"{name}_mask:out"
            made.append(mask)
            node = op(name, kind, mask.outputs[0], source, choose.choice(alike), shape=shape)
        else:
            node = op(name, kind, source, shape=shape)
        made.append(node)
        values.append(node.outputs[0])
        shapes[node.outputs[0]] = shape
    produced = [v for v in values if v.producer() is not None]
    # a value that nobody reads is an output; a few that are read are outputs as well
    unread = [v for v in produced if not v.uses()]
    read = [v for v in produced if v.uses()]
    outputs = unread + choose.sample(read, min(2, len(read)))
    return model_of(inputs, outputs, made, [flat])


def chain_with_gradients(*, leaves_reversed: bool, length: int = 8, size: int = 50_000) -> ir.Model:
    """A sigmoid chain and its gradients, one output per layer, in one of two file orders.

    Only the place of the outputs' nodes in the file differs. As a training graph has it, each
    output's node stands behind its gradient, and ONNX Runtime runs them all late.
    """
    x = tensor("x", size)
    forward, hidden = [], [x]
    for i in range(length):
        forward.append(op(f"f{i}", "Sigmoid", hidden[-1], shape=(size,)))
        hidden.append(forward[-1].outputs[0])
    gradient, backward, leaves = hidden[-1], [], []
    for i in reversed(range(length)):
        backward.append(op(f"b{i}", "Mul", gradient, hidden[i], shape=(size,)))
        gradient = backward[-1].outputs[0]
        product = op(f"p{i}", "Sub", gradient, hidden[i + 1], shape=(size,))
        leaf = op(f"w{i}", "ReduceMean", product.outputs[0], shape=(1,))
        leaves.append((product, leaf))
    if leaves_reversed:
        leaves = leaves[::-1]
    nodes = [*forward, *backward, *(n for pair in leaves for n in pair)]
    outputs = sorted((leaf.outputs[0] for _, leaf in leaves), key=lambda v: str(v.name))
    return model_of([x], outputs, nodes)


def least_cap(graph: TrainingGraph, order: Sequence[OpId], *, threads: int = 1) -> int:
    """Return the bytes of the smallest arena of one region in which two runs of `order` fit.

    It is at least the peak, workspace and small initializers included, plus rounding and fragmentation in
    that order. It is found by bisection: the returned bytes are checked to fit.
    """
    demand = demand_under_cap(graph, order, threads=threads)

    def fits(cap_bytes: int) -> bool:
        try:
            simulate(graph, order, capped(cap_bytes), demand=demand)
        except ArenaFullError:
            return False
        return True

    (trace,) = simulate(graph, order, RECOMMENDED, runs=1, threads=threads)
    low = round_up(max(trace.peak + reserved_bytes(graph), ROUNDING))
    if fits(low):
        return low
    high = low + round_up(low // 16 + 1)
    while not fits(high):
        low, high = high, high + 2 * (high - low)
    while high - low > ROUNDING:
        middle = round_up((low + high) // 2)
        if middle >= high:
            middle = high - ROUNDING
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
