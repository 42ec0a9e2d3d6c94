"""Live ranges, by hand and against the bytes that ONNX Runtime measures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
from hypothesis import HealthCheck, given, settings
from onnx import TensorProto as T
from onnx import helper as h

from planner.graph.liveness import LiveTimeline, live_ranges, timeline
from planner.graph.model import Category, OpId, TrainingGraph
from planner.graph.schedule import default_order, file_order, priority_order
from planner.runtime.memory.memcheck import measured
from planner.runtime.options import Opening
from planner.runtime.profiled import profile
from tests.graphs import feeds_for, graph_of, onnx_graphs

VECTOR = 64  # bytes of one tensor in the hand-made graphs


def graph_from(nodes, outputs, *, constants=()) -> TrainingGraph:
    """A graph of [16] float tensors on one input x, in file order."""
    info = [h.make_tensor_value_info(name, T.FLOAT, [16]) for name in outputs]
    x = h.make_tensor_value_info("x", T.FLOAT, [16])
    proto = h.make_model(
        h.make_graph(nodes, "by hand", [x], info, list(constants)),
        opset_imports=[h.make_opsetid("", 18)],
        ir_version=9,
    )
    return graph_of(proto)[1]


def spans(graph: TrainingGraph) -> dict[str, tuple[int, int]]:
    return {
        graph.tensors[r.tensor].name: (r.start, r.end)
        for r in live_ranges(graph, file_order(graph))
    }


def live(graph: TrainingGraph) -> list[int]:
    return timeline(graph, file_order(graph)).live_bytes.tolist()


def node(kind: str, inputs: list[str], output: str) -> onnx.NodeProto:
    return h.make_node(kind, inputs, [output], name=output)


def test_a_buffer_lives_from_its_producer_through_its_last_reader():
    graph = graph_from(
        [node("Neg", ["x"], "a"), node("Neg", ["a"], "b"), node("Add", ["a", "b"], "y")], ["y"]
    )
    assert spans(graph) == {"a": (0, 3), "b": (1, 3), "y": (2, 3)}
    assert live(graph) == [2 * VECTOR, 3 * VECTOR, 4 * VECTOR]


def test_a_view_keeps_its_source_alive():
    shape = h.make_tensor("shape", T.INT64, [2], [4, 4])
    back = h.make_tensor("back", T.INT64, [1], [16])
    graph = graph_from(
        [
            node("Neg", ["x"], "a"),
            node("Reshape", ["a", "shape"], "v"),
            node("Neg", ["v"], "w"),
            node("Reshape", ["w", "back"], "u"),
            node("Neg", ["u"], "y"),
        ],
        ["y"],
        constants=[shape, back],
    )
    assert spans(graph) == {"a": (0, 3), "w": (2, 5), "y": (4, 5)}


def test_an_output_written_in_place_takes_over_a_dying_input():
    graph = graph_from(
        [node("Neg", ["x"], "a"), node("Relu", ["a"], "b"), node("Neg", ["b"], "y")], ["y"]
    )
    assert spans(graph) == {"a": (0, 1), "b": (1, 3), "y": (2, 3)}


def test_an_input_that_is_read_later_is_not_written_over():
    graph = graph_from(
        [node("Neg", ["x"], "a"), node("Relu", ["a"], "b"), node("Add", ["a", "b"], "y")], ["y"]
    )
    assert spans(graph)["a"] == (0, 3)


def test_only_the_last_reader_writes_over_an_input():
    # both readers could, and the one that runs first stands later in the file
    graph = graph_from(
        [
            node("Neg", ["x"], "a"),
            node("Sigmoid", ["a"], "second"),
            node("Sigmoid", ["a"], "first"),
            node("Add", ["first", "second"], "y"),
        ],
        ["y"],
    )
    order = default_order(graph)
    assert [graph.operations[op].name for op in order] == ["a", "first", "second", "y"]
    assert timeline(graph, order).live_bytes.tolist() == [n * VECTOR for n in (2, 3, 3, 4)]


def test_neither_graph_inputs_nor_outputs_are_written_over():
    graph = graph_from(
        [node("Relu", ["x"], "a"), node("Relu", ["a"], "b"), node("Neg", ["b"], "y")], ["a", "y"]
    )
    assert spans(graph) == {"a": (0, 3), "b": (1, 3), "y": (2, 3)}


def test_outputs_and_values_that_nobody_reads_live_to_the_end():
    graph = graph_from(
        [
            node("Neg", ["x"], "early"),
            node("Abs", ["x"], "unread"),
            node("Neg", ["x"], "a"),
            node("Neg", ["a"], "y"),
        ],
        ["early", "y"],
    )
    assert spans(graph) == {"early": (0, 4), "unread": (1, 4), "a": (2, 4), "y": (3, 4)}


def test_a_view_that_is_a_graph_output_has_a_buffer_of_its_own():
    shape = h.make_tensor("shape", T.INT64, [1], [16])
    graph = graph_from(
        [node("Neg", ["x"], "a"), node("Reshape", ["a", "shape"], "y"), node("Neg", ["y"], "z")],
        ["y", "z"],
        constants=[shape],
    )
    assert spans(graph) == {"a": (0, 2), "y": (1, 3), "z": (2, 3)}


def test_host_tensors_cost_no_device_bytes():
    graph = graph_from(
        [
            node("Neg", ["x"], "a"),
            node("MemcpyToHost", ["a"], "h"),
            node("Neg", ["x"], "b"),
            node("MemcpyFromHost", ["h"], "c"),
            node("Add", ["b", "c"], "y"),
        ],
        ["y"],
    )
    assert spans(graph) == {"a": (0, 2), "b": (2, 5), "c": (3, 5), "y": (4, 5)}


def test_an_input_that_is_only_copied_in_waits_on_the_host():
    graph = graph_from([node("MemcpyFromHost", ["x"], "c"), node("Neg", ["c"], "y")], ["y"])
    assert graph.tensor_named("x").on_host
    assert live(graph) == [VECTOR, 2 * VECTOR]


def test_workspace_counts_at_its_own_step():
    graph = graph_from([node("Neg", ["x"], "a"), node("Neg", ["a"], "y")], ["y"])
    line = timeline(graph, file_order(graph), workspace_bytes={OpId(1): 1000})
    assert line.live_bytes.tolist() == [2 * VECTOR, 3 * VECTOR + 1000]
    assert line.by_category[Category.WORKSPACE].tolist() == [0, 1000]
    assert (line.peak_bytes, line.peak_step) == (3 * VECTOR + 1000, 1)


def test_a_graph_without_operations_has_only_what_is_persistent():
    graph = graph_from([node("Neg", ["x"], "y")], ["y"])
    empty = replace(graph, operations=(), tensors=graph.tensors[:1], outputs=())
    line = timeline(empty, ())
    assert (line.peak_bytes, line.peak_step) == (VECTOR, 0)


def check_consistency(graph: TrainingGraph, line: LiveTimeline) -> None:
    steps = len(line.order)
    assert len(line.live_bytes) == steps
    total = np.sum(list(line.by_category.values()), axis=0)
    assert total.tolist() == line.live_bytes.tolist()
    assert all((part >= 0).all() for part in line.by_category.values())
    for step in range(steps):
        here = line.resident_at(step)
        assert sum(r.bytes for r in here) + line.persistent_bytes == line.live_bytes[step]
        assert [r.bytes for r in here] == sorted((r.bytes for r in here), reverse=True)
    for r in line.ranges:
        assert 0 <= r.start < r.end <= steps
        assert r.bytes == graph.tensors[r.tensor].bytes > 0
        assert graph.tensors[r.tensor].buffer == r.tensor
    assert len({r.tensor for r in line.ranges}) == len(line.ranges)


@settings(max_examples=60, deadline=None)
@given(proto=onnx_graphs())
def test_ranges_categories_and_live_bytes_agree(proto):
    _, graph = graph_of(proto)
    for order in (default_order(graph), file_order(graph), priority_order(graph)):
        check_consistency(graph, timeline(graph, order))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(proto=onnx_graphs())
def test_live_bytes_are_those_that_onnx_runtime_measures(proto, tmp_path_factory):
    path = tmp_path_factory.mktemp("live") / "model.onnx"
    onnx.save(proto, path)
    _, graph = graph_of(proto)
    order = default_order(graph)
    opening = Opening(memory="recommended", level="disabled", threads=1)
    runs = profile(path, feeds_for(), opening, runs=2)
    check = measured(runs, graph, order, model="original", opening=opening)
    assert [event.name for event in runs[0]] == [graph.operations[op].name for op in order]
    assert not check.worst
    assert check.live_bytes == timeline(graph, order).peak_bytes
