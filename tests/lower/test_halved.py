"""What is saved from forward to backward in half: casts that stay, the planned order, and no other bits
than those that rounding makes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto as T
from onnx import helper as h

from planner.graph.liveness import timeline
from planner.graph.model import Role, TrainingGraph
from planner.graph.saved import forward_operations, may_be_halved, saved_for_backward
from planner.graph.schedule import default_order
from planner.lower.halved import Halved, with_halves
from planner.lower.rewrite import rewrite
from planner.onnxio.load import load_model, value_types
from planner.pipeline.prepare.graphs import analysed_graph, typed_graph
from planner.runtime.optimizers.fusion_pins import pin_against_fusion
from planner.runtime.optimizers.normalize import normalize
from planner.search.evaluate import Evaluator
from planner.simulate.simulate import simulate
from tests.graphs import (
    LEVELS,
    check_runs_as_planned,
    decisions_for,
    formulation_of,
    run_on_ort,
)

SLOW = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
SHAPE = (4, 6)
HALF = {
    "bf16": (ir.DataType.BFLOAT16, ml_dtypes.bfloat16),
    "fp16": (ir.DataType.FLOAT16, np.float16),
}


def steps(rng: random.Random, length: int) -> onnx.ModelProto:
    """A forward chain with branches and views, a loss, and a backward chain that reads any of it."""
    nodes, made, views = [], ["x"], {}
    for i in range(length):
        kind = rng.choice(["Tanh", "Sigmoid", "Relu", "Exp", "Add", "Mul", "MatMul"])
        inputs = [made[-1]]
        if kind in ("Add", "Mul"):
            inputs.append(rng.choice(made))
        if kind == "MatMul":
            inputs.append("w")
        if kind == "Exp":  # of what is small
            nodes.append(h.make_node("Tanh", inputs, [f"t{i}"], name=f"t{i}"))
            inputs = [f"t{i}"]
        nodes.append(h.make_node(kind, inputs, [f"f{i}"], name=f"f{i}"))
        made.append(f"f{i}")
        if rng.random() < 0.3:
            nodes.append(h.make_node("Reshape", [f"f{i}", "flat"], [f"v{i}"], name=f"v{i}"))
            nodes.append(h.make_node("Tanh", [f"v{i}"], [f"u{i}"], name=f"u{i}"))
            nodes.append(h.make_node("Reshape", [f"u{i}", "square"], [f"r{i}"], name=f"r{i}"))
            views[f"v{i}"] = f"f{i}"
            made.append(f"r{i}")
    nodes.append(h.make_node("ReduceMean", [made[-1]], ["loss"], name="loss", keepdims=0))
    last = made[-1]
    for i in range(length):
        other = rng.choice([*made[1:], *views])
        if other in views:
            nodes.append(h.make_node("Sin", [other], [f"s{i}"], name=f"s{i}"))
            nodes.append(h.make_node("Reshape", [f"s{i}", "square"], [f"q{i}"], name=f"q{i}"))
            other = f"q{i}"
        kind = rng.choice(["Mul", "Add", "Sub"])
        nodes.append(h.make_node(kind, [last, other], [f"b{i}"], name=f"b{i}"))
        last = f"b{i}"
    nodes.append(h.make_node("Tanh", [last], ["x_grad"], name="x_grad"))
    infos = [
        h.make_tensor_value_info("x", T.FLOAT, SHAPE),
        h.make_tensor_value_info("w", T.FLOAT, (SHAPE[1], SHAPE[1])),
    ]
    outputs = [
        h.make_tensor_value_info("loss", T.FLOAT, ()),
        h.make_tensor_value_info("x_grad", T.FLOAT, SHAPE),
    ]
    shapes = [
        h.make_tensor("flat", T.INT64, [1], [SHAPE[0] * SHAPE[1]]),
        h.make_tensor("square", T.INT64, [2], SHAPE),
    ]
    graph = h.make_graph(nodes, "steps", infos, outputs, shapes)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)


def feeds() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "x": rng.normal(size=SHAPE).astype("f4"),
        "w": rng.normal(size=(SHAPE[1], SHAPE[1])).astype("f4"),
    }


def in_half(
    proto: onnx.ModelProto, path: Path, kind: str, names: Sequence[str] | None = None
) -> tuple[Halved, TrainingGraph, TrainingGraph]:
    """A model with some of what is saved in half (all, if no names are given): (made, before, after)."""
    onnx.save(proto, path)
    model = normalize(load_model(path))
    graph = analysed_graph(model, {})
    saved = [
        s for s in may_be_halved(graph) if names is None or graph.tensors[s.buffer].name in names
    ]
    made = with_halves(model, value_types(model, {}), graph, saved, HALF[kind][0])
    return made, graph, typed_graph(made.model, made.types)


@SLOW
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(sorted(HALF)), data=st.data())
def test_any_choice_and_any_plan_run_as_planned(seed, kind, data, tmp_path_factory):
    """Against the model with casts and no plan, run without optimizations: the same bits."""
    folder = tmp_path_factory.mktemp("halved")
    rng = random.Random(seed)
    proto = steps(rng, rng.randint(2, 8))
    path = folder / "model.onnx"
    onnx.save(proto, path)
    graph = analysed_graph(normalize(load_model(path)), {})
    every = [graph.tensors[s.buffer].name for s in may_be_halved(graph)]
    names = data.draw(st.sets(st.sampled_from(every))) if every else set()
    made, _, after = in_half(proto, path, kind, sorted(names))
    form = formulation_of(after)
    actions = Evaluator(form.problem).schedule(data.draw(decisions_for(form.problem)))
    rewritten = pin_against_fusion(
        lambda pinned: rewrite(made.model, after, form, actions, pinned=pinned),
        load_model(path),
    )
    plain = folder / "plain.onnx"
    ir.save(made.model, plain)
    _, expected = run_on_ort(str(plain), feeds(), folder, LEVELS[0])
    ir.save(rewritten.model, folder / "rewritten.onnx")
    check_runs_as_planned(
        str(folder / "rewritten.onnx"), rewritten.planned_order, expected, folder, feeds()
    )
    back = analysed_graph(rewritten.model, {})
    barriers = sum(op.role is Role.BARRIER for op in back.operations)
    peak = simulate(form.problem, actions).peak_bytes
    found = timeline(back, default_order(back)).peak_bytes
    assert found <= peak + 8 * rewritten.anchors + 32 * max(1, barriers)


@pytest.mark.parametrize("kind", sorted(HALF))
@pytest.mark.parametrize("level", LEVELS)
def test_the_casts_stay_at_every_level_and_round(kind: str, level, tmp_path: Path) -> None:
    """y_grad = tanh(x)² with tanh(x) in half: what numpy makes of it, and not what it is."""
    nodes = [
        h.make_node("Tanh", ["x"], ["a"], name="a"),
        h.make_node("ReduceMean", ["a"], ["loss"], name="loss", keepdims=0),
        h.make_node("Mul", ["a", "a"], ["x_grad"], name="x_grad"),
    ]
    infos = [h.make_tensor_value_info("x", T.FLOAT, SHAPE)]
    outputs = [
        h.make_tensor_value_info("loss", T.FLOAT, ()),
        h.make_tensor_value_info("x_grad", T.FLOAT, SHAPE),
    ]
    graph = h.make_graph(nodes, "square", infos, outputs)
    proto = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)
    made, _, after = in_half(proto, tmp_path / "model.onnx", kind)
    assert {op.role for op in after.operations} == {Role.ORIGINAL, Role.HALF, Role.WHOLE}
    names = {t.name: t for t in after.tensors}
    assert names["a__half"].bytes * 2 == names["a__whole"].bytes == names["a"].bytes
    ir.save(made.model, tmp_path / "half.onnx")
    x = feeds()["x"]
    order, results = run_on_ort(str(tmp_path / "half.onnx"), {"x": x}, tmp_path, level)
    assert {"a__to_half", "a__to_whole"} <= set(order)
    _, plain = run_on_ort(str(tmp_path / "model.onnx"), {"x": x}, tmp_path, level)
    a = np.tanh(x).astype(HALF[kind][1]).astype("f4")
    assert np.allclose(results["x_grad"], a * a, rtol=1e-6, atol=0)
    assert not np.array_equal(results["x_grad"], plain["x_grad"])
    assert results["loss"].tobytes() == plain["loss"].tobytes(), "the forward pass is exact"


def test_what_is_saved_and_what_may_be_in_half(tmp_path: Path) -> None:
    """Masks, indices, outputs and inputs are saved, too; they are left alone."""
    nodes = [
        h.make_node("Tanh", ["x"], ["a"], name="a"),
        h.make_node("Greater", ["a", "x"], ["mask"], name="mask"),
        h.make_node("ArgMax", ["a"], ["index"], name="index", keepdims=1, axis=1),
        h.make_node("Sin", ["a"], ["seen"], name="seen"),
        h.make_node("Cos", ["seen"], ["c"], name="c"),
        h.make_node("Cast", ["index"], ["at"], name="at", to=T.FLOAT),
        h.make_node("Cast", ["mask"], ["on"], name="on", to=T.FLOAT),
        h.make_node("Sum", ["c", "at", "on"], ["s"], name="s"),
        h.make_node("ReduceMean", ["s"], ["loss"], name="loss", keepdims=0),
        h.make_node("GatherElements", ["x", "index"], ["g"], name="g", axis=1),
        h.make_node("Where", ["mask", "c", "a"], ["w"], name="w"),
        h.make_node("Sum", ["g", "w", "seen"], ["x_grad"], name="x_grad"),
    ]
    infos = [h.make_tensor_value_info("x", T.FLOAT, SHAPE)]
    outputs = [
        h.make_tensor_value_info("loss", T.FLOAT, ()),
        h.make_tensor_value_info("x_grad", T.FLOAT, SHAPE),
        h.make_tensor_value_info("seen", T.FLOAT, SHAPE),
    ]
    proto = h.make_model(
        h.make_graph(nodes, "masks", infos, outputs),
        opset_imports=[h.make_opsetid("", 18)],
        ir_version=9,
    )
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    graph = analysed_graph(load_model(path).model, {})
    assert {graph.operations[op].name for op in forward_operations(graph)} == {
        "a", "mask", "index", "seen", "c", "at", "on", "s", "loss"
    }  # fmt: skip
    saved = {graph.tensors[s.buffer].name for s in saved_for_backward(graph)}
    assert saved == {"a", "mask", "index", "seen", "c"}
    assert {graph.tensors[s.buffer].name for s in may_be_halved(graph)} == {"a", "c"}
    _, before, after = in_half(proto, path, "bf16")
    readers = {t.name: {after.operations[c].name for c in t.consumers} for t in after.tensors}
    assert readers["a__whole"] == readers["c__whole"] == {"w"}
    assert readers["a"] == {"mask", "index", "seen", "a__to_half"}
    assert before.tensor_named("mask").dtype == "bool"


def test_what_is_in_half_is_not_halved_again(tmp_path: Path) -> None:
    made, _, after = in_half(steps(random.Random(3), 6), tmp_path / "model.onnx", "bf16")
    assert made.made
    assert may_be_halved(after) == ()
