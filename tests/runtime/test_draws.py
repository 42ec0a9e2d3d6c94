"""Models that draw random numbers without a seed: planned, drawn once, and compared all the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from planner import api
from planner.graph.effects import Effect
from planner.runtime.judge.draws import drawn_outputs, seeded_alike
from planner.runtime.options import Opening

SIDE, DEPTH = 64, 6


def masked(draw: list[onnx.NodeProto]) -> onnx.ModelProto:
    """A chain of masked layers and its way back; `draw` makes the mask `m` of `x`."""
    nodes = [*draw]
    last = "x"
    for i in range(DEPTH):
        nodes.append(h.make_node("Mul", [last, "m"], [f"d{i}"], name=f"mask{i}"))
        nodes.append(h.make_node("Tanh", [f"d{i}"], [f"t{i}"], name=f"tanh{i}"))
        last = f"t{i}"
    gradient = last
    for i in reversed(range(DEPTH)):
        nodes.append(h.make_node("Mul", [gradient, f"t{i}"], [f"e{i}"], name=f"back{i}"))
        nodes.append(h.make_node("Mul", [f"e{i}", "m"], [f"g{i}"], name=f"unmask{i}"))
        gradient = f"g{i}"
    nodes.append(h.make_node("Neg", [gradient], ["x_grad"], name="out"))
    nodes.append(h.make_node("ReduceMean", [last], ["loss"], name="loss", keepdims=0))
    nodes.append(h.make_node("ReduceMax", ["x"], ["top"], name="top", keepdims=0))
    info = h.make_tensor_value_info
    outputs = [info("loss", T.FLOAT, []), info("x_grad", T.FLOAT, [SIDE, SIDE])]
    graph = h.make_graph(
        nodes, "g", [info("x", T.FLOAT, [SIDE, SIDE])], [*outputs, info("top", T.FLOAT, [])]
    )
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9)


def bernoulli(**attributes: float) -> list[onnx.NodeProto]:
    return [
        h.make_node("Sigmoid", ["x"], ["p"], name="p"),
        h.make_node("Bernoulli", ["p"], ["m"], name="mask", **attributes),
    ]


def two_draws() -> list[onnx.NodeProto]:
    """Of which a second Bernoulli reads what the first has drawn."""
    return [
        *bernoulli()[:1],
        h.make_node("Bernoulli", ["p"], ["q"], name="first"),
        h.make_node("RandomNormalLike", ["q"], ["z"], name="second"),
        h.make_node("Mul", ["q", "z"], ["m"], name="both"),
    ]


@pytest.mark.parametrize("draw", [bernoulli, two_draws], ids=["one", "two"])
def test_what_is_drawn_without_a_seed_is_drawn_once_and_compared(draw, tmp_path: Path) -> None:
    path, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    onnx.save(masked(draw()), path)
    result = api.optimize(path, budget="70%", output=out, time_limit_s=0.3)
    check = result.verification
    assert check is not None and check.passed
    assert {c.name for c in check.outputs if c.identical} == {"loss", "x_grad", "top"}
    assert any("compared with a seed" in note for note in check.notes)
    assert any("random numbers without a seed" in said for said in result.plan.assumptions)
    kinds = [op.effect for op in result.after.graph.operations]
    assert kinds.count(Effect.RANDOM_UNSEEDED) == len(draw()) // 2
    assert set(drawn_outputs(result.after.graph)) == {"loss", "x_grad"}


def test_with_a_seed_there_is_nothing_to_say(tmp_path: Path) -> None:
    path, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    onnx.save(masked(bernoulli(seed=3.0)), path)
    result = api.optimize(path, budget="70%", output=out, time_limit_s=0.3)
    assert result.verification is not None and result.verification.passed
    assert not any("without a seed" in note for note in result.verification.notes)


def test_wrong_numbers_behind_a_random_node_are_found(tmp_path: Path) -> None:
    path, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    onnx.save(masked(bernoulli()), path)
    api.optimize(path, budget="70%", output=out, time_limit_s=0.3, verify=False)
    broken = onnx.load(out)
    next(n for n in broken.graph.node if n.op_type == "Neg").op_type = "Abs"
    onnx.save(broken, out)
    assert not api.verify(path, out).passed


def test_numbers_that_cannot_be_drawn_alike_are_said_not_to_be_compared(tmp_path: Path) -> None:
    path, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    model = masked([h.make_node("Noise", ["x"], ["m"], name="noise", domain="mine")])
    body = [h.make_node("RandomUniformLike", ["a"], ["b"])]
    model.opset_import.append(h.make_opsetid("mine", 1))
    model.functions.append(
        h.make_function("mine", "Noise", ["a"], ["b"], body, [h.make_opsetid("", 17)])
    )
    onnx.save(model, path)
    result = api.optimize(path, budget="70%", output=out, time_limit_s=0.3)
    assert result.verification is not None
    assert {c.name for c in result.verification.outputs} == {"top"}
    assert any("were not compared" in note for note in result.verification.notes)


def test_external_data_is_found_from_memory(tmp_path: Path) -> None:
    model = masked(bernoulli())
    weight = np.full((SIDE, SIDE), 0.5, np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    model.graph.node[0].input[0] = "shifted"
    model.graph.node.insert(0, h.make_node("Add", ["x", "w"], ["shifted"], name="shift"))
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.data", size_threshold=64)
    pair = seeded_alike(path, path)
    assert pair is not None
    feeds = {"x": np.ones((SIDE, SIDE), np.float32)}
    opening = Opening(threads=1)
    first, second = (m.run(feeds, opening=opening)["x_grad"] for m in pair)
    np.testing.assert_array_equal(first, second)
