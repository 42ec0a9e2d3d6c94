"""Files from before IR version 4, which list their weights among the inputs: constants all the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper as h
from onnx import numpy_helper

from planner import optimize
from planner.errors import ModelError
from planner.onnxio.load import load_model


def chain(op_type: str, opset: int) -> onnx.ModelProto:
    """Convolutions whose results are read again, backwards; a part of the last is made of a shape."""
    rng = np.random.default_rng(0)
    held = {f"w{i}": 0.2 * rng.standard_normal((24, 24, 3, 3), np.float32) for i in range(5)}
    nodes = []
    for i, name in enumerate(held):
        window = {"pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}
        nodes.append(h.make_node("Conv", [f"v{i}", name], [f"c{i}"], name=f"conv{i}", **window))
        nodes.append(h.make_node(op_type, [f"c{i}"], [f"v{i + 1}"], name=f"act{i}"))
    for i in reversed(range(5)):
        source = "v5" if i == 4 else f"d{i + 1}"
        nodes.append(h.make_node("Mul", [source, f"v{i}"], [f"d{i}"], name=f"mul{i}"))
    nodes.append(h.make_node("ConstantOfShape", ["size"], ["zeros"], name="zeros"))
    nodes.append(h.make_node("Add", ["d0", "zeros"], ["y"], name="end"))
    held["size"] = np.array([24], np.int64)[:0]
    image = h.make_tensor_value_info("v0", onnx.TensorProto.FLOAT, [2, 24, 16, 16])
    result = h.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 24, 16, 16])
    weights = [numpy_helper.from_array(array, name) for name, array in held.items()]
    listed = [h.make_tensor_value_info(w.name, w.data_type, list(w.dims)) for w in weights]
    graph = h.make_graph(nodes, "g", [image, *listed], [result], weights)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=3)


def test_listed_weights_are_constants_and_the_model_is_planned(tmp_path: Path) -> None:
    path, output = tmp_path / "old.onnx", tmp_path / "planned.onnx"
    onnx.save(chain("Tanh", 9), path)
    result = optimize(path, budget="85%", output=output, time_limit_s=1.0)
    assert result.plan.planned.peak_bytes < result.plan.baseline.peak_bytes
    bits = result.verification and result.verification.default_bits
    assert bits and bits.compared and not bits.differ
    given = onnxruntime.InferenceSession(str(output)).get_inputs()
    assert [value.name for value in given] == ["v0"]


def test_an_input_with_a_default_stays_an_input(tmp_path: Path) -> None:
    """From IR version 4 on, a listed initializer may be overridden."""
    proto = chain("Tanh", 9)
    proto.ir_version = 4
    onnx.save(proto, tmp_path / "new.onnx")
    listed = [value.name for value in load_model(tmp_path / "new.onnx").model.graph.inputs]
    assert listed == ["v0", "w0", "w1", "w2", "w3", "w4", "size"]


def test_an_operator_set_without_kernels_is_named_with_the_way_out(tmp_path: Path) -> None:
    proto = chain("Tanh", 9)
    del proto.graph.node[-2:]
    proto.graph.node.append(h.make_node("AveragePool", ["d0"], ["y"], kernel_shape=[1, 1]))
    proto.opset_import[0].version = 1
    onnx.save(proto, tmp_path / "old.onnx")
    with pytest.raises(ModelError, match=r"before 7: bring the model up .*convert_version"):
        optimize(tmp_path / "old.onnx", budget="85%", output=tmp_path / "m.onnx")
