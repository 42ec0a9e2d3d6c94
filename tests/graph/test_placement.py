"""Where nodes run decides what is on the device, what crosses, and what may be run again."""

from __future__ import annotations

from dataclasses import replace

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from planner.formulate import Allowed, OpCosts, formulate
from planner.graph.liveness import timeline
from planner.graph.model import Placement, TrainingGraph
from planner.graph.schedule import default_order
from planner.pipeline.prepare.graphs import analysed_graph
from planner.plan.problem import Problem

SIDE = 8
BYTES = 4 * SIDE * SIDE


def graph_of(
    nodes: list[onnx.NodeProto], on_cpu: set[str], inplace: frozenset[str] = frozenset()
) -> TrainingGraph:
    """A graph from `x` and `z` to `y`, all [SIDE, SIDE], with `on_cpu` on the CPU."""
    values = [h.make_tensor_value_info(n, T.FLOAT, [SIDE, SIDE]) for n in ("x", "z", "y")]
    graph = h.make_graph(nodes, "placed", values[:2], values[2:])
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9)
    placement = Placement(on_cpu=frozenset(on_cpu), inplace=inplace)
    return analysed_graph(ir.from_proto(model), {}, placement=placement)


@pytest.fixture
def crossing() -> TrainingGraph:
    """x -> a, on the device; to the host; b, on the CPU; back; y. `z` is read on the CPU alone."""
    nodes = [
        h.make_node("Exp", ["x"], ["a"], "a"),
        h.make_node("MemcpyToHost", ["a"], ["ah"], "out"),
        h.make_node("Sign", ["ah"], ["b0"], "b0"),
        h.make_node("Add", ["b0", "z"], ["b"], "b"),
        h.make_node("MemcpyFromHost", ["b"], ["bd"], "in"),
        h.make_node("Mul", ["a", "bd"], ["y"], "y"),
    ]
    return graph_of(nodes, {"b0", "b"})


def problem_of(graph: TrainingGraph) -> Problem:
    problem = formulate(
        graph,
        default_order(graph),
        OpCosts(duration_us=[1.0] * len(graph.operations)),
        allowed=Allowed(swap_out_bytes_per_s=1e6, swap_in_bytes_per_s=1e6),
    ).problem
    return replace(problem, capacity_bytes=1 << 30)


def test_what_the_cpu_makes_or_reads_takes_no_device_memory(crossing: TrainingGraph) -> None:
    on_host = {t.name for t in crossing.tensors if t.on_host}
    assert on_host == {"z", "ah", "b0", "b"}
    line = timeline(crossing, default_order(crossing))
    assert line.persistent_bytes == BYTES  # x
    assert line.peak_bytes == 4 * BYTES  # x, a, bd and y


def test_nothing_on_the_host_is_made_twice_but_a_copy_to_the_device_may_be(
    crossing: TrainingGraph,
) -> None:
    again = {op.name for op in crossing.operations if op.recomputable}
    assert again == {"a", "in", "y"}
    problem = problem_of(crossing)
    tensors = {t.name: t for t in problem.tensors}
    assert {n for n, t in tensors.items() if not t.bytes} == {"ah", "b0", "b"}
    assert all(tensors[n].to_end and not tensors[n].swappable for n in ("ah", "b0", "b"))


def test_a_tensor_that_the_cpu_reads_is_on_the_host_already(crossing: TrainingGraph) -> None:
    problem = problem_of(crossing)
    free = {t.name for i, t in enumerate(problem.tensors) if t.bytes and not problem.swap_out_us(i)}
    assert free == {"a"}
    assert all(problem.swap_in_us(i) > 0 for i, t in enumerate(problem.tensors) if t.bytes)


def test_a_result_that_a_kernel_of_the_device_leaves_on_the_host() -> None:
    graph = graph_of(
        [
            h.make_node("Exp", ["x"], ["a"], "a"),
            h.make_node("Shape", ["a"], ["s"], "s"),
            h.make_node("Add", ["s", "s"], ["t"], "t"),  # reads it with no copy in between
            h.make_node("Mul", ["a", "z"], ["y"], "y"),
        ],
        {"t"},
    )
    assert graph.tensor_named("s").on_host and not graph.tensor_named("a").on_host


def test_in_place_is_what_the_targets_kernels_do() -> None:
    nodes = [
        h.make_node("Exp", ["x"], ["a"], "a"),
        h.make_node("Relu", ["a"], ["b"], "b"),
        h.make_node("Exp", ["b"], ["c"], "c"),
        h.make_node("Add", ["c", "z"], ["y"], "y"),
    ]
    for inplace, expected in ((frozenset[str](), []), (frozenset({"Relu"}), ["b"])):
        graph = graph_of(nodes, set(), inplace)
        assert [op.name for op in graph.operations if op.inplace] == expected


def test_with_one_memory_nothing_but_copies_is_on_the_host(crossing: TrainingGraph) -> None:
    """The same nodes on the CPU's own provider: only what a MemcpyToHost makes is set apart."""
    nodes = [
        h.make_node("MemcpyToHost", ["x"], ["ah"], "out"),
        h.make_node("MemcpyFromHost", ["ah"], ["b"], "in"),
        h.make_node("Add", ["b", "z"], ["y"], "y"),
    ]
    values = [h.make_tensor_value_info(n, T.FLOAT, [SIDE, SIDE]) for n in ("x", "z", "y")]
    graph = h.make_graph(nodes, "plain", values[:2], values[2:])
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9)
    plain = analysed_graph(ir.from_proto(model), {})
    assert {t.name for t in plain.tensors if t.on_host} == {"ah"}
    assert not any(op.on_cpu for op in plain.operations)
