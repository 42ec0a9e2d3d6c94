"""Any plan, lowered, runs on ONNX Runtime in the planned order and gives the same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto as T
from onnx import helper as h

from planner.graph.liveness import timeline
from planner.graph.marks import PLANNER_ATTRIBUTE
from planner.graph.model import Role
from planner.graph.schedule import default_order, priority_order
from planner.lower.rewrite import Sessions, rewrite
from planner.onnxio.load import load_model
from planner.pipeline.prepare.graphs import analysed_graph
from planner.plan.decisions import Choice, Decisions
from planner.plan.problem import Problem
from planner.runtime.optimizers.fusion_pins import pin_against_fusion
from planner.runtime.optimizers.normalize import normalize
from planner.search.evaluate import Evaluator
from planner.simulate.simulate import simulate
from tests.graphs import (
    LEVELS,
    check_runs_as_planned,
    decisions_for,
    feeds_for,
    formulation_of,
    graph_of,
    onnx_graphs,
    run_on_ort,
)

SLOW = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def _lowered(proto: onnx.ModelProto, folder: Path, data: st.DataObject, order: str = "default"):
    return _settled(proto, folder, lambda problem: data.draw(decisions_for(problem)), order)


def _settled(
    proto: onnx.ModelProto,
    folder: Path,
    decide: Callable[[Problem], Decisions],
    order: str = "default",
):
    path = folder / "model.onnx"
    onnx.save(proto, path)
    loaded = load_model(path)
    model = normalize(loaded)
    graph = analysed_graph(model, {})
    form = formulation_of(graph)
    actions = Evaluator(form.problem).schedule(decide(form.problem))

    def lower(pinned: frozenset[str]):
        return rewrite(model, graph, form, actions, pinned=pinned, sessions=Sessions(order=order))

    return loaded, graph, form, actions, pin_against_fusion(lower, loaded)


@SLOW
@given(proto=onnx_graphs(), data=st.data())
def test_runs_in_planned_order_with_the_same_bits(proto, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rewrite")
    loaded, _, _, _, rewritten = _lowered(proto, folder, data)
    path = folder / "rewritten.onnx"
    ir.save(rewritten.model, path)
    _, expected = run_on_ort(str(loaded.path), feeds_for(), folder)
    check_runs_as_planned(str(path), rewritten.planned_order, expected, folder)


def test_a_recomputed_product_and_its_activation_are_not_fused(tmp_path: Path):
    # in the model the sum has two readers, in the copy one: fused there, the session would not load
    nodes = [
        h.make_node("MatMul", ["x", "x"], ["product"], name="product"),
        h.make_node("Add", ["product", "w"], ["sum"], name="sum"),
        h.make_node("Exp", ["product"], ["other"], name="other"),
        h.make_node("Neg", ["sum"], ["another"], name="another"),
        h.make_node("Sigmoid", ["sum"], ["y"], name="y"),
        h.make_node("Mul", ["y", "other"], ["p"], name="p"),
        h.make_node("Mul", ["p", "another"], ["q"], name="q"),
        h.make_node("MatMul", ["q", "q"], ["r"], name="r"),
        h.make_node("Mul", ["r", "y"], ["z"], name="z"),
    ]
    values = [h.make_tensor_value_info(v, T.FLOAT, [8, 8]) for v in ("x", "w", "z")]
    proto = h.make_model(
        h.make_graph(nodes, "activation", values[:2], values[2:]),
        opset_imports=[h.make_opsetid("", 18)],
        ir_version=9,
    )

    def drop_y(problem: Problem) -> Decisions:
        names = [t.name for t in problem.tensors]
        return Decisions(gaps={(names.index("y"), 1): Choice.DROP})

    loaded, _, _, _, rewritten = _settled(proto, tmp_path, drop_y)
    path = tmp_path / "rewritten.onnx"
    ir.save(rewritten.model, path)
    assert sum("recompute" in name for name in rewritten.planned_order) >= 3
    _, expected = run_on_ort(str(loaded.path), feeds_for(), tmp_path)
    for level in LEVELS:
        order, results = run_on_ort(str(path), feeds_for(), tmp_path, level)
        assert tuple(order) == rewritten.planned_order, level
        assert results["z"].tobytes() == expected["z"].tobytes(), level


@SLOW
@given(proto=onnx_graphs(), data=st.data())
def test_live_bytes_of_the_file_are_those_of_the_simulator(proto, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rewrite")
    _, _, form, actions, rewritten = _lowered(proto, folder, data)
    graph = analysed_graph(rewritten.model, {})
    order = default_order(graph)
    assert tuple(graph.operations[op].name for op in order) == rewritten.planned_order
    replay = simulate(form.problem, actions)
    line = timeline(graph, order)
    # anchors add 8 bytes each, the shapes of barriers 8 bytes per dim
    barriers = sum(op.role is Role.BARRIER for op in graph.operations)
    slack = 8 * rewritten.anchors + 8 * 4 * max(1, barriers)
    assert replay.peak_bytes <= line.peak_bytes <= replay.peak_bytes + slack


@SLOW
@given(proto=onnx_graphs(), data=st.data())
def test_priority_target_is_plain_file_order(proto, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rewrite")
    _, _, _, _, rewritten = _lowered(proto, folder, data, order="priority")
    graph = analysed_graph(rewritten.model, {})
    executed = [graph.operations[op].name for op in priority_order(graph)]
    sizes = {op.name for op in graph.operations if op.op_type in ("Size", "Shape")}
    plain = [name for name in executed if name not in sizes]
    assert plain == [name for name in rewritten.planned_order if name not in sizes]


@SLOW
@given(proto=onnx_graphs(), data=st.data())
def test_nothing_else_changes(proto, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rewrite")
    loaded, _, _, _, rewritten = _lowered(proto, folder, data)
    before, after = loaded.model, rewritten.model
    assert [(v.name, v.type, v.shape) for v in after.graph.inputs] == [
        (v.name, v.type, v.shape) for v in before.graph.inputs
    ]
    assert [(v.name, v.type, v.shape) for v in after.graph.outputs] == [
        (v.name, v.type, v.shape) for v in before.graph.outputs
    ]
    assert after.ir_version == before.ir_version
    for domain, version in before.graph.opset_imports.items():
        assert after.graph.opset_imports[domain] == version
    marks = [
        n.attributes[PLANNER_ATTRIBUTE].value
        for n in after.graph
        if PLANNER_ATTRIBUTE in n.attributes
    ]
    assert len(marks) == len(set(marks))
    known: set[str] = {str(v.name) for v in after.graph.inputs} | set(after.graph.initializers)
    for node in after.graph:  # sorted, as checkers want it
        assert all(v is None or v.name in known for v in node.inputs)
        known.update(str(v.name) for v in node.outputs)


def test_a_training_batch_norm_runs_twice_without_touching_its_statistics(tmp_path):
    shape, channels = [4, 3, 5, 5], [3]
    info = {n: h.make_tensor_value_info(n, T.FLOAT, channels) for n in ("s", "b", "m", "v")}
    nodes = [
        h.make_node("Exp", ["x"], ["e"], name="exp"),
        h.make_node(
            "BatchNormalization",
            ["e", "s", "b", "m", "v"],
            ["y", "m_new", "v_new"],
            name="bn",
            training_mode=1,
        ),
        h.make_node("Tanh", ["y"], ["t"], name="tanh"),
        h.make_node("Neg", ["t"], ["u"], name="neg"),
        h.make_node("Mul", ["u", "y"], ["z"], name="mul"),
    ]
    outputs = [h.make_tensor_value_info(n, T.FLOAT, channels) for n in ("m_new", "v_new")]
    outputs.append(h.make_tensor_value_info("z", T.FLOAT, shape))
    inputs = [h.make_tensor_value_info("x", T.FLOAT, shape), *info.values()]
    proto = h.make_model(
        h.make_graph(nodes, "bn", inputs, outputs),
        opset_imports=[h.make_opsetid("", 18)],
        ir_version=9,
    )
    model, graph = graph_of(proto)
    form = formulation_of(graph)
    y = next(i for i, t in enumerate(form.problem.tensors) if t.name == "y")
    actions = Evaluator(form.problem).schedule(Decisions(gaps={(y, 1): Choice.DROP}))
    assert sum(a.target == 1 for a in actions) == 2
    path = tmp_path / "rewritten.onnx"
    ir.save(rewrite(model, graph, form, actions).model, path)
    rng = np.random.default_rng(0)
    feeds = {"x": rng.random(shape, dtype=np.float32)}
    feeds.update((n, rng.random(channels, dtype=np.float32)) for n in info)
    before = {name: array.copy() for name, array in feeds.items()}
    _, expected = run_on_ort(proto.SerializeToString(), feeds, tmp_path)
    for level in LEVELS:
        _, results = run_on_ort(str(path), feeds, tmp_path, level)
        assert all(results[n].tobytes() == expected[n].tobytes() for n in expected)
        assert all(np.array_equal(feeds[n], before[n]) for n in feeds), level


def test_a_copy_of_a_quantize_has_no_barrier_that_would_be_quantized(tmp_path: Path) -> None:
    """A Reshape before a QuantizeLinear gets a pair of its own from ONNX Runtime's optimizers."""
    kinds = [
        h.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], name="q"),
        h.make_node("Cast", ["q"], ["a"], name="a", to=T.FLOAT),
        h.make_node("Cast", ["q"], ["b"], name="b", to=T.INT32),
    ]
    constants = [
        h.make_tensor("scale", T.FLOAT, [], [0.1]),
        h.make_tensor("zero", T.UINT8, [], [9]),
    ]
    outputs = [
        h.make_tensor_value_info("a", T.FLOAT, [8, 8]),
        h.make_tensor_value_info("b", T.INT32, [8, 8]),
    ]
    inputs = [h.make_tensor_value_info("x", T.FLOAT, [8, 8])]
    proto = h.make_model(
        h.make_graph(kinds, "quantized", inputs, outputs, constants),
        opset_imports=[h.make_opsetid("", 18)],
        ir_version=9,
    )
    model, graph = graph_of(proto)
    form = formulation_of(graph)
    q = next(i for i, t in enumerate(form.problem.tensors) if t.name == "q")
    actions = Evaluator(form.problem).schedule(Decisions(gaps={(q, 1): Choice.DROP}))
    rewritten = rewrite(model, graph, form, actions)
    path = tmp_path / "rewritten.onnx"
    ir.save(rewritten.model, path)
    left = ort.SessionOptions()
    left.optimized_model_filepath = str(tmp_path / "left.onnx")
    ort.InferenceSession(str(path), left, providers=["CPUExecutionProvider"])
    names = sorted(node.name for node in onnx.load(tmp_path / "left.onnx").graph.node)
    assert sum("recompute" in name for name in names) == 1
    assert names == sorted(rewritten.planned_order)
