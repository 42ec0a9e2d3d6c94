"""What ONNX Runtime's optimizers hand back computes the same, initializers that they changed included."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from planner.onnxio.load import load_model
from planner.runtime.optimizers.normalize import normalize


def patches(width: int) -> onnx.ModelProto:
    """A patch embedding: convolution, flatten, transpose, and a table of positions, 4 tokens of
    `width`. The transpose optimizer moves the transposition behind the sum, and permutes the table
    under its own name."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((1, 4, width)).astype(np.float32)
    nodes = [
        h.make_node("Conv", ["x", "w"], ["c"], "conv", kernel_shape=[4, 4], strides=[4, 4]),
        h.make_node("Reshape", ["c", "shape"], ["f"], "flatten"),
        h.make_node("Transpose", ["f"], ["t"], "transpose", perm=[0, 2, 1]),
        h.make_node("Add", ["t", "table"], ["s"], "sum"),
        h.make_node("Transpose", ["s"], ["u"], "back", perm=[0, 2, 1]),
        h.make_node("Exp", ["u"], ["y"], "exp"),
    ]
    graph = h.make_graph(
        nodes,
        "patches",
        [
            h.make_tensor_value_info("x", T.FLOAT, [1, 3, 8, 8]),
            h.make_tensor_value_info("w", T.FLOAT, [width, 3, 4, 4]),
        ],
        [h.make_tensor_value_info("y", T.FLOAT, [1, width, 4])],
        initializer=[
            nh.from_array(np.array([1, width, 4], dtype=np.int64), "shape"),
            nh.from_array(table, "table"),
        ],
    )
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("width", [4, 6])
def test_a_permuted_initializer_is_not_put_back(width: int, tmp_path: Path) -> None:
    source, output = tmp_path / "source.onnx", tmp_path / "normalized.onnx"
    onnx.save(patches(width), source)
    ir.save(normalize(load_model(source)), output)
    rng = np.random.default_rng(1)
    feeds = {
        "x": rng.standard_normal((1, 3, 8, 8)).astype(np.float32),
        "w": rng.standard_normal((width, 3, 4, 4)).astype(np.float32),
    }
    expected, found = (
        ort.InferenceSession(str(p), providers=["CPUExecutionProvider"]).run(None, feeds)[0]
        for p in (source, output)
    )
    assert found.tobytes() == expected.tobytes()
    # the test would be empty if the optimizers left the table alone
    kept = nh.to_array(next(t for t in patches(width).graph.initializer if t.name == "table"))
    now = {t.name: nh.to_array(t) for t in onnx.load(output).graph.initializer}
    assert "table" not in now or now["table"].shape != kept.shape or (now["table"] != kept).any()
