"""Constants that folding made, as nodes again: the same bits, less memory, and they stay nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from planner import apply, optimize
from planner.graph.liveness import timeline
from planner.graph.schedule import default_order
from planner.lower.unfold import MIN_BYTES, unfold
from planner.onnxio.load import LoadedModel, load_model, value_types
from planner.pipeline.prepare.graphs import analysed_graph
from planner.runtime.optimizers.normalize import normalize
from tests.graphs import LEVELS, run_on_ort

SIDE = 256


def info(name: str, *shape: int | str, dtype: int = T.FLOAT):
    return h.make_tensor_value_info(name, dtype, shape)


def embedding_gradient(
    folder: Path,
    *,
    weight_is_input: bool = True,
    side: int = SIDE,
    dims: dict[str, int] | None = None,
) -> LoadedModel:
    """rows of w, and their gradient scattered into zeros, which folding makes an initializer.

    Args:
        dims: binds "n", the number of rows; None for 7.
    """
    nodes = [
        h.make_node("Gather", ["w", "rows"], ["picked"], name="gather"),
        h.make_node("Tanh", ["picked"], ["act"], name="act"),
        h.make_node("ReduceMean", ["act"], ["loss"], name="loss", keepdims=0),
        h.make_node("Mul", ["act", "act"], ["d"], name="d"),
        h.make_node("ConstantOfShape", ["shape"], ["zeros"], name="zeros"),
        h.make_node("Unsqueeze", ["rows", "last"], ["where"], name="where"),
        h.make_node("ScatterND", ["zeros", "where", "d"], ["w_grad"], name="scatter"),
    ]
    constants = [
        numpy_helper.from_array(np.array([side, side], np.int64), "shape"),
        numpy_helper.from_array(np.array([1], np.int64), "last"),
    ]
    inputs = [info("rows", "n" if dims else 7, dtype=T.INT64)]
    if weight_is_input:
        inputs.append(info("w", side, side))
    else:
        constants.append(numpy_helper.from_array(np.full((side, side), 0.5, np.float32), "w"))
    graph = h.make_graph(
        nodes, "embedding", inputs, [info("loss"), info("w_grad", side, side)], constants
    )
    proto = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return load_model(path, dims=dims)


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


def test_lengths_are_asked_of_fixed_shapes_where_dims_are_open(tmp_path):
    loaded = embedding_gradient(tmp_path, dims={"n": 7})
    folded = normalize(loaded)
    types = value_types(folded, loaded.dims)
    mine = set(loaded.model.graph.initializers)
    result = unfold(folded, types, mine, is_open=True)
    assert len(result.names) == 1
    path = tmp_path / "unfolded.onnx"
    ir.save(result.model, path)
    for rows in (7, 3):
        fed = {**feeds(), "rows": feeds()["rows"][:rows]}
        _, expected = run_on_ort(str(loaded.path), fed, tmp_path)
        _, found = run_on_ort(str(path), fed, tmp_path)
        for name, value in expected.items():
            assert found[name].tobytes() == value.tobytes()


@pytest.mark.parametrize("dims", [None, {"n": 7}])
def test_large_zeros_are_neither_folded_in_memory_nor_written(dims, tmp_path):
    """They take 3.35 GiB, more than a protobuf can have."""
    side = 30_000
    loaded = embedding_gradient(tmp_path, side=side, dims=dims)
    folded = normalize(loaded)
    zeros = folded.graph.initializers["zeros"].const_value
    assert zeros is not None and zeros.nbytes == 4 * side * side
    assert zeros.numpy().strides == (0, 0) and not zeros.numpy()[-1, -1]
    assert [str(v.name) for v in folded.graph.inputs] == ["rows", "w"]
    written, plan = tmp_path / "planned.onnx", tmp_path / "plan.json"
    result = optimize(
        loaded.path,
        budget="85%",
        dims=dims,
        device="cpu",
        hardware="a100-80gb",
        resident="host",
        output=written,
        plan_path=plan,
        verify=False,
        time_limit_s=1.0,
    )
    assert result.plan.planned.peak_bytes <= 0.85 * result.plan.baseline.peak_bytes
    assert result.plan.baseline.peak_bytes > 3 * 4 * side * side
    assert written.stat().st_size < 1 << 20
    apply(loaded.path, plan, output=tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == written.read_bytes()
