"""Placement by the table of kernels and ONNX Runtime's rule for computations on shapes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from planner.onnxio.load import ValueType, value_types
from planner.runtime.device.predict.assumed import assumed_placement, host_inputs, host_outputs
from planner.runtime.device.predict.table import kernel_table
from planner.targets import Target, devices, target_named
from tests.runtime.support import constant, model_of, op, tensor

I64 = ir.DataType.INT64


def _typed(name: str, dtype: ir.DataType, *shape: int) -> ir.Value:
    return ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))


def _node(
    name: str, op_type: str, dtype: ir.DataType, *inputs: ir.Value | None, **given
) -> ir.Node:
    node = ir.node(op_type, list(inputs), given, name=name)
    node.outputs[0].name, node.outputs[0].type = f"{name}:out", ir.TensorType(dtype)
    node.outputs[0].shape = ir.Shape((2,))
    return node


def _place(nodes: list[ir.Node], *, provider: str = "cuda", initializers=(), opset: int = 20):
    """Placement of the nodes; values that no node makes are graph inputs or `initializers`."""
    values = {id(v): v for n in nodes for v in (*n.inputs, *n.outputs) if v is not None}
    inputs = [v for v in values.values() if v.producer() is None and v not in initializers]
    model = model_of(inputs, [nodes[-1].outputs[0]], nodes, list(initializers))
    model.graph.opset_imports[""] = opset
    types = {
        str(v.name): ValueType(dtype=v.dtype, shape=tuple(v.shape or ()))  # type: ignore[arg-type]
        for v in values.values()
    }
    return assumed_placement(model, types, target_named(provider))


def test_a_node_goes_to_the_device_where_a_kernel_takes_its_types() -> None:
    def placed(op_type: str, dtype: ir.DataType, provider: str) -> bool:
        return _place([_node("n", op_type, dtype, _typed("x", dtype, 2))], provider=provider)["n"]

    assert placed("Relu", ir.DataType.FLOAT16, "cuda")
    assert placed("Relu", ir.DataType.DOUBLE, "cuda")
    assert not placed("Relu", ir.DataType.DOUBLE, "webgpu")
    assert not placed("Det", ir.DataType.DOUBLE, "cuda")


def test_a_kernel_without_a_last_version_is_not_taken_for_a_later_operator() -> None:
    table = kernel_table(target_named("cuda"))
    assert [k.first for k in table.serving("ReduceMax", "", 18)] == [18]
    assert not table.serving("ReduceMax", "", 20)  # changed in 20; the kernel says 18 and on
    assert [k.first for k in table.serving("Relu", "", 20)] == [14]  # last changed in 14


def test_a_small_computation_on_a_shape_goes_to_the_cpu() -> None:
    x = _typed("x", ir.DataType.FLOAT, 2, 3)
    shape = _node("shape", "Shape", I64, x)
    first = _node("first", "Gather", I64, shape.outputs[0], two := _int("two", 1))
    twice = _node("twice", "Mul", I64, first.outputs[0], two)
    placed = _place([shape, first, twice], initializers=[two])
    assert placed == {"shape": True, "first": False, "twice": False}


def _int(name: str, count: int) -> ir.Value:
    value = constant(name, np.ones(count, np.int64))
    value.shape, value.type = ir.Shape((count,)), ir.TensorType(I64)
    return value


def test_what_reads_a_value_of_the_device_too_stays_there() -> None:
    x = _typed("x", ir.DataType.FLOAT, 2)
    shape = _node("shape", "Shape", I64, x)
    cast = _node("cast", "Cast", I64, x, to=7)
    both = _node("both", "Add", I64, shape.outputs[0], cast.outputs[0])
    assert _place([shape, cast, both])["both"]


@pytest.mark.parametrize(("count", "stays"), [(100, False), (101, True)])
def test_an_initializer_of_more_than_100_elements_keeps_its_reader_on_the_device(
    count: int, stays: bool
) -> None:
    shape = _node("shape", "Shape", I64, _typed("x", ir.DataType.FLOAT, 2))
    add = _node("add", "Add", I64, shape.outputs[0], w := _int("w", count))
    assert _place([shape, add], initializers=[w])["add"] is stays


@pytest.mark.parametrize(
    ("dtype", "stays"),
    [
        (ir.DataType.FLOAT16, True),
        (ir.DataType.BFLOAT16, True),
        (ir.DataType.FLOAT, False),
        (ir.DataType.INT64, False),
    ],
)
def test_types_of_16_bits_keep_their_reader_on_the_device(dtype: ir.DataType, stays: bool) -> None:
    out = _node("out", "MemcpyToHost", dtype, _typed("x", dtype, 2))
    add = _node("add", "Mul", dtype, out.outputs[0], _typed("y", dtype, 2))
    assert _place([out, add])["add"] is stays


def test_an_input_that_the_kernel_wants_on_the_host_keeps_its_reader_on_the_device() -> None:
    x = _typed("x", ir.DataType.FLOAT, 2)
    shape = _node("shape", "Shape", I64, x)
    reshape = _node("reshape", "Reshape", ir.DataType.FLOAT, x, shape.outputs[0])
    zeros = _node("zeros", "ConstantOfShape", ir.DataType.FLOAT, shape.outputs[0])
    placed = _place([shape, reshape, zeros], opset=13)
    assert placed["reshape"] and placed["zeros"]


def test_readers_of_a_node_without_a_kernel_follow_it_only_from_a_shape() -> None:
    x = _typed("x", ir.DataType.FLOAT, 2, 2)
    det = _node("det", "Det", ir.DataType.FLOAT, x)
    assert _place([det, _node("neg", "Neg", ir.DataType.FLOAT, det.outputs[0])])["neg"]
    shape = _node("shape", "Shape", I64, _typed("y", ir.DataType.FLOAT, 2, 2))
    seen = _node("seen", "StringNormalizer", ir.DataType.FLOAT, shape.outputs[0])
    follows = _place([shape, seen, _node("neg", "Neg", ir.DataType.FLOAT, seen.outputs[0])])
    assert follows == {"shape": True, "seen": False, "neg": False}


def test_what_cuda_declines() -> None:
    def placed(op_type: str, inputs: int, **given) -> bool:
        read = [_typed(f"x{k}", ir.DataType.FLOAT, 1, 1, 4, 4) for k in range(inputs)]
        return _place([_node("n", op_type, ir.DataType.FLOAT, *read, **given)])["n"]

    assert placed("ConvTranspose", 2, pads=[0, 1, 0, 1])
    assert not placed("ConvTranspose", 2, pads=[0, 0, 1, 1])
    assert not placed("ConvTranspose", 2, auto_pad="SAME_UPPER")
    assert placed("ArgMax", 1)
    assert not placed("ArgMax", 1, select_last_index=1)
    assert placed("LSTM", 3, hidden_size=4)
    assert placed("LSTM", 3, hidden_size=4, activations=["Sigmoid", "Tanh", "Tanh"])
    assert not placed("LSTM", 3, hidden_size=4, activations=["Relu", "Tanh", "Tanh"])
    assert not placed("LSTM", 3, hidden_size=4, clip=1.0)
    assert placed("GRU", 3, hidden_size=4, linear_before_reset=1)
    assert not placed("GRU", 3, hidden_size=4, linear_before_reset=0)


@pytest.mark.parametrize("target", devices(), ids=lambda target: target.name)
def test_host_memory_of_kernels(target: Target) -> None:
    assert host_inputs("Reshape", "", 20, target) == (1,)
    assert host_inputs("Slice", "ai.onnx", 20, target) == (1, 2, 3, 4)
    assert host_inputs("MatMul", "", 20, target) == ()
    assert host_inputs("MemcpyFromHost", "", 20, target) == (0,)
    assert host_outputs("Shape", "", 20, target) == (0,)
    assert host_outputs("MemcpyToHost", "", 20, target) == (0,)
    assert host_outputs("Reshape", "", 20, target) == ()


def test_a_mlp_is_placed_whole() -> None:
    x, w = tensor("x", 2, 4), constant("w", np.ones((4, 4), np.float32))
    a = op("a", "MatMul", x, w, shape=(2, 4))
    b = op("b", "Relu", a.outputs[0], shape=(2, 4))
    model = ir.from_proto(ir.to_proto(model_of([x], [b.outputs[0]], [a, b], [w])))
    for target in devices():
        placed = assumed_placement(model, value_types(model, {}), target)
        assert placed == {"a": True, "b": True}
