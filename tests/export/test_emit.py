"""The graph builder, without PyTorch."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from planner.errors import UsageError
from planner.export.write.emit import ABSENT, Builder, value_info

FLOAT = np.dtype(np.float32)


def started(*inputs: str) -> Builder:
    builder = Builder()
    for name in inputs:
        builder.reserve(name)
    return builder


def kinds(builder: Builder, *results: str) -> list[str]:
    """Operators of the finished graph whose outputs are these values."""
    model = builder.finish("g", [], [value_info(name, FLOAT, [1]) for name in results])
    return [node.op_type for node in model.graph.node]


def test_reshape_of_a_reshape_reads_the_first_tensor() -> None:
    builder = started("x")
    middle = builder.reshape("x", builder.integers([6]), "middle")
    last = builder.reshape(middle, builder.integers([3, 2]), "last")
    assert builder.nodes[-1].input[0] == "x"
    assert kinds(builder, last) == ["Reshape"]


def test_transposes_merge_and_cancel() -> None:
    builder = started("x")
    turned = builder.transpose("x", [1, 2, 0], "turned")
    assert builder.transpose(turned, [2, 0, 1], "back") == "x"
    again = builder.transpose(turned, [1, 2, 0], "again")
    assert list(builder.nodes[-1].attribute[0].ints) == [2, 0, 1]
    assert kinds(builder, again) == ["Transpose"]


def test_merged_transposes_are_numpys() -> None:
    array = np.arange(24).reshape(2, 3, 4)
    builder = started("x")
    first, second = [1, 2, 0], [2, 1, 0]
    twice = builder.transpose(builder.transpose("x", first, "a"), second, "b")
    merged = list(builder.nodes[-1].attribute[0].ints)
    assert builder.nodes[-1].output[0] == twice
    assert np.array_equal(array.transpose(merged), array.transpose(first).transpose(second))


def test_what_reads_no_later_node_goes_ahead_of_one() -> None:
    builder = started("x", "w")
    early = builder.add("Relu", ["x"], "early")
    late = builder.add("Sqrt", ["x"], "late")
    with builder.ahead_of(late):
        mask = builder.add("Sign", [builder.add("Neg", [early], "neg")], "mask")
    with builder.ahead_of(late):
        kept = builder.add("Abs", [late], "kept")  # reads it
    with builder.ahead_of("w"):
        last = builder.add("Exp", ["w"], "last")  # no node made it
    expected = ["early", "neg", "mask", "late", "kept", "last"]
    assert [node.name for node in builder.nodes] == expected
    assert kinds(builder, mask, kept, last) == ["Relu", "Neg", "Sign", "Sqrt", "Abs", "Exp"]


def test_gemm_reads_transposed_operands_in_place() -> None:
    builder = started("x", "y")
    product = builder.gemm("x", builder.transpose("y", [1, 0], "yt"), "product")
    assert list(builder.nodes[-1].input) == ["x", "y"]
    assert {a.name: a.i for a in builder.nodes[-1].attribute} == {"transB": 1}
    assert kinds(builder, product) == ["Gemm"]


def test_equal_constants_are_one_and_unread_ones_go() -> None:
    builder = started("x")
    one = builder.constant(np.array(1, np.float32))
    assert builder.constant(np.array(1, np.float32)) == one
    assert builder.constant(np.array([1], np.float32)) != one
    assert builder.constant(np.array(1, np.int64)) != one
    total = builder.add("Add", ["x", one], "total")
    model = builder.finish("g", [], [value_info(total, FLOAT, [])])
    assert [tensor.name for tensor in model.graph.initializer] == [one]


def test_large_uniform_array_is_not_stored() -> None:
    builder = started()
    zeros = builder.literal(np.zeros((100, 100), np.float32), "zeros")
    assert kinds(builder, zeros) == ["ConstantOfShape"]


def test_dead_nodes_and_optional_results_go() -> None:
    builder = started("x")
    builder.add("Relu", ["x"], "dead")
    kept, _ = builder.add_many("MaxPool", ["x"], ["pool", "indices"], kernel_shape=[2, 2])
    model = builder.finish("g", [], [value_info(kept, FLOAT, [1])])
    assert [list(node.output) for node in model.graph.node] == [["pool"]]


def test_absent_operands_at_the_end_are_left_out() -> None:
    builder = started("x")
    builder.add("Clip", ["x", ABSENT, ABSENT], "clipped")
    assert list(builder.nodes[0].input) == ["x"]


def test_names_are_unique() -> None:
    builder = started("x")
    names = [builder.add("Relu", ["x"], "y") for _ in range(3)]
    assert names == ["y", "y.1", "y.2"]
    with pytest.raises(UsageError, match="taken"):
        builder.reserve("y")


def test_called_value_is_renamed_once_and_copied_after() -> None:
    builder = started("x")
    made = builder.add("Relu", ["x"], "made")
    builder.add("Tanh", [made], "user")
    for name in ("first", "second"):
        assert builder.call(made, name) == name
    builder.call("x", "third")
    outputs = [value_info(name, FLOAT, [1]) for name in ("first", "second", "third", "user")]
    model = builder.finish("g", [value_info("x", FLOAT, [1])], outputs)
    onnx.checker.check_model(model, full_check=True)
    assert [(node.op_type, *node.input, *node.output) for node in model.graph.node] == [
        ("Relu", "x", "first"),
        ("Tanh", "first", "user"),
        ("Identity", "first", "second"),
        ("Identity", "x", "third"),
    ]
