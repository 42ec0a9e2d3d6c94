"""Shapes of operators that ONNX Runtime's fusions make, and of planner's own copies."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from planner.onnxio.load import value_types


def info(name: str, *shape: int) -> onnx.ValueInfoProto:
    return h.make_tensor_value_info(name, T.FLOAT, shape)


def node(kind: str, *inputs: str, domain: str = "com.microsoft", **attributes) -> onnx.NodeProto:
    return h.make_node(kind, list(inputs), ["a"], name="a", domain=domain, **attributes)


@pytest.mark.parametrize(
    ("first", "inputs", "shape"),
    [
        (
            node("FusedGemm", "x", "w", "b", activation="Relu", transB=1),
            [info("x", 4, 6), info("w", 5, 6), info("b", 5)],
            (4, 5),
        ),
        (
            node("FusedConv", "x", "w", "b", activation="Relu", pads=[1, 1, 1, 1], strides=[2, 2]),
            [info("x", 2, 3, 8, 8), info("w", 5, 3, 3, 3), info("b", 5)],
            (2, 5, 4, 4),
        ),
        (
            node("FusedConv", "x", "w", "b", "z", activation="Relu"),
            [info("x", 2, 3, 8, 8), info("w", 5, 3, 1, 1), info("b", 5), info("z", 2, 5, 8, 8)],
            (2, 5, 8, 8),
        ),
        (node("FusedMatMul", "x", "w", transB=1), [info("x", 4, 6), info("w", 5, 6)], (4, 5)),
        (node("Gelu", "x"), [info("x", 4, 6)], (4, 6)),
        (node("MemcpyToHost", "x", domain=""), [info("x", 4, 6)], (4, 6)),
        (node("MemcpyFromHost", "x", domain=""), [info("x", 4, 6)], (4, 6)),
    ],
    ids=lambda value: value.op_type if isinstance(value, onnx.NodeProto) else "",
)
def test_shape(first, inputs, shape):
    last = h.make_node("Neg", ["a"], ["y"], name="y")  # needs the shape of what it reads
    imports = [h.make_opsetid("", 18), h.make_opsetid("com.microsoft", 1)]
    graph = h.make_graph([first, last], "fused", inputs, [info("y", *shape)])
    types = value_types(ir.from_proto(h.make_model(graph, opset_imports=imports)), {})
    for name in ("a", "y"):
        assert types[name].shape == shape
        assert types[name].dtype is ir.DataType.FLOAT
