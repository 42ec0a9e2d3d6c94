"""Shapes of operators that ONNX Runtime's fusions make, and of planner's own copies."""

from __future__ import annotations

import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from planner.onnxio.load import _infer_symbolic, value_types


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
        *(
            (
                node("FusedMatMul", "x", "w", **dict.fromkeys(flags.split(), 1)),
                [info("x", *x), info("w", *w)],
                (2, 3, 5, 7),
            )
            for flags, x, w in (
                ("transBatchA", (5, 2, 3, 4), (2, 3, 4, 7)),
                ("transA transBatchA transB", (4, 2, 3, 5), (2, 3, 7, 4)),
                ("transA transBatchB", (2, 3, 4, 5), (4, 2, 3, 7)),
                ("transB transBatchB", (2, 3, 5, 4), (7, 2, 3, 4)),
            )
        ),
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


_ELEMENTS = "pkg.onnx_shape_inference.sym_data"
"""Where the inference library notes the elements that it follows."""


def test_elements_of_vectors_of_data_are_not_followed() -> None:
    """Of all gradients in one vector, the library would make a symbol for each element."""
    model = onnx.parser.parse_model("""
    <ir_version: 9, opset_import: ["": 20]>
    g (float[1000000] u, float[9] v, int64[2] s, int64[100] labels)
      => (float[1000009] flat, float[A, B, C, D] folded, int64[200] twice)
    {
      flat = Concat<axis = 0>(u, v)
      shape = Concat<axis = -1>(s, s)
      folded = Reshape(flat, shape)
      twice = Concat<axis = 0>(labels, labels)
    }
    """)
    loaded = ir.from_proto(model)
    found = _infer_symbolic(loaded)
    assert found["flat"] == (ir.DataType.FLOAT, (1_000_009,))
    assert found["twice"] == (ir.DataType.INT64, (200,))
    followed = {v.name for n in loaded.graph for v in n.outputs if _ELEMENTS in v.metadata_props}
    assert followed == {"shape"}
    (reshape,) = (n for n in loaded.graph if n.op_type == "Reshape")
    assert reshape.outputs[0].shape is not None and reshape.outputs[0].shape.rank() == 4
