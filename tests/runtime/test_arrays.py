"""Runs on arrays of types that ONNX Runtime does not exchange with NumPy."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper

from planner.errors import UsageError
from planner.runtime.arrays import run_arrays
from planner.runtime.feeds.inputs import make_inputs

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def model(kind: int) -> ModelProto:
    """Cast `x` to `kind` and back, and hand `y` of that type through."""
    nodes = [
        helper.make_node("Cast", ["x"], ["narrow"], to=kind),
        helper.make_node("Cast", ["narrow"], ["x_again"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["y"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["wide"], ["y_again"], to=kind),
    ]
    dims = ["n", 3]
    given = [("x", TensorProto.FLOAT), ("y", kind)]
    made = [("narrow", kind), ("x_again", TensorProto.FLOAT), ("y_again", kind)]
    graph = helper.make_graph(
        nodes,
        "casts",
        [helper.make_tensor_value_info(name, of, dims) for name, of in given],
        [helper.make_tensor_value_info(name, of, dims) for name, of in made],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def session(kind: int) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(
        model(kind).SerializeToString(), providers=["CPUExecutionProvider"]
    )


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (TensorProto.BFLOAT16, BFLOAT16),
        (TensorProto.FLOAT8E4M3FN, np.dtype(ml_dtypes.float8_e4m3fn)),
        (TensorProto.FLOAT8E5M2, np.dtype(ml_dtypes.float8_e5m2)),
    ],
)
@pytest.mark.parametrize("rows", [0, 5])
def test_each_value_is_what_numpy_rounds_it_to(kind: int, dtype: np.dtype, rows: int) -> None:
    x = np.random.default_rng(1).standard_normal((rows, 3)).astype(np.float32)
    y = (2 * x).astype(dtype)
    narrow, x_again, y_again = run_arrays(session(kind), {"x": x, "y": y})
    assert narrow.dtype == y_again.dtype == dtype and x_again.dtype == np.float32
    assert narrow.tobytes() == x.astype(dtype).tobytes()
    assert x_again.tobytes() == x.astype(dtype).astype(np.float32).tobytes()
    assert y_again.tobytes() == y.tobytes()


def test_scalars_and_arrays_that_are_no_block_of_memory_keep_their_shape() -> None:
    kind = helper.make_tensor_value_info("x", TensorProto.BFLOAT16, None)
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)
    graph = helper.make_graph([node], "cast", [kind], [made])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    run = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    whole = np.arange(12).reshape(3, 4).astype(BFLOAT16)
    for x in (np.array(1.5, BFLOAT16), whole.T, whole[:, ::2]):
        (y,) = run_arrays(run, {"x": x})
        assert y.shape == x.shape and (y == x.astype(np.float32)).all()


def test_results_are_those_that_are_named_in_their_order() -> None:
    x = np.ones((2, 3), np.float32)
    feeds = {"x": x, "y": x.astype(BFLOAT16)}
    found = run_arrays(session(TensorProto.BFLOAT16), feeds, ["y_again", "x_again"])
    assert [array.dtype for array in found] == [BFLOAT16, np.float32]


@pytest.mark.parametrize("dtype", [np.float16, np.int16, np.float32])
def test_an_array_of_another_type_is_refused_and_not_read_as_bytes(dtype: type) -> None:
    feeds = {"x": np.ones((2, 3), np.float32), "y": np.ones((2, 3), dtype)}
    with pytest.raises(TypeError, match=r"input 'y' is an array of .* reads bfloat16"):
        run_arrays(session(TensorProto.BFLOAT16), feeds)


def test_one_float_of_8_bits_is_not_taken_for_another() -> None:
    other = np.ones((2, 3), ml_dtypes.float8_e5m2)
    feeds = {"x": np.ones((2, 3), np.float32), "y": other}
    with pytest.raises(TypeError, match=r"input 'y' is an array of float8_e5m2"):
        run_arrays(session(TensorProto.FLOAT8E4M3FN), feeds)


def test_arrays_of_a_file_are_read_as_the_type_of_the_input(tmp_path: Path) -> None:
    path, feeds = tmp_path / "m.onnx", tmp_path / "feeds.npz"
    path.write_bytes(model(TensorProto.BFLOAT16).SerializeToString())
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    np.savez(feeds, x=x, y=x.astype(BFLOAT16))
    arrays, _ = make_inputs(path, feeds_path=feeds)
    assert arrays["y"].dtype == BFLOAT16
    assert arrays["y"].tobytes() == x.astype(BFLOAT16).tobytes()
    np.savez(feeds, x=x, y=x.astype(np.float16))
    with pytest.raises(UsageError, match="'y' is float16, the model wants bfloat16"):
        make_inputs(path, feeds_path=feeds)


def test_inputs_are_drawn_in_the_type(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model(TensorProto.BFLOAT16).SerializeToString())
    arrays, _ = make_inputs(path, dims={"n": 4})
    assert arrays["y"].dtype == BFLOAT16 and arrays["y"].shape == (4, 3)
    assert np.abs(arrays["y"].astype(np.float32)).sum() > 0
