"""What lowering says of the values that it adds is what inference finds, so that none is needed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from planner.errors import ModelError
from planner.formulate import Formulation, has_slot, with_paging
from planner.graph.model import Placement, Role
from planner.lower.residence import may_live_on_host
from planner.lower.rewrite import Rewritten, Sessions, rewrite
from planner.onnxio.load import ValueType, checked_types, inferred_types, value_types
from planner.pipeline.levers.host.residence import resided
from planner.pipeline.prepare.graphs import analysed_graph
from planner.pipeline.prepare.prepared import Prepared, prepare
from planner.pipeline.solve.read_back import lowered_as, read_back
from planner.plan.decisions import Choice, Decisions
from planner.plan.problem import Problem
from planner.request import Request
from planner.runtime.optimizers import shapes
from planner.runtime.optimizers.shapes import unsized_values
from planner.search.evaluate import Evaluator
from planner.simulate.waits import with_waits
from planner.targets import HOST
from planner.targets.cuda import CUDA
from planner.targets.webgpu import WEBGPU
from tests.fuzz.cases import draw_case
from tests.graphs import formulation_of
from tests.lower.test_placed import chain, swap_a

CASES = range(100, 220)


def decide(problem: Problem, rng: random.Random) -> Decisions:
    """Every other gap is not kept, where it need not be."""
    gaps: dict[tuple[int, int], Choice] = {}
    for t, tensor in enumerate(problem.tensors):
        ways = [Choice.DROP] if problem.ops[tensor.producer].recomputable else []
        ways += [Choice.SWAP] if tensor.swappable else []
        for gap in range(1, len(tensor.uses)):
            if ways and rng.random() < 0.5:
                gaps[t, gap] = rng.choice(ways)
    return Decisions(gaps=gaps)


def _overlapped(prepared: Prepared, form: Formulation) -> Problem:
    """The problem, whose copies run beside the operations where they can."""
    tensors = zip(form.problem.tensors, form.tensors, strict=True)
    able = tuple(
        replace(t, host_copy=t.host_copy or not has_slot(prepared.graph.tensors[of]))
        for t, of in tensors
    )
    return replace(form.problem, tensors=able, overlap=True)


def test_types_are_those_of_inference_on_random_graphs(tmp_path: Path) -> None:
    roles: set[Role] = set()
    refused = 0
    for seed in CASES:
        rng = random.Random(seed)
        case = draw_case(rng)
        path = tmp_path / f"{seed}.onnx"
        onnx.save(case.model, path)
        try:
            prepared = prepare(
                Request(model=path, dims=dict(case.dims), ort_optimize=case.mode.ort_optimize)
            )
            if seed % 2:
                movable = [t.name for t in may_live_on_host(prepared.graph)]
                prepared = resided(prepared, {name for name in movable if rng.random() < 0.5})
            form = formulation_of(prepared.graph)
            decisions = decide(form.problem, rng)
            actions = Evaluator(form.problem).schedule(decisions)
            if seed % 3 == 0:
                form = with_paging(form, prepared.graph)
                actions = with_waits(_overlapped(prepared, form), actions, form.paging)
            rewritten = lowered_as(
                lambda made: made, prepared, form, actions, order_target=case.mode.order
            )
        except ModelError:  # what cannot be planned, or not with these copies
            refused += 1
            continue
        types = checked_types(rewritten.model, {**prepared.types, **rewritten.types})
        for name, (dtype, shape) in inferred_types(rewritten.model, dict(case.dims)).items():
            assert dtype in (None, types[name].dtype), (seed, name)
            assert shape in (None, types[name].shape), (seed, name)
        back = read_back(prepared, rewritten, order_target=case.mode.order)
        unsized = {t.name for t in back.graph.tensors if t.unsized}
        assert unsized == unsized_values(rewritten.model, types), seed
        roles |= {op.role for op in back.graph.operations}
    assert refused < len(CASES) // 2
    elsewhere = {Role.SCRATCH, Role.HALF, Role.WHOLE, Role.CHUNK}  # test_halved.py, test_split.py
    assert set(Role) - elsewhere <= roles


def rewritten_with_sizes(tmp_path: Path, *, drop: str) -> tuple[Prepared, Rewritten]:
    """`c` is reshaped to what `shape` says; `drop` is made again for its last reader."""
    nodes = [
        h.make_node("Tanh", ["x"], ["a"], name="a"),
        h.make_node("Shape", ["x"], ["of_x"], name="of_x"),
        h.make_node("Gather", ["of_x", "first"], ["rows"], name="rows"),
        h.make_node("Gather", ["of_x", "second"], ["columns"], name="columns"),
        h.make_node("Concat", ["columns", "rows"], ["shape"], axis=0, name="shape"),
        h.make_node("Sin", ["a"], ["b"], name="b"),
        h.make_node("Add", ["a", "b"], ["c"], name="c"),
        h.make_node("Reshape", ["c", "shape"], ["y"], name="y"),
        h.make_node("Abs", ["shape"], ["other"], name="other"),
    ]
    graph = h.make_graph(
        nodes,
        "sizes",
        [h.make_tensor_value_info("x", T.FLOAT, (4, 8))],
        [
            h.make_tensor_value_info("y", T.FLOAT, None),
            h.make_tensor_value_info("other", T.INT64, (2,)),
        ],
        [h.make_tensor(name, T.INT64, (1,), (i,)) for i, name in enumerate(("first", "second"))],
    )
    path = tmp_path / "sizes.onnx"
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=10), path)
    prepared = prepare(Request(model=path, ort_optimize=False))
    form = formulation_of(prepared.graph)
    names = [t.name for t in form.problem.tensors]
    tensor = names.index(drop)
    gaps = {(tensor, gap): Choice.DROP for gap in range(1, len(form.problem.tensors[tensor].uses))}
    actions = Evaluator(form.problem).schedule(Decisions(gaps=gaps))
    return prepared, lowered_as(lambda made: made, prepared, form, actions, order_target="default")


@pytest.mark.parametrize(("drop", "sessions"), [("a", 0), ("shape", 1)])
def test_a_session_is_asked_for_shapes_only_where_a_copy_may_say_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drop: str, sessions: int
) -> None:
    prepared, rewritten = rewritten_with_sizes(tmp_path, drop=drop)
    assert drop in rewritten.like.values()
    asked: list[ir.Model] = []

    def ask(model: ir.Model, types: Mapping[str, ValueType]) -> set[str]:
        asked.append(model)
        return unsized_values(model, types)

    monkeypatch.setattr(shapes, "unsized_values", ask)
    types = checked_types(rewritten.model, {**prepared.types, **rewritten.types})
    found = shapes.unsized_copies(prepared.graph, rewritten.model, types, rewritten.like)
    assert len(asked) == sessions
    assert found == unsized_values(rewritten.model, types)


@pytest.mark.parametrize(
    ("target", "dtype", "operators"),
    [
        (HOST, T.FLOAT, {"Size"}),
        (HOST, T.FLOAT16, {"OptionalHasElement"}),
        (HOST, T.BFLOAT16, {"GatherND"}),
        (CUDA, T.FLOAT16, {"OptionalHasElement"}),
        (WEBGPU, T.FLOAT, {"GatherND", "Size"}),
    ],
)
def test_types_of_anchors(target, dtype, operators) -> None:
    proto = chain()
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = dtype
    proto.opset_import[0].version = 18
    model = ir.from_proto(proto)
    placement = Placement(on_cpu=frozenset()) if target.own_memory else None
    graph = analysed_graph(model, {}, placement=placement)
    form = formulation_of(graph)
    actions = Evaluator(form.problem).schedule(swap_a(form.problem))
    pinned = frozenset({"a", "b", "c", "d"})
    rewritten = rewrite(
        model, graph, form, actions, pinned=pinned, sessions=Sessions(target=target)
    )
    anchors = {op.op_type for op in rewritten.model.graph if op.op_type in operators}
    assert anchors == operators
    said = {**value_types(model, {}), **rewritten.types}
    assert checked_types(rewritten.model, said) == value_types(rewritten.model, {})


def test_sizes_are_checked_though_nothing_is_inferred() -> None:
    model = ir.from_proto(chain())
    types = value_types(model, {})
    huge = ValueType(dtype=ir.DataType.FLOAT, shape=(1 << 40, 1 << 20))
    with pytest.raises(ModelError, match="planner counts up to"):
        checked_types(model, {**types, "a": huge})
    most = ValueType(dtype=ir.DataType.FLOAT, shape=(1 << 60,))
    with pytest.raises(ModelError, match="together"):
        checked_types(model, types | dict.fromkeys(("a", "b", "c", "d", "s"), most))
