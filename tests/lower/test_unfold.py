"""Constants that folding made, as nodes again: the same bits, less memory, and they stay nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from planner.graph.liveness import timeline
from planner.graph.schedule import default_order
from planner.lower.unfold import MIN_BYTES, unfold
from planner.onnxio.load import LoadedModel, load_model, value_types
from planner.pipeline.prepare import analysed_graph
from planner.runtime.normalize import normalize
from tests.graphs import LEVELS, run_on_ort

SIDE = 256


def info(name: str, *shape: int, dtype: int = T.FLOAT):
    return h.make_tensor_value_info(name, dtype, shape)


def embedding_gradient(folder: Path, *, weight_is_input: bool = True) -> LoadedModel:
    """rows of w, and their gradient scattered into zeros, which folding makes an initializer."""
    nodes = [
        h.make_node("Gather", ["w", "rows"], ["picked"], name="gather"),
        h.make_node("Tanh", ["picked"], ["act"], name="act"),
        h.make_node("ReduceMean", ["act"], ["loss"], name="loss", keepdims=0),
        h.make_node("Mul", ["act", "act"], ["d"], name="d"),
        h.make_node("ConstantOfShape", ["shape"], ["zeros"], name="zeros"),
        h.make_node("Unsqueeze", ["rows", "last"], ["where"], name="where"),
        h.make_node("ScatterND", ["zeros", "where", "d"], ["w_grad"], name="scatter"),
    ]
    weight = numpy_helper.from_array(np.full((SIDE, SIDE), 0.5, np.float32), "w")
    constants = [
        numpy_helper.from_array(np.array([SIDE, SIDE], np.int64), "shape"),
        numpy_helper.from_array(np.array([1], np.int64), "last"),
    ]
    inputs = [info("rows", 7, dtype=T.INT64)]
    if weight_is_input:
        inputs.append(info("w", SIDE, SIDE))
    else:
        constants.append(weight)
    graph = h.make_graph(
        nodes, "embedding", inputs, [info("loss"), info("w_grad", SIDE, SIDE)], constants
    )
    proto = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return load_model(path)


def feeds() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "rows": np.array([3, 1, 4, 200, 5, 9, 2], np.int64),
        "w": rng.standard_normal((SIDE, SIDE)).astype(np.float32),
    }


def unfolded(loaded: LoadedModel):
    folded = normalize(loaded)
    types = value_types(folded, {})
    return folded, unfold(folded, types, set(loaded.model.graph.initializers))


def test_folded_zeros_become_nodes_and_free_persistent_bytes(tmp_path):
    folded, result = unfolded(embedding_gradient(tmp_path))
    assert len(result.names) == 1
    assert result.bytes == SIDE * SIDE * 4 >= MIN_BYTES

    def persistent(model: ir.Model) -> int:
        graph = analysed_graph(model, {})
        return timeline(graph, default_order(graph)).persistent_bytes

    saved = persistent(folded) - persistent(result.model)
    assert result.bytes - 64 <= saved <= result.bytes  # shapes of a few bytes are added


@pytest.mark.parametrize("level", LEVELS)
def test_the_numbers_stay_the_same_bits(level, tmp_path):
    loaded = embedding_gradient(tmp_path)
    _, result = unfolded(loaded)
    path = tmp_path / "unfolded.onnx"
    ir.save(result.model, path)
    _, expected = run_on_ort(str(loaded.path), feeds(), tmp_path)
    executed, found = run_on_ort(str(path), feeds(), tmp_path, level)
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name].tobytes() == value.tobytes()
    # not folded again: every node is there and runs
    assert sorted(executed) == sorted(str(n.name) for n in result.model.graph)


def test_types_cover_every_value_and_agree_with_inference(tmp_path):
    _, result = unfolded(embedding_gradient(tmp_path))
    inferred = value_types(result.model, {}, known=result.types)
    assert {name: result.types[name] for name in inferred} == inferred


def test_the_model_it_is_given_is_not_changed(tmp_path):
    loaded = embedding_gradient(tmp_path)
    folded = normalize(loaded)
    before = ir.to_proto(folded).SerializeToString(deterministic=True)
    unfold(folded, value_types(folded, {}), set(loaded.model.graph.initializers))
    assert ir.to_proto(folded).SerializeToString(deterministic=True) == before


def test_the_user_s_own_initializers_are_left_alone(tmp_path):
    loaded = embedding_gradient(tmp_path, weight_is_input=False)  # w is full of one value
    _, result = unfolded(loaded)
    assert "w" not in result.names
    assert "w" in result.model.graph.initializers


def test_a_length_is_not_taken_from_what_the_constant_is_needed_for(tmp_path):
    # without w as an input, only the gradient itself has as many elements as the zeros
    loaded = embedding_gradient(tmp_path, weight_is_input=False)
    folded, result = unfolded(loaded)
    assert len(list(result.model.graph)) >= len(list(folded.graph))
    path = tmp_path / "unfolded.onnx"
    ir.save(result.model, path)
    rows = {"rows": feeds()["rows"]}
    _, expected = run_on_ort(str(loaded.path), rows, tmp_path)
    _, found = run_on_ort(str(path), rows, tmp_path)
    for name, value in expected.items():
        assert found[name].tobytes() == value.tobytes()


def test_small_constants_are_left_alone(tmp_path, monkeypatch):
    loaded = embedding_gradient(tmp_path)
    monkeypatch.setattr("planner.lower.unfold.MIN_BYTES", SIDE * SIDE * 4 + 1)
    _, result = unfolded(loaded)
    assert result.names == ()
