"""State over several devices: arithmetic, checked against the file's own tensors."""

from __future__ import annotations

import math

import onnx
import pytest

from models import zoo
from planner.pipeline.answer.budgets.sharding import sharded
from planner.pipeline.prepare.prepared import prepare
from planner.request import Request


def size_of(value: onnx.ValueInfoProto) -> int:
    kind = value.type.tensor_type
    shape = [dim.dim_value for dim in kind.shape.dim]
    return math.prod(shape) * onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).itemsize


def test_adam_holds_two_of_each_parameter():
    path = zoo.path("mlp_adamw")
    inputs = onnx.load(path, load_external_data=False).graph.input
    baseline = prepare(Request(model=path), to_rewrite=False).baseline
    rows = {(row.devices, row.zero_stage): row.peak_bytes for row in sharded(baseline)}
    parameters = sum(size_of(v) for v in inputs if v.name.endswith(("weight", "bias")))
    state = sum(size_of(v) for v in inputs if v.name.endswith(("_m", "_v")))
    assert parameters and state == 2 * parameters
    for count in (2, 4, 8):
        rest = 1 - 1 / count
        assert rows[count, 1] == pytest.approx(baseline.peak_bytes - rest * state, abs=1)
        assert rows[count, 3] <= rows[count, 2] <= rows[count, 1]
        least = baseline.peak_bytes - rest * (state + parameters)
        assert rows[count, 3] <= least + 1


def test_plain_gradients_have_no_state():
    baseline = prepare(Request(model=zoo.path("gpt")), to_rewrite=False).baseline
    rows = {(row.devices, row.zero_stage): row.peak_bytes for row in sharded(baseline)}
    assert rows[8, 1] == baseline.peak_bytes
    assert rows[8, 3] < rows[4, 3] < rows[2, 3] < baseline.peak_bytes
