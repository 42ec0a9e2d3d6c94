"""Softmax, LogSoftmax and LayerNormalization as nodes of their own, fused with their neighbours for CUDA.

The programs run on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper as h
from scipy import special

from planner.fuse.operators import OPERATORS, Writer
from planner.targets.cuda import FUSED
from tests.fuse.fake_cuda import Fakes
from tests.fuse.graphs import here, model_of, pointwise
from tests.fuse.test_cuda import HALVES, halved
from tests.fuse.test_groups import COLUMNS, assert_near, fuse, model_of_infos


def around(
    op_type: str, inputs: list[str], outputs: list[str], opset: int = 18, **attributes: object
):
    """A normalization between a product and a sum, over (3, 4, 16), and what it is fed."""
    nodes = [
        h.make_node("Mul", ["x", "y"], ["a"], name="a"),
        h.make_node(op_type, ["a", *inputs], outputs, name="n", **attributes),
        h.make_node("Add", [outputs[0], "y"], ["b"], name="b"),
    ]
    shapes = {name: (3, 4, COLUMNS) for name in ("x", "y", "a", outputs[0])}
    shapes |= {name: (3, 4, 1) for name in outputs[1:] if name} | {"b": (3, 4, COLUMNS)}
    rng = np.random.default_rng(0)
    fixed = {name: rng.standard_normal(COLUMNS).astype("f4") for name in inputs}
    proto = model_of_infos(nodes, shapes, fixed, outputs=["b", *filter(None, outputs[1:])])
    proto.opset_import[0].version = opset
    return proto, {n: 3 * rng.standard_normal(shapes[n]).astype("f4") for n in ("x", "y")}


NORMALIZED: Mapping[str, tuple[Mapping[str, Any], bool]] = {
    "Softmax": ({}, True),
    "LogSoftmax": ({"axis": 2}, True),
    "Softmax over another axis": ({"axis": 1}, False),
    "Softmax before opset 13": ({"opset": 12}, True),
    "Softmax of a matrix before opset 13": ({"opset": 12, "axis": 2}, True),
    "LayerNormalization": ({"epsilon": 0.1}, True),
    "LayerNormalization with two axes": ({"axis": 1}, True),
}


@pytest.mark.parametrize("case", NORMALIZED)
def test_a_normalization_over_last_axes_joins_its_neighbours(case: str):
    attributes, is_fused = NORMALIZED[case]
    op_type = case.split()[0]
    inputs = ["scale", "bias"] if op_type.startswith("Layer") else []
    proto, feeds = around(op_type, inputs, ["n"], **attributes)
    _, made = fuse(proto, exact=False, kernels=FUSED)
    assert (made is not None) == is_fused
    assert fuse(proto, exact=True, kernels=FUSED)[1] is None
    if made is not None:
        assert list(made.members.values()) == [("a", "n", "b")]
        assert_near(proto, ir.to_proto(made.model), feeds)


@pytest.mark.parametrize(
    "outputs", [["n"], ["n", "mean"], ["n", "mean", "rstd"], ["n", "", "rstd"]]
)
@pytest.mark.parametrize("inputs", [["scale"], ["scale", "bias"]])
def test_a_layer_normalization_gives_what_its_gradient_reads(outputs: list[str], inputs: list[str]):
    proto, feeds = around("LayerNormalization", inputs, outputs)
    _, made = fuse(proto, exact=False, kernels=FUSED)
    assert (made is not None) == ("" not in outputs)
    if made is not None:
        assert list(made.members.values()) == [("a", "n", "b")]
        assert_near(proto, ir.to_proto(made.model), feeds)


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
def test_rows_of_special_values_are_normalized_as_in_onnxruntime(op_type: str):
    """Rows that are masked as a whole, infinities, NaNs, and numbers whose exponentials overflow."""
    x = np.zeros((7, 40), np.float32)
    x[0], x[1, :39], x[2, 3], x[3, 4] = -np.inf, -np.inf, np.inf, np.nan
    x[4], x[5, ::2], x[6] = np.finfo("f4").max, 1000, np.linspace(-200, 200, 40)
    (wanted,) = here(model_of([h.make_node(op_type, ["x"], ["out"])], {"x": x}, ["out"]), {"x": x})
    writer = Writer()
    (made,) = OPERATORS[op_type].emit(writer, ["x"], "float", {})
    text = "\n".join(["axes 1", "x = input float", *writer.lines, f"output {made}"])
    (found,) = pointwise(text, {"x": x})
    assert np.isnan(found).any(axis=1).tolist() == [True, False, True, True, *3 * [False]]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-37)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "LayerNormalization"])
def test_rows_of_16_bits_are_normalized_as_floats(fakes: Fakes, op_type: str, dtype: str):
    """They are rounded once, as by a kernel of the whole."""
    number, kind = HALVES[dtype]
    draw = np.random.default_rng(0)
    feeds = {"x": draw.standard_normal((9, 300)).astype(kind).astype("f4")}
    if op_type == "LayerNormalization":
        feeds |= {n: draw.standard_normal(300).astype(kind).astype("f4") for n in ("scale", "bias")}
    writer = Writer()
    made, *_ = OPERATORS[op_type].emit(writer, list(feeds), dtype, {"epsilon": 0.1})
    lines = [f"{name} = input {dtype}" for name in feeds]
    text = "\n".join(["axes 1", *lines, *writer.lines, f"output {made}"])
    (found,) = fakes.run([halved(text, feeds, number, 1)])
    assert not isinstance(found, str), found
    x, *affine = (array.astype("f8") for array in feeds.values())
    gap = x - x.mean(-1, keepdims=True)
    wanted = {"Softmax": special.softmax, "LogSoftmax": special.log_softmax}.get(op_type)
    exact = (
        wanted(x, axis=-1)
        if wanted
        else gap / np.sqrt((gap**2).mean(-1, keepdims=True) + 0.1) * affine[0] + affine[1]
    )
    once = exact.astype("f4").astype(kind).astype("f4")
    assert (found[0] == once).mean() > 0.99
    np.testing.assert_allclose(found[0], once, rtol=1e-2, atol=1e-2)
