"""Copies of what reads a transposed tensor: ONNX Runtime takes a Reshape behind a Transpose away."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from planner.graph.model import Role
from planner.lower.rewrite import rewrite
from planner.onnxio.load import load_model
from planner.pipeline.prepare.graphs import analysed_graph
from planner.plan.problem import Action, ActionKind
from planner.runtime.optimizers.fusion_pins import pin_against_fusion
from planner.runtime.optimizers.normalize import normalize
from tests.graphs import check_runs_as_planned, formulation_of, run_on_ort

SHAPE = (4, 3, 8, 8)


def _numbers(name: str, *values: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def turned_and_cut() -> onnx.ModelProto:
    """A transposed image, a part of it, and both ends of a chain that read that."""
    height, width = SHAPE[2:]
    nodes = [
        h.make_node("Sin", ["x"], ["r"], "sin"),
        h.make_node("Transpose", ["r"], ["y"], "turn", perm=[1, 0, 2, 3]),
        h.make_node("Slice", ["y", "starts", "ends", "axes"], ["part"], "reader"),
        h.make_node("Exp", ["part"], ["a"], "exp"),
        h.make_node("Cos", ["a"], ["b"], "cos"),
        h.make_node("Mul", ["b", "part"], ["out"], "mul"),
    ]
    graph = h.make_graph(
        nodes,
        "turned",
        [h.make_tensor_value_info("x", T.FLOAT, SHAPE)],
        [h.make_tensor_value_info("out", T.FLOAT, None)],
        [
            _numbers("starts", 0, 0),
            _numbers("ends", height - 1, width - 1),
            _numbers("axes", 2, 3),
        ],
    )
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)


def test_the_copy_of_what_reads_a_transposed_tensor_is_left_alone(tmp_path: Path):
    path = tmp_path / "model.onnx"
    onnx.save(turned_and_cut(), path)
    loaded = load_model(path)
    model = normalize(loaded)
    graph = analysed_graph(model, {})
    form = formulation_of(graph)
    names = [graph.operations[op].name for op in form.ops]
    again = names.index("reader")
    last = max(u for t in form.problem.ops[again].outputs for u in form.problem.tensors[t].uses)
    order = [*range(last), again, *range(last, len(names))]
    actions = [Action(kind=ActionKind.RUN, target=i) for i in order]
    rewritten = pin_against_fusion(
        lambda pinned: rewrite(model, graph, form, actions, pinned=pinned), loaded
    )
    assert any(node.name == "reader__recompute_1" for node in rewritten.model.graph)
    assert Role.BARRIER.value not in str(ir.to_proto(rewritten.model))
    target = tmp_path / "planned.onnx"
    ir.save(rewritten.model, target)
    feeds = {"x": np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)}
    _, expected = run_on_ort(str(path), feeds, tmp_path)
    check_runs_as_planned(str(target), rewritten.planned_order, expected, tmp_path, feeds)
