"""Names that planner adds never meet names that are there, whatever those are and whatever has them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from planner import api
from planner.graph.marks import PLANNER_ATTRIBUTE
from planner.lower.order.anchors import last_number
from planner.lower.rewrite import Rewritten, rewrite
from planner.onnxio.load import load_model
from planner.onnxio.names import FreeNames, name_nodes
from planner.pipeline.prepare.graphs import analysed_graph
from planner.plan.decisions import Decisions
from planner.plan.problem import Problem
from planner.runtime.optimizers.fusion_pins import pin_against_fusion
from planner.runtime.optimizers.normalize import normalize
from planner.search.evaluate import Evaluator
from tests.graphs import (
    decisions_for,
    feeds_for,
    formulation_of,
    graph_of,
    onnx_graphs,
    run_on_ort,
)
from tests.lower.test_unfold import embedding_gradient, feeds, unfolded

MADE = (
    "planner__one_dim",
    "planner__keep_shape_2",
    "zeros__shape",
    "zeros__count",
    "zeros__count_node",
    "zeros__length",
    "zeros__flat",
    "zeros__folded",
    "zeros__node",
    "act__recompute_1",
    "act__barrier_1",
    "act__swap_in_1",
    "act__host",
)


def renamed(proto: onnx.ModelProto, names: dict[str, str]) -> onnx.ModelProto:
    """The model, its values and nodes called otherwise."""
    found = onnx.ModelProto()
    found.CopyFrom(proto)
    graph = found.graph
    for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        node.name = names.get(f"node {node.name}", node.name)
        node.input[:] = [names.get(n, n) for n in node.input]
        node.output[:] = [names.get(n, n) for n in node.output]
    return found


def values_of(model: ir.Model) -> list[str]:
    values = [*model.graph.inputs, *model.graph.initializers.values()]
    values += [v for node in model.graph for v in node.outputs]
    return [str(v.name) for v in values]


def all_names(model: ir.Model) -> set[str]:
    return {*values_of(model), *(str(node.name) for node in model.graph)}


def lowered(
    proto: onnx.ModelProto, folder: Path, decide: Callable[[Problem], Decisions]
) -> Rewritten:
    path = folder / "model.onnx"
    onnx.save(proto, path)
    loaded = load_model(path)
    model = normalize(loaded)
    graph = analysed_graph(model, {})
    form = formulation_of(graph)
    actions = Evaluator(form.problem).schedule(decide(form.problem))
    return pin_against_fusion(
        lambda pinned: rewrite(model, graph, form, actions, pinned=pinned), loaded
    )


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(proto=onnx_graphs(max_nodes=12), data=st.data())
def test_a_graph_that_bears_the_names_that_were_added_to_it(proto, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("names")
    choices: list[Decisions] = []

    def decide(problem: Problem) -> Decisions:
        choices.extend([] if choices else [data.draw(decisions_for(problem))])
        return choices[0]

    first = lowered(proto, folder, decide)
    theirs = all_names(ir.from_proto(proto))
    # ONNX Runtime does not load every graph that bears the names that its optimizers make
    optimized = all_names(normalize(load_model(folder / "model.onnx")))
    added = sorted(all_names(first.model) - theirs - optimized)
    wanted = [f"node {n.name}" for n in proto.graph.node]
    wanted += [v for v in sorted(theirs) if v not in {n.name for n in proto.graph.node}]
    takers = data.draw(st.permutations(wanted))
    names = dict(zip(takers, added, strict=False))
    again = renamed(proto, names)
    second = lowered(again, folder, decide)
    for many in (values_of(second.model), [str(node.name) for node in second.model.graph]):
        assert len(many) == len(set(many))
    path = folder / "rewritten.onnx"
    ir.save(second.model, path)
    given_arrays = {names.get(n, n): a for n, a in feeds_for().items()}
    _, expected = run_on_ort(proto.SerializeToString(), feeds_for(), folder)
    order, results = run_on_ort(str(path), given_arrays, folder)
    assert tuple(order) == second.planned_order
    assert list(results) == [names.get(n, n) for n in expected]
    for name, value in expected.items():
        assert results[names.get(name, name)].tobytes() == value.tobytes()


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("what", ["act", "rows", "where", "node act", "last", "w_grad"])
def test_constants_are_unfolded_beside_any_name(name: str, what: str, tmp_path: Path) -> None:
    proto = onnx.load(embedding_gradient(tmp_path).path)
    path = tmp_path / "renamed.onnx"
    onnx.save(renamed(proto, {what: name}), path)
    _, result = unfolded(load_model(path))
    assert len(result.names) == 1
    ir.save(result.model, tmp_path / "unfolded.onnx")
    given_arrays = {name if n == what else n: a for n, a in feeds().items()}
    _, expected = run_on_ort(proto.SerializeToString(), feeds(), tmp_path)
    _, results = run_on_ort(str(tmp_path / "unfolded.onnx"), given_arrays, tmp_path)
    for old, new in zip(expected.values(), results.values(), strict=True):
        assert new.tobytes() == old.tobytes()


def training_step(folder: Path) -> onnx.ModelProto:
    """The embedding's gradient, and a chain of activations that a way back reads in reverse."""
    proto = onnx.load(embedding_gradient(folder).path)
    nodes = [
        h.make_node("Tanh", [f"t{i}" if i else "w"], [f"t{i + 1}"], name=f"tanh{i}")
        for i in range(5)
    ]
    for i in reversed(range(1, 6)):
        nodes.append(
            h.make_node(
                "Mul", [f"g{i + 1}" if i < 5 else "t5", f"t{i}"], [f"g{i}"], name=f"back{i}"
            )
        )
    proto.graph.node.extend(nodes)
    proto.graph.output.append(h.make_tensor_value_info("g1", T.FLOAT, [256, 256]))
    return proto


def with_function(proto: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Its Tanh in a function, whose value bears the name."""
    body = [h.make_node("Neg", ["a"], [name], name=name), h.make_node("Neg", [name], ["b"])]
    proto.functions.append(
        h.make_function("mine", name, ["a"], ["b"], body, [h.make_opsetid("", 18)])
    )
    proto.opset_import.append(h.make_opsetid("mine", 1))
    proto.graph.node.insert(2, h.make_node(name, ["act"], ["same"], name="call", domain="mine"))
    proto.graph.node[3].input[0] = "same"
    return proto


def with_output_initializer(proto: onnx.ModelProto, name: str) -> onnx.ModelProto:
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), name))
    proto.graph.output.append(h.make_tensor_value_info(name, T.FLOAT, [3]))
    return proto


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("planner__one_dim", lambda proto, name: renamed(proto, {"act": name})),
        ("zeros__count", with_output_initializer),
        ("zeros__node", with_function),
        ("planner__keep_shape_2", lambda proto, name: renamed(proto, {"rows": name})),
    ],
    ids=["activation", "output initializer", "function", "input"],
)
def test_such_a_model_is_planned_and_verified(name: str, change, tmp_path: Path) -> None:
    proto = change(training_step(tmp_path), name)
    path, out = tmp_path / "user.onnx", tmp_path / "out.onnx"
    onnx.save(proto, path)
    result = api.optimize(path, budget="75%", output=out, time_limit_s=2)
    assert result.verification is not None and result.verification.passed
    assert not result.plan.unchanged


# -- the factory ---------------------------------------------------------------------------------


def test_no_name_in_the_model_is_free() -> None:
    info = h.make_tensor_value_info
    inner = h.make_graph(
        [h.make_node("Neg", ["outer"], ["in_branch"], name="branch_node")],
        "branch",
        [],
        [info("in_branch", T.FLOAT, ["branch_dim"])],
        [numpy_helper.from_array(np.zeros(1, np.float32), "branch_constant")],
    )
    nodes = [
        h.make_node("Neg", ["x"], ["outer"], name="outer_node"),
        h.make_node("If", ["c"], ["y"], name="if", then_branch=inner, else_branch=inner),
    ]
    graph = h.make_graph(
        nodes,
        "graph",
        [info("x", T.FLOAT, ["batch"]), info("c", T.BOOL, [])],
        [info("y", T.FLOAT, ["batch"]), info("constant", T.FLOAT, [1])],
        [numpy_helper.from_array(np.zeros(1, np.float32), "constant")],
    )
    proto = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)
    body = [h.make_node("Neg", ["fa"], ["inside"], name="inside_node")]
    proto.functions.append(
        h.make_function("mine", "Fn", ["fa"], ["inside"], body, [h.make_opsetid("", 18)])
    )
    names = FreeNames(ir.from_proto(proto))
    taken = (
        "x c y outer outer_node if graph batch constant branch branch_node branch_dim in_branch "
        "branch_constant Fn fa inside inside_node"
    )
    for name in taken.split():
        assert names.fresh(name) == f"{name}_2"
    assert names.fresh("other") == "other"
    assert names.fresh("other") == "other_2"
    assert names.fresh("other_2") == "other_2_2"


def test_nodes_are_named_apart_from_values_too() -> None:
    info = h.make_tensor_value_info
    nodes = [h.make_node("Neg", ["x"], ["Neg:y"]), h.make_node("Neg", ["Neg:y"], ["y"])]
    graph = h.make_graph(nodes, "g", [info("x", T.FLOAT, [1])], [info("y", T.FLOAT, [1])])
    model = ir.from_proto(h.make_model(graph))
    assert name_nodes(model) == 2
    assert [node.name for node in model.graph] == ["Neg:Neg:y", "Neg:y_2"]


# -- strangers' marks ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mark",
    ["recompute:abc", "recompute:", ":7", "", "recompute:" + "9" * 5000, 10**18, 1.5, [1, 2]],
)
def test_a_stranger_s_mark_is_neither_believed_nor_in_the_way(mark, tmp_path: Path) -> None:
    proto = training_step(tmp_path)
    for node in proto.graph.node:
        node.attribute.append(h.make_attribute(PLANNER_ATTRIBUTE, mark, attr_type=_kind(mark)))
    _, graph = graph_of(proto)
    assert {op.role.value for op in graph.operations} == {"original"}
    assert 0 <= last_number(graph) <= 10**18
    path, out = tmp_path / "user.onnx", tmp_path / "out.onnx"
    onnx.save(proto, path)
    result = api.optimize(path, budget="75%", output=out, time_limit_s=1, verify=False)
    assert not result.plan.unchanged


def _kind(mark: object) -> int | None:
    return onnx.AttributeProto.INTS if isinstance(mark, list) else None
