"""What lives on the host is copied when it is needed, in the planned order, and no bit changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from planner.formulate import Formulation, has_slot, with_paging
from planner.graph.liveness import timeline
from planner.graph.model import Role, TrainingGraph
from planner.graph.rules import SWAP_TOKENS
from planner.graph.schedule import default_order
from planner.lower.residence import Resided, may_live_on_host, with_residence
from planner.lower.rewrite import Rewritten, rewrite
from planner.native import counts
from planner.onnxio.load import LoadedModel, load_model, value_types
from planner.pipeline.prepare.graphs import analysed_graph, typed_graph
from planner.plan.decisions import Choice, Decisions
from planner.plan.problem import Problem
from planner.runtime.optimizers.fusion_pins import pin_against_fusion
from planner.runtime.optimizers.normalize import normalize
from planner.search.evaluate import Evaluator
from planner.simulate.loads import begun_early
from planner.simulate.simulate import simulate
from planner.simulate.waits import with_waits
from tests.graphs import (
    LEVELS,
    check_runs_as_planned,
    decisions_for,
    feeds_for,
    formulation_of,
    onnx_graphs,
    run_on_ort,
)

SLOW = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def resident(
    proto: onnx.ModelProto, folder: Path, choose: Callable[[list[str]], set[str]]
) -> tuple[LoadedModel, Resided, TrainingGraph, Formulation]:
    """A model with some of what may be there on the host, and its problem."""
    path = folder / "model.onnx"
    onnx.save(proto, path)
    loaded = load_model(path)
    model = normalize(loaded)
    graph = analysed_graph(model, {})
    names = choose([t.name for t in may_live_on_host(graph)])
    made = with_residence(model, value_types(model, {}), names)
    after = typed_graph(made.model, made.types)
    return loaded, made, after, formulation_of(after)


def lowered(
    loaded: LoadedModel,
    made: Resided,
    graph: TrainingGraph,
    form: Formulation,
    decisions: Decisions,
    *,
    beside: bool = False,
) -> tuple[Rewritten, int]:
    """The rewritten model of a plan, and the peak that the simulator has for it."""
    actions = Evaluator(form.problem).schedule(decisions)
    if beside:
        slots = (has_slot(graph.tensors[t]) for t in form.tensors)
        tensors = zip(form.problem.tensors, slots, strict=True)
        able = tuple(replace(t, host_copy=t.host_copy or not slot) for t, slot in tensors)
        problem = replace(form.problem, tensors=able, overlap=True)
        form = with_paging(replace(form, problem=problem), graph)
        early = begun_early(problem, actions, form.paging)
        actions = with_waits(problem, early, form.paging)

    def lower(pinned: frozenset[str]) -> Rewritten:
        return rewrite(made.model, graph, form, actions, pinned=pinned)

    peak = simulate(form.problem, actions, form.paging).peak_bytes
    return pin_against_fusion(lower, loaded), peak


@pytest.mark.usefixtures("native_library")
@SLOW
@given(proto=onnx_graphs(), data=st.data(), beside=st.booleans())
def test_any_choice_and_any_plan_run_as_planned_with_the_same_bits(
    proto, data, beside, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("resident")
    found = resident(proto, folder, lambda names: data.draw(st.sets(st.sampled_from(names))))
    loaded, made, graph, form = found
    plan = data.draw(decisions_for(form.problem))
    violations = counts().violations
    rewritten, peak = lowered(loaded, made, graph, form, plan, beside=beside)
    path = folder / "rewritten.onnx"
    ir.save(rewritten.model, path)
    _, expected = run_on_ort(str(loaded.path), feeds_for(), folder)
    check_runs_as_planned(str(path), rewritten.planned_order, expected, folder)
    after = analysed_graph(rewritten.model, {})
    line = timeline(after, default_order(after))
    barriers = sum(op.role is Role.BARRIER for op in after.operations)
    tokens = sum(op.op_type in SWAP_TOKENS for op in after.operations)
    assert line.peak_bytes <= peak + 8 * rewritten.anchors + 32 * max(1, barriers) + tokens
    assert counts().violations == violations
    if Choice.SWAP not in plan.gaps.values():  # else a page-out may be made early, by a swap-out
        assert line.peak_bytes >= peak
    for name in made.page_ins.values():
        assert after.tensor_named(name).on_host
    for name in made.page_outs.values():
        assert after.tensor_named(name).on_host


@SLOW
@given(proto=onnx_graphs(), data=st.data())
def test_the_interface_stays(proto, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("resident")
    found = resident(proto, folder, lambda names: data.draw(st.sets(st.sampled_from(names))))
    loaded, made, graph, form = found
    rewritten, _ = lowered(loaded, made, graph, form, Decisions(gaps={}))
    path = folder / "rewritten.onnx"
    ir.save(rewritten.model, path)
    before, after = (
        ort.InferenceSession(str(p), providers=["CPUExecutionProvider"])
        for p in (loaded.path, path)
    )
    for one, other in (
        (before.get_inputs(), after.get_inputs()),
        (before.get_outputs(), after.get_outputs()),
    ):
        assert [(v.name, v.type, v.shape) for v in one] == [
            (v.name, v.type, v.shape) for v in other
        ]


SHAPE = [64, 64]


def weighted(*, listed: bool = False) -> onnx.ModelProto:
    """x @ w, something after it, and @ w again, with w as an initializer."""
    nodes = [
        h.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        h.make_node("Tanh", ["a"], ["b"], name="tanh"),
        h.make_node("MatMul", ["b", "v"], ["c"], name="middle"),
        h.make_node("MatMul", ["c", "w"], ["y"], name="last"),
    ]
    inputs = [h.make_tensor_value_info("x", T.FLOAT, SHAPE)]
    random = np.random.default_rng(0)
    weights = [nh.from_array(random.normal(size=SHAPE).astype("f4"), n) for n in ("w", "v")]
    if listed:
        inputs.append(h.make_tensor_value_info("w", T.FLOAT, SHAPE))
    outputs = [h.make_tensor_value_info("y", T.FLOAT, SHAPE)]
    graph = h.make_graph(nodes, "weighted", inputs, outputs, weights)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("listed", [False, True])
def test_an_initializer_is_not_folded_onto_the_device(listed: bool, tmp_path: Path):
    found = resident(weighted(listed=listed), tmp_path, lambda names: {"w"})
    loaded, made, graph, form = found

    def drop_w(problem: Problem) -> Decisions:
        here = next(i for i, t in enumerate(problem.tensors) if t.name.startswith("w__here"))
        return Decisions(gaps={(here, 1): Choice.DROP})

    rewritten, _ = lowered(loaded, made, graph, form, drop_w(form.problem))
    path = tmp_path / "rewritten.onnx"
    ir.save(rewritten.model, path)
    feeds = {"x": np.random.default_rng(1).normal(size=SHAPE).astype("f4")}
    _, expected = run_on_ort(str(loaded.path), feeds, tmp_path)
    for level in LEVELS:
        order, results = run_on_ort(str(path), feeds, tmp_path, level)
        assert sum("page_in" in name for name in order) == 2, "once, and once again"
        assert tuple(order) == rewritten.planned_order
        assert results["y"].tobytes() == expected["y"].tobytes()
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert [v.name for v in session.get_inputs()] == ["x"]


def test_what_a_node_writes_over_stays_on_the_device(tmp_path: Path):
    names = ("s", "b", "m", "v")
    infos = [h.make_tensor_value_info(n, T.FLOAT, [3]) for n in names]
    node = h.make_node(
        "BatchNormalization",
        ["x", *names],
        ["y", "m_new", "v_new"],
        name="bn",
        training_mode=1,
    )
    outputs = [h.make_tensor_value_info(n, T.FLOAT, [3]) for n in ("m_new", "v_new")]
    last = h.make_node("Tanh", ["y"], ["z"], name="tanh")
    image = [h.make_tensor_value_info(n, T.FLOAT, [2, 3, 4, 4]) for n in ("x", "y", "z")]
    graph = h.make_graph([node, last], "bn", [image[0], *infos], [*image[1:], *outputs])
    proto = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)
    path = tmp_path / "bn.onnx"
    onnx.save(proto, path)
    found = {t.name for t in may_live_on_host(analysed_graph(load_model(path).model, {}))}
    assert found == {"z"}
