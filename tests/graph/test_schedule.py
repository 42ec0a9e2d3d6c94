"""The predicted order is the one in which ONNX Runtime runs."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from onnx import TensorProto as T
from onnx import helper as h

from planner.graph.build import build_graph
from planner.graph.schedule import default_order, file_order, parents_of, priority_order
from planner.onnxio.load import load_model, value_types
from planner.pipeline.prepare.prepared import prepare
from planner.request import Request
from planner.runtime.feeds.inputs import make_inputs
from planner.runtime.optimizers.shapes import runtime_types
from planner.runtime.options import Opening, Order
from planner.runtime.profiled import profile
from tests.graphs import feeds_for, graph_of, onnx_graphs

ZOO = sorted((Path(__file__).parents[2] / "models" / "zoo").glob("*.onnx"))
SLOW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def executed(path: Path, feeds, level="disabled", order: Order = "default") -> list[str]:
    (run,) = profile(path, feeds, Opening(level=level, order=order, threads=1))
    return [event.name for event in run]


@SLOW
@given(proto=onnx_graphs())
def test_default_order_is_the_executed_one(proto, tmp_path_factory):
    path = tmp_path_factory.mktemp("order") / "model.onnx"
    onnx.save(proto, path)
    _, graph = graph_of(proto)
    names = [graph.operations[op].name for op in default_order(graph)]
    assert names == executed(path, feeds_for())


@SLOW
@given(proto=onnx_graphs())
def test_priority_order_is_the_executed_one(proto, tmp_path_factory):
    path = tmp_path_factory.mktemp("order") / "model.onnx"
    onnx.save(proto, path)
    _, graph = graph_of(proto)
    names = [graph.operations[op].name for op in priority_order(graph)]
    assert names == executed(path, feeds_for(), order="priority")


@settings(max_examples=60, deadline=None)
@given(proto=onnx_graphs(max_nodes=40))
def test_every_order_is_a_topological_permutation(proto):
    _, graph = graph_of(proto)
    parents = parents_of(graph)
    for order in (default_order(graph), priority_order(graph), file_order(graph)):
        place = {op: i for i, op in enumerate(order)}
        assert sorted(order) == list(range(len(graph.operations)))
        assert all(place[p] < place[v] for v, ps in enumerate(parents) for p in ps)


@pytest.mark.parametrize("order", ["default", "priority"])
def test_shape_and_size_nodes_run_where_predicted(order, tmp_path):
    nodes = [
        h.make_node("Relu", ["x"], ["a"], name="a"),
        h.make_node("Neg", ["a"], ["b"], name="b"),
        h.make_node("Size", ["a"], ["n"], name="n"),
        h.make_node("Shape", ["b"], ["s"], name="s"),
        h.make_node("Tanh", ["b"], ["y"], name="y"),
        h.make_node("Size", ["y"], ["m"], name="dangling"),
    ]
    outputs = [
        h.make_tensor_value_info("y", T.FLOAT, [8, 8]),
        h.make_tensor_value_info("n", T.INT64, []),
        h.make_tensor_value_info("s", T.INT64, [2]),
    ]
    inputs = [h.make_tensor_value_info("x", T.FLOAT, [8, 8])]
    proto = h.make_model(
        h.make_graph(nodes, "sizes", inputs, outputs),
        opset_imports=[h.make_opsetid("", 18)],
        ir_version=9,
    )
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    _, graph = graph_of(proto)
    predicted = default_order(graph) if order == "default" else priority_order(graph)
    names = [graph.operations[op].name for op in predicted]
    assert names == executed(path, {"x": feeds_for()["x"]}, order=order)


@pytest.mark.parametrize("path", ZOO, ids=lambda p: p.stem)
def test_the_order_of_an_original_file_under_default_options(path):
    prepared = prepare(Request(model=path))
    graph = prepared.baseline.graph
    names = [graph.operations[op].name for op in prepared.baseline.order]
    feeds, _ = make_inputs(path)
    assert names == executed(path, feeds, level="all")


@pytest.mark.parametrize("path", ZOO, ids=lambda p: p.stem)
def test_the_order_of_a_file_without_optimizations(path):
    loaded = load_model(path)
    graph = build_graph(loaded.model, value_types(loaded.model, {}, fallback=runtime_types))
    feeds, _ = make_inputs(path)
    names = [graph.operations[op].name for op in default_order(graph)]
    assert names == executed(path, feeds)
