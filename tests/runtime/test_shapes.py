"""Models without the data of large initializers: what ONNX Runtime is asked with."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from planner.runtime.optimizers.shapes import without_large_initializers


def weighted(*, is_input: bool) -> ir.Model:
    """y = x large + small; the large one is an output too, and maybe an input that may be left out."""
    large = numpy_helper.from_array(np.ones((64, 64), np.float32), "large")
    small = numpy_helper.from_array(np.ones(4, np.float32), "small")
    nodes = [
        h.make_node("MatMul", ["x", "large"], ["product"], "product"),
        h.make_node("ReduceSum", ["small"], ["sum"], "sum", keepdims=0),
        h.make_node("Add", ["product", "sum"], ["y"], "y"),
    ]
    x, y, weight = (h.make_tensor_value_info(n, T.FLOAT, [64, 64]) for n in ("x", "y", "large"))
    inputs = [weight, x] if is_input else [x]
    graph = h.make_graph(nodes, "weighted", inputs, [y, weight], [large, small])
    graph.metadata_props.add(key="of", value="graph")
    proto = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=10)
    proto.producer_name, proto.doc_string = "someone", "a test"
    proto.metadata_props.add(key="of", value="model")
    return ir.from_proto(proto)


def check(*, is_input: bool) -> None:
    model = weighted(is_input=is_input)
    before = ir.to_proto(model)
    light = ir.to_proto(without_large_initializers(model))
    assert ir.to_proto(model) == before, "it is not changed"
    assert [v.name for v in light.graph.input] == (["large", "x"] if is_input else ["x", "large"])
    assert [t.name for t in light.graph.initializer] == ["small"]
    del before.graph.initializer[0], light.graph.input[:], before.graph.input[:]
    del light.graph.value_info[:], before.graph.value_info[:]
    assert light == before, "the rest is as it was"


def test_a_large_initializer_becomes_an_input() -> None:
    check(is_input=False)


def test_one_that_is_an_input_already_stays_in_its_place() -> None:
    check(is_input=True)
