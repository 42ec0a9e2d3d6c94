"""The operator rules against ONNX Runtime's kernels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from planner.graph.rules import (
    alias_pairs,
    inplace_pairs,
    state_inputs,
    view_input,
    written_inputs,
)
from planner.runtime.options import Opening
from planner.runtime.profile import create_session, run_session
from tests.graph.ort_probe import Case, measure

X = np.random.default_rng(0).random((64, 48), dtype=np.float32) + np.float32(0.5)
ROWS = np.tile(np.arange(64)[:, None], (1, 48))
SHAPE = np.array([64, 48])

# one of each kind, and those whose rule was once wrong
CASES = {
    "Reshape": Case(op_type="Reshape", inputs=(X, SHAPE), constants=(1,)),
    "Flatten": Case(op_type="Flatten", inputs=(X,)),
    "Identity": Case(op_type="Identity", inputs=(X,)),
    "Relu": Case(op_type="Relu", inputs=(X,)),
    "LogSoftmax": Case(op_type="LogSoftmax", inputs=(X,)),
    "LogSoftmax of doubles": Case(op_type="LogSoftmax", inputs=(X.astype(np.float64),)),
    "Softmax of doubles": Case(op_type="Softmax", inputs=(X.astype(np.float64),)),
    "Tanh of doubles": Case(op_type="Tanh", inputs=(X.astype(np.float64),)),
    "Cast": Case(op_type="Cast", inputs=(X,), attributes={"to": 6}),
    "ScatterElements": Case(op_type="ScatterElements", inputs=(X, ROWS, X)),
    "Trilu": Case(op_type="Trilu", inputs=(X[:48],)),
    "ScatterND": Case(op_type="ScatterND", inputs=(X, np.arange(64)[:, None], X)),
    "Add": Case(op_type="Add", inputs=(X, X)),
    "Neg": Case(op_type="Neg", inputs=(X,)),
    "Gelu": Case(op_type="Gelu", domain="com.microsoft", inputs=(X,)),
    "Dropout": Case(op_type="Dropout", inputs=(X,), outputs=2),
    "Slice": Case(
        op_type="Slice",
        inputs=(X, np.array([0]), np.array([64]), np.array([0])),
        constants=(1, 2, 3),
    ),
}


def dtype_of(case: Case) -> str:
    first = case.inputs[0]
    assert first is not None
    return ir.DataType.from_numpy(first.dtype).name.lower()


@pytest.mark.parametrize("name", sorted(CASES))
def test_views_and_in_place_kernels_are_what_onnx_runtime_does(name: str) -> None:
    case = CASES[name]
    found = measure(case)
    view = view_input(case.op_type, case.domain)
    assert found.views == (() if view is None else ((view, 0),))
    assert found.inplace == inplace_pairs(case.op_type, case.domain, dtype_of(case))


def test_a_cast_to_another_size_is_not_in_place() -> None:
    # the rule leaves shape and size to its caller
    found = measure(Case(op_type="Cast", inputs=(X,), attributes={"to": 11}))
    assert found.inplace == ()


def test_what_a_kernel_writes_over() -> None:
    accumulator = ("InPlaceAccumulatorV2", "com.microsoft")
    assert alias_pairs(*accumulator) == ((0, 1),)
    assert written_inputs(*accumulator, False) == (0,)
    assert state_inputs(*accumulator, False) == ()  # its sum needs the buffer it is given
    statistics = ("BatchNormInternal", "com.microsoft")
    assert alias_pairs(*statistics) == ((3, 1), (4, 2))
    assert written_inputs(*statistics, False) == state_inputs(*statistics, False) == (3, 4)
    assert written_inputs("MatMul", "", True) == ()


def test_rules_are_of_a_domain() -> None:
    assert alias_pairs("BatchNormInternal", "my.domain") == ()
    assert written_inputs("InPlaceAccumulatorV2", "my.domain", False) == ()
    assert view_input("Reshape", "my.domain") is None
    assert inplace_pairs("Relu", "my.domain", "float") == ()


def test_a_second_training_batch_norm_would_change_the_statistics_of_the_first(
    tmp_path: Path,
) -> None:
    # why it may not be recomputed: the copy's running mean is written over the input mean
    channels = 4
    x, scale, bias, mean, variance = (
        ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT))
        for name, shape in (
            ("x", [2, channels, 3, 3]),
            *((n, [channels]) for n in ("scale", "bias", "mean", "variance")),
        )
    )
    training = {"training_mode": 1, "momentum": 0.5}
    copy, original = (
        ir.node(
            "BatchNormalization",
            [x, scale, bias, mean, variance],
            training,
            num_outputs=3,
            name=name,
        )
        for name in ("copy", "original")
    )
    graph = ir.Graph(
        [x, scale, bias, mean, variance],
        [copy.outputs[0], *original.outputs],
        nodes=[copy, original],
        opset_imports={"": 15},
    )
    for index, value in enumerate([*copy.outputs, *original.outputs]):
        value.name, value.type = f"y{index}", x.type
        value.shape = x.shape if index % 3 == 0 else mean.shape
    path = tmp_path / "m.onnx"
    ir.save(ir.Model(graph, ir_version=10), path)
    ones = np.ones(channels, np.float32)
    feeds = {"x": np.full((2, channels, 3, 3), 8, np.float32)}
    feeds |= {"scale": ones, "bias": 0 * ones, "mean": 0 * ones, "variance": ones.copy()}
    options = Opening(level="disabled", order="priority").options()
    results = run_session(create_session(path, options), feeds)
    assert results[2][0] != 4.0  # 0.5 * 0 + 0.5 * 8, had the copy not run
    assert feeds["mean"][0] != 0.0  # not even the caller's array is safe
