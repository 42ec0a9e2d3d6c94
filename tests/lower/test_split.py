"""Regions that run in chunks: how they grow, and that the graph computes what it did."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto as T
from onnx import helper as h

from planner.formulate import OpCosts, formulate
from planner.graph.liveness import timeline
from planner.graph.model import OpId, Role, TrainingGraph
from planner.graph.schedule import default_order
from planner.lower.chunks.chunked_model import Split
from planner.lower.chunks.regions import Ground, Region, grow
from planner.lower.chunks.split import with_split
from planner.lower.rewrite import rewrite
from planner.onnxio.load import load_model, value_types
from planner.pipeline.prepare.graphs import analysed_graph, typed_graph
from planner.plan.planfile import RegionSeed
from planner.runtime.optimizers.fusion_pins import pin_against_fusion
from planner.runtime.optimizers.normalize import normalize
from planner.search.evaluate import Evaluator
from planner.simulate.simulate import simulate
from tests.graphs import check_runs_as_planned, decisions_for, feeds_for, onnx_graphs, run_on_ort

SLOW = settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
ROWS, HIDDEN, WIDE = 64, 8, 512


def ground_of(model: ir.Model) -> tuple[Ground, TrainingGraph]:
    types = value_types(model, {})
    graph = typed_graph(model, types)
    return Ground(model, types, graph), graph


def split_of(ground: Ground, graph: TrainingGraph, *regions: Region) -> tuple[Split, TrainingGraph]:
    """A model with regions in chunks, and its graph."""
    order = [graph.operations[op].name for op in default_order(graph)]
    made = with_split(ground, regions, order)
    return made, typed_graph(made.model, made.types)


def peak_of(graph: TrainingGraph, names: tuple[str, ...]) -> int:
    ids = {op.name: op.id for op in graph.operations}
    return timeline(graph, [ids[name] for name in names]).peak_bytes


def classifier() -> onnx.ModelProto:
    """A loss over WIDE classes of ROWS rows of HIDDEN, with both gradients: nothing but the weight and
    the logits is large."""
    nodes = [
        h.make_node("Gemm", ["x", "w"], ["logits"], name="logits", transB=1),
        h.make_node("LogSoftmax", ["logits"], ["logp"], name="logp", axis=1),
        h.make_node("GatherElements", ["logp", "targets"], ["picked"], name="picked", axis=1),
        h.make_node("ReduceMean", ["picked"], ["mean"], name="mean", keepdims=0),
        h.make_node("Neg", ["mean"], ["loss"], name="loss"),
        h.make_node("Exp", ["logp"], ["p"], name="p"),
        h.make_node("Squeeze", ["targets", "one"], ["flat"], name="flat"),
        h.make_node("OneHot", ["flat", "depth", "levels"], ["hot"], name="hot", axis=1),
        h.make_node("Sub", ["p", "hot"], ["d"], name="d"),
        h.make_node("MatMul", ["d", "w"], ["dx"], name="dx"),
        h.make_node("Gemm", ["d", "x"], ["dw"], name="dw", transA=1),
    ]
    info = h.make_tensor_value_info
    inputs = [
        info("x", T.FLOAT, [ROWS, HIDDEN]),
        info("w", T.FLOAT, [WIDE, HIDDEN]),
        info("targets", T.INT64, [ROWS, 1]),
    ]
    outputs = [
        info("loss", T.FLOAT, []),
        info("dx", T.FLOAT, [ROWS, HIDDEN]),
        info("dw", T.FLOAT, [WIDE, HIDDEN]),
    ]
    constants = [
        h.make_tensor("one", T.INT64, [1], [1]),
        h.make_tensor("depth", T.INT64, [1], [WIDE]),
        h.make_tensor("levels", T.FLOAT, [2], [0.0, 1.0]),
    ]
    graph = h.make_graph(nodes, "classifier", inputs, outputs, constants)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)


def classifier_feeds() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "x": rng.standard_normal((ROWS, HIDDEN)).astype(np.float32),
        "w": rng.standard_normal((WIDE, HIDDEN)).astype(np.float32),
        "targets": rng.integers(0, WIDE, (ROWS, 1)),
    }


def large(chunks: int, axis: int = 0) -> RegionSeed:
    return RegionSeed(tensor="d", axis=axis, chunks=chunks, large_bytes=ROWS * WIDE * 4)


def test_a_region_takes_what_is_large_and_ends_at_what_is_small() -> None:
    ground, _ = ground_of(ir.from_proto(classifier()))
    region = grow(ground, large(4))
    assert region is not None
    assert set(region.ways) == {"logits", "logp", "picked", "p", "hot", "d", "dx", "dw"}
    assert region.ways["dw"].is_partial and not region.is_exact
    assert set(region.cuts) == {"logits", "logp", "picked", "p", "hot", "d", "dx"}
    assert [region.stretch(c, ROWS) for c in range(4)] == [(0, 16), (16, 32), (32, 48), (48, 64)]


def test_a_region_ends_where_an_operator_needs_whole_rows() -> None:
    ground, _ = ground_of(ir.from_proto(classifier()))
    region = grow(ground, large(4, axis=1))  # classes: a softmax takes all of them
    assert region is not None
    assert "logp" not in region.ways and "hot" not in region.ways
    assert {"d", "dx", "dw", "p"} <= set(region.ways)


def test_nothing_grows_from_what_cannot_be_cut() -> None:
    ground, _ = ground_of(ir.from_proto(classifier()))
    for seed in (
        large(2 * ROWS),
        large(2, axis=2),
        RegionSeed(tensor="none", axis=0, chunks=2, large_bytes=1),
    ):
        assert grow(ground, seed) is None
    assert grow(ground, large(2), without=set(ground.nodes)) is None


def test_a_region_grown_again_around_the_same_seed_is_the_same() -> None:
    ground, _ = ground_of(ir.from_proto(classifier()))
    again, _ = ground_of(ir.from_proto(classifier()))
    assert grow(ground, large(8)) == grow(again, large(8))


def test_chunks_run_one_after_the_other_in_far_less_memory(tmp_path: Path) -> None:
    ground, graph = ground_of(ir.from_proto(classifier()))
    region = grow(ground, large(8))
    assert region is not None
    made, after = split_of(ground, graph, region)
    order = default_order(graph)
    before = peak_of(graph, tuple(graph.operations[op].name for op in order))
    assert peak_of(after, made.order) < 0.5 * before
    new = [op for op in after.operations if op.name not in {o.name for o in graph.operations}]
    assert new and all(op.role is Role.CHUNK for op in new)
    for name in ("x", "w", "targets"):
        assert after.tensor_named(name).is_input
    assert [after.tensors[t].name for t in after.outputs] == ["loss", "dx", "dw"]

    path, other = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(classifier(), path)
    ir.save(made.model, other)
    onnx.checker.check_model(onnx.load(other))
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        _, one = run_on_ort(str(path), classifier_feeds(), tmp_path, level)
        _, two = run_on_ort(str(other), classifier_feeds(), tmp_path, level)
        assert list(one) == list(two)
        for name, a in one.items():
            np.testing.assert_allclose(two[name], a, rtol=1e-4, atol=1e-5)


def test_what_comes_back_by_way_of_others_runs_in_a_later_stage() -> None:
    """u = Exp(x) in chunks, s = the sum of all of it, y = u · s: all chunks of u come before the sum, and
    those of y behind it."""
    nodes = [
        h.make_node("Exp", ["x"], ["u"], name="u"),
        h.make_node("ReduceSum", ["u"], ["s"], name="s", keepdims=1),
        h.make_node("Sqrt", ["s"], ["r"], name="r"),
        h.make_node("Mul", ["u", "r"], ["y"], name="y"),
    ]
    info = h.make_tensor_value_info
    graph = h.make_graph(nodes, "back", [info("x", T.FLOAT, [8, 8])], [info("y", T.FLOAT, [8, 8])])
    proto = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)
    ground, before = ground_of(ir.from_proto(proto))
    region = grow(ground, RegionSeed(tensor="u", axis=0, chunks=2, large_bytes=256))
    assert region is not None and set(region.ways) == {"u", "s", "y"}
    made, _ = split_of(ground, before, region)
    at = {name: i for i, name in enumerate(made.order)}
    assert at["u__chunk0"] < at["u__chunk1"] < at["r"] < at["y__chunk0"] < at["y__chunk1"]
    assert at["s__chunk0"] < at["u__chunk1"]  # chunk after chunk


@st.composite
def regions_of(draw: st.DrawFn, ground: Ground) -> list[Region]:
    """Up to three regions anywhere."""
    found: list[Region] = []
    taken: set[str] = set()
    for _ in range(draw(st.integers(1, 3))):
        tensor = draw(st.sampled_from(sorted(ground.producer)))
        rank = len(ground.types[tensor].shape)
        if not rank:
            continue
        seed = RegionSeed(
            tensor=tensor,
            axis=draw(st.integers(0, rank - 1)),
            chunks=draw(st.sampled_from([2, 3, 4])),
            large_bytes=draw(st.sampled_from([1, 200, 1 << 20])),
        )
        region = grow(ground, seed, without=taken)
        if region is not None:
            found.append(region)
            taken |= region.ways.keys()
    return found


def as_costs(graph: TrainingGraph) -> OpCosts:
    return OpCosts(duration_us=[1.0] * len(graph.operations))


@SLOW
@given(proto=onnx_graphs(max_nodes=14), data=st.data())
def test_any_regions_of_any_graph_give_the_same_numbers(proto, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("split")
    path = folder / "model.onnx"
    onnx.save(proto, path)
    model = normalize(load_model(path))
    graph = analysed_graph(model, {})
    ground = Ground(model, value_types(model, {}), graph)
    regions = data.draw(regions_of(ground))
    made, after = split_of(ground, graph, *regions)
    other = folder / "split.onnx"
    ir.save(made.model, other)
    ids = {op.name: op.id for op in after.operations}
    assert len(made.order) == len(ids)
    timeline(after, [ids[name] for name in made.order])
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        _, one = run_on_ort(str(path), feeds_for(), folder, level)
        _, two = run_on_ort(str(other), feeds_for(), folder, level)
        assert list(one) == list(two)
        for a, b in ((a, two[name]) for name, a in one.items()):
            assert a.shape == b.shape
            finite = np.isfinite(a)
            scale = np.abs(a[finite]).max(initial=1e-30)
            np.testing.assert_allclose(b[finite], a[finite], rtol=1e-3, atol=1e-4 * scale)


@SLOW
@given(data=st.data())
def test_any_plan_of_chunks_runs_as_planned(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("planned")
    path = folder / "model.onnx"
    onnx.save(classifier(), path)
    loaded = load_model(path)
    model = normalize(loaded)
    graph = analysed_graph(model, {})
    ground = Ground(model, value_types(model, {}), graph)
    region = grow(ground, RegionSeed(tensor="d", axis=0, chunks=2, large_bytes=1 << 16))
    assert region is not None
    made, after = split_of(ground, graph, region)
    ids = {op.name: op.id for op in after.operations}
    order = [OpId(ids[name]) for name in made.order]
    form = formulate(after, order, as_costs(after))
    actions = Evaluator(form.problem).schedule(data.draw(decisions_for(form.problem)))

    def lower(pinned: frozenset[str]):
        return rewrite(made.model, after, form, actions, pinned=pinned)

    rewritten = pin_against_fusion(lower, loaded)
    planned = folder / "planned.onnx"
    ir.save(rewritten.model, planned)
    ir.save(made.model, folder / "split.onnx")
    _, expected = run_on_ort(str(folder / "split.onnx"), classifier_feeds(), folder)
    check_runs_as_planned(
        str(planned), rewritten.planned_order, expected, folder, classifier_feeds()
    )
    back = analysed_graph(rewritten.model, {})
    line = timeline(back, default_order(back))
    peak = simulate(form.problem, actions).peak_bytes
    assert line.peak_bytes <= peak + 8 * rewritten.anchors + 256
