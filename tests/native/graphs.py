"""Small graphs with swaps, in a given order under default session options, and sessions of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
from onnx import NodeProto, TensorProto, helper

from planner.lower.order.realize import realize
from planner.native import library_path

DOMAIN = "planner.swap"
Feeds = dict[str, np.ndarray]


def pinned(nodes: Sequence[NodeProto]) -> list[NodeProto]:
    """The same nodes, written so that ONNX Runtime runs them in this order."""
    made = {output: i for i, node in enumerate(nodes) for output in node.output if output}
    plan = realize([sorted({made[i] for i in node.input if i in made}) for node in nodes])
    written = [nodes[step] for step in plan.body]
    for k, (step, is_anchor) in enumerate(plan.roots):
        if is_anchor:
            inputs = [nodes[step].output[0]]
            written.append(helper.make_node("Size", inputs, [f"anchor{k}"], f"anchor{k}"))
        else:
            written.append(nodes[step])
    return written


def model_of(
    nodes: Sequence[NodeProto], inputs: dict[str, list[int]], outputs: dict[str, list[int]]
) -> onnx.ModelProto:
    """A model of float tensors, but for an input named `size`, whose nodes run in the given order."""

    def values(shapes: dict[str, list[int]]) -> list[onnx.ValueInfoProto]:
        types = [TensorProto.INT64 if n == "size" else TensorProto.FLOAT for n in shapes]
        made = zip(shapes, types, shapes.values(), strict=True)
        return [helper.make_tensor_value_info(*value) for value in made]

    graph = helper.make_graph(pinned(nodes), "g", values(inputs), values(outputs))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def swap(kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> NodeProto:
    """A node of the protocol, named by its kind and output."""
    return helper.make_node(
        kind, list(inputs), [output], f"{kind}:{output}", domain=DOMAIN, **attributes
    )


def chain_nodes(
    layers: int, rows: int, ahead: int, *, swaps: bool = True, keeps_x: bool = True
) -> list[NodeProto]:
    """A forward and a backward pass over `layers` products; every activation but the last is swapped.

    A copy out is done `ahead` layers later, and a copy in begins `ahead` layers earlier. Without
    `keeps_x`, SwapOutDone reads a feed in place of what is copied: the fault that the edge prevents.
    """
    nodes: list[NodeProto] = []
    add = nodes.append
    if swaps:
        add(swap("SwapBegin", [], "r"))

    def done(i: int) -> None:
        if swaps and 0 <= i < layers - 1:
            add(swap("SwapOutDone", [f"t{i}", f"f{i}" if keeps_x else "w"], f"u{i}"))

    def come_back(i: int) -> None:
        if swaps and 0 <= i < layers - 1:
            add(swap("SwapIn", [f"u{i}"], f"y{i}", dtype=TensorProto.FLOAT, shape=[rows, rows]))

    for i in range(layers):
        add(helper.make_node("MatMul", [f"f{i - 1}" if i else "x", "w"], [f"m{i}"], f"M{i}"))
        add(helper.make_node("Tanh", [f"m{i}"], [f"f{i}"], f"F{i}"))
        if swaps and i < layers - 1:
            add(swap("SwapOut", [f"f{i}", "r"], f"t{i}"))
        done(i - ahead)
    for i in range(max(layers - ahead, 0), layers - 1):
        done(i)
    for i in range(layers - 2, layers - 2 - ahead, -1):
        come_back(i)
    gradient = f"f{layers - 1}"
    for i in range(layers - 2, -1, -1):
        come_back(i - ahead)
        add(helper.make_node("MatMul", [gradient, "w"], [f"g{i}"], f"G{i}"))
        if swaps:
            add(swap("SwapInDone", [f"y{i}"], f"z{i}"))
        gradient = f"b{i}"
        add(helper.make_node("Mul", [f"g{i}", f"z{i}" if swaps else f"f{i}"], [gradient], f"B{i}"))
    return nodes


def chain(layers: int = 8, rows: int = 96, ahead: int = 2, **kind: bool) -> onnx.ModelProto:
    """The model of `chain_nodes`, of inputs x and w and the output b0."""
    shape = [rows, rows]
    nodes = chain_nodes(layers, rows, ahead, **kind)
    return model_of(nodes, {"x": shape, "w": shape}, {"b0": shape})


def load_nodes(layers: int, *, load: bool) -> list[NodeProto]:
    """Products with weights that stay in the caller's memory until two layers before."""
    nodes = [swap("SwapBegin", ["x"], "r")] if load else []
    for i in range(layers):
        for j in range(3) if i == 0 else [i + 2]:
            if load and j < layers:
                nodes.append(swap("LoadIn", [f"w{j}", "r"], f"y{j}"))
        if load:
            nodes.append(swap("SwapInDone", [f"y{i}"], f"z{i}"))
        inputs = [f"f{i - 1}" if i else "x", f"z{i}" if load else f"w{i}"]
        nodes.append(helper.make_node("MatMul", inputs, [f"f{i}"], f"M{i}"))
    return nodes


def loads(nodes: list[NodeProto], layers: int, rows: int) -> onnx.ModelProto:
    """The model of `load_nodes`, of inputs x, w0, w1, …"""
    shapes = {name: [rows, rows] for name in ["x", *(f"w{i}" for i in range(layers))]}
    return model_of(nodes, shapes, {f"f{layers - 1}": [rows, rows]})


def store_nodes(layers: int, rows: int, *, store: bool, ahead: int = 1) -> list[NodeProto]:
    """A step that updates weights of the caller's memory: each is loaded, and what it becomes is stored
    beside the operations, and waited for `ahead` layers later; never, where that is negative."""
    nodes = [swap("SwapBegin", ["x"], "r")] if store else []

    def done(i: int) -> None:
        if store and 0 <= i < layers:
            nodes.append(swap("SwapOutDone", [f"t{i}", f"n{i}"], f"u{i}"))

    for i in range(layers):
        if store:
            nodes += [
                swap("LoadIn", [f"w{i}", "r"], f"y{i}"),
                swap("SwapInDone", [f"y{i}"], f"z{i}"),
            ]
        w, new = (f"z{i}", f"n{i}") if store else (f"w{i}", f"w{i}_new")
        nodes.append(helper.make_node("MatMul", [f"f{i - 1}" if i else "x", w], [f"m{i}"], f"M{i}"))
        nodes.append(helper.make_node("Tanh", [f"m{i}"], [f"f{i}"], f"F{i}"))
        nodes.append(helper.make_node("Sub", [w, f"f{i}"], [new], f"N{i}"))
        if store:
            shape = {"dtype": TensorProto.FLOAT, "shape": [rows, rows]}
            nodes.append(swap("StoreTo", [], f"w{i}_new", **shape))
            nodes.append(swap("StoreOut", [f"n{i}", "r", f"w{i}_new"], f"t{i}"))
        if ahead >= 0:
            done(i - ahead)
    for i in range(layers - ahead, layers if ahead >= 0 else 0):
        done(i)
    return nodes


def stores(layers: int = 4, rows: int = 64, **kind: Any) -> onnx.ModelProto:
    """The model of `store_nodes`, of inputs x, w0, w1, … and outputs w0_new, w1_new, …"""
    return _updating(store_nodes(layers, rows, **kind), layers, rows)


def failing_stores(layers: int = 4, rows: int = 64) -> onnx.ModelProto:
    """The same, which fails before its last layer if `size` has other than rows x rows elements."""
    nodes = store_nodes(layers, rows, store=True, ahead=layers)
    at = next(i for i, node in enumerate(nodes) if node.name == f"M{layers - 1}")
    nodes[at].input[0] = "reshaped"
    reshape = helper.make_node("Reshape", [f"f{layers - 2}", "size"], ["reshaped"], "MAYFAIL")
    return _updating([*nodes[:at], reshape, *nodes[at:]], layers, rows, size=[2])


def _updating(nodes: list[NodeProto], layers: int, rows: int, **more: list[int]) -> onnx.ModelProto:
    weights = [f"w{i}" for i in range(layers)]
    inputs = {name: [rows, rows] for name in ["x", *weights]} | more
    outputs = {name: [rows, rows] for name in [f"f{layers - 1}", *(f"{w}_new" for w in weights)]}
    return model_of(nodes, inputs, outputs)


def store_feeds(layers: int = 4, rows: int = 64) -> Feeds:
    """Random weights of `stores`."""
    draw = np.random.default_rng(7)
    shape = (rows, rows)
    return {f"w{i}": draw.standard_normal(shape, dtype=np.float32) / 8 for i in range(layers)}


def failing_chain(
    layers: int = 8, rows: int = 96, ahead: int = 2, node: str = "B5"
) -> onnx.ModelProto:
    """A chain that fails behind a node, in its backward pass while copies are under way, if `size` has
    other than rows x rows elements."""
    nodes = chain_nodes(layers, rows, ahead)
    at = next(i for i, each in enumerate(nodes) if each.name == node)
    reshape = helper.make_node("Reshape", ["raw", "size"], [*nodes[at].output], "MAYFAIL")
    nodes[at].output[0] = "raw"
    shape = [rows, rows]
    inputs = {"x": shape, "w": shape, "size": [2]}
    return model_of([*nodes[: at + 1], reshape, *nodes[at + 1 :]], inputs, {"b0": shape})


def sized(feeds: Feeds, rows: int = 96, *, good: bool = True) -> Feeds:
    """Feeds of a failing chain, which fails where they are not good."""
    return feeds | {"size": np.array([rows, rows + (not good)], np.int64)}


def chain_feeds(rows: int = 96, seed: int = 0) -> Feeds:
    """Random feeds of a chain whose values stay of one magnitude."""
    random = np.random.default_rng(seed)
    w = random.standard_normal((rows, rows)) / rows**0.5
    return {
        "x": random.standard_normal((rows, rows), dtype=np.float32),
        "w": w.astype(np.float32),
    }


def options(
    level: int = 99,
    library: Path | None = None,
    entries: dict[str, str] | None = None,
    **set_to: Any,
) -> ort.SessionOptions:
    """Session options with the library (its own, where none is named) and these attributes."""
    made = ort.SessionOptions()
    made.log_severity_level = 4
    made.intra_op_num_threads = 1
    made.graph_optimization_level = ort.GraphOptimizationLevel(level)
    for key, value in (entries or {}).items():
        made.add_session_config_entry(key, value)
    made.register_custom_ops_library(str(library or library_path()))
    for name, value in set_to.items():
        setattr(made, name, value)
    return made


def session(model: onnx.ModelProto, *arguments: Any, **set_to: Any) -> ort.InferenceSession:
    """A session on the CPU with `options`."""
    return ort.InferenceSession(
        model.SerializeToString(), options(*arguments, **set_to), providers=["CPUExecutionProvider"]
    )


def plain(model: onnx.ModelProto) -> ort.InferenceSession:
    """A session without the library."""
    made = ort.SessionOptions()
    made.log_severity_level = 4
    made.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), made, providers=["CPUExecutionProvider"])


def ran(profile: str) -> list[str]:
    """Names of the nodes that a profile has, in their order, anchors left out."""
    events = json.loads(Path(profile).read_text())
    names = [e["name"] for e in events if e.get("cat") == "Node"]
    ends = [n.removesuffix("_kernel_time") for n in names if n.endswith("_kernel_time")]
    return [name for name in ends if not name.startswith("anchor")]


def bits(session: ort.InferenceSession, feeds: Feeds, **options: Any) -> list[bytes]:
    """Every output of one run, as bytes."""
    return [np.asarray(value).tobytes() for value in session.run(None, feeds, **options)]


def child(script: str, *arguments: str | Path) -> str:
    """What a script prints, in a process of its own, which may not hang."""
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def with_products(nodes: Sequence[NodeProto], count: int) -> list[NodeProto]:
    """Each product `count` times, each on the result of the one before."""
    found: list[NodeProto] = []
    for node in nodes:
        for k in range(1, count if node.op_type == "MatMul" else 1):
            part = f"{node.output[0]}_{k}"
            found.append(helper.make_node("MatMul", [*node.input], [part], part))
            node.input[0] = part
        found.append(node)
    return found


def between(nodes: Sequence[NodeProto]) -> list[NodeProto]:
    """The copies of a chain on the stream of the operations."""
    found: list[NodeProto] = []
    for node in nodes:
        if node.op_type == "SwapOut":
            host = "h" + node.output[0][1:]
            found.append(helper.make_node("MemcpyToHost", [node.input[0]], [host], node.name))
        elif node.op_type == "SwapInDone":
            host = "h" + node.output[0][1:]
            found.append(helper.make_node("MemcpyFromHost", [host], [node.output[0]], node.name))
        elif not node.op_type.startswith("Swap"):
            found.append(node)
    return found


def unwaited(nodes: Sequence[NodeProto]) -> list[NodeProto]:
    """Each reader right after the SwapIn that it should wait for, before the copy ends."""
    back = {node.output[0]: node for node in nodes if node.op_type == "SwapIn"}
    ends = {node.output[0]: node for node in nodes if node.op_type == "SwapInDone"}
    found: list[NodeProto] = []
    for node in nodes:
        end = next((ends[value] for value in node.input if value in ends), None)
        if end is not None:
            (coming,) = end.input
            node.input[list(node.input).index(end.output[0])] = coming
            found += [back[coming], node, end]
        elif node.op_type not in ("SwapIn", "SwapInDone"):
            found.append(node)
    return found


def long_chain(layers: int, mib: int) -> onnx.ModelProto:
    """Layers of so many MiB that add one, and as many that read what these gave, the last first."""
    dims = f"float[{mib}, {2**18}]"
    nodes = [f"h{i + 1} = Add(h{i}, one)" for i in range(layers)]
    behind = {i: f"g{i + 1}" for i in range(layers)}
    nodes += [f"g{i} = Sub(h{i}, {behind.get(i, 'one')})" for i in range(layers, 0, -1)]
    head = f'<ir_version: 9, opset_import: ["" : 17]> g ({dims} h0) => ({dims} g1)'
    return onnx.parser.parse_model(f"{head} <float one = {{1.0}}> {{ {' '.join(nodes)} }}")


def of_long_chain(layers: int, fed: float) -> float:
    """What every element of its result is, where every element that it is fed is the same."""
    found = 1.0
    for i in range(layers, 0, -1):
        found = fed + i - found
    return found
