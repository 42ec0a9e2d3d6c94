"""Gradients of kernels, written as a product for each place, are found, and nothing that is like them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from planner import api
from planner.fuse.convolutions import Convolved, convolutions_of
from planner.fuse.rewrite import with_fusion
from planner.graph.schedule import default_order
from planner.onnxio.load import read_model
from planner.pipeline.prepare.graphs import analysed_graph
from planner.targets.target import FusedKernels

SAMPLES, CHANNELS, FILTERS, SIZE = 2, 3, 5, 60


def step(
    path: Path, *, kernel: int = 3, stride: int = 1, dilation: int = 1, pad: int = 1
) -> onnx.ModelProto:
    """The gradient of a convolution's kernel in the form of `conv_gradients.by_places`, in a file."""
    covered = dilation * (kernel - 1) + 1
    size = (SIZE + 2 * pad - covered) // stride + 1
    made: list[onnx.TensorProto] = [numpy_helper.from_array(np.float32(0), "zero")]

    def ints(name: str, *numbers: int) -> str:
        made.append(numpy_helper.from_array(np.array(numbers, np.int64), name))
        return name

    widths, space = ints("widths", 0, 0, pad, pad, 0, 0, pad, pad), ints("space", 2, 3)
    nodes = [
        helper.make_node("Transpose", ["g"], ["g_t"], "small", perm=[1, 0, 2, 3]),
        helper.make_node("Reshape", ["g_t", ints("filters", FILTERS, -1)], ["left"], "left"),
        helper.make_node("Pad", ["x", widths, "zero"], ["padded"], "pad"),
        helper.make_node("Transpose", ["padded"], ["x_t"], "large", perm=[1, 0, 2, 3]),
    ]
    strides, channels = ints("strides", stride, stride), ints("channels", CHANNELS, -1)
    products: list[str] = []
    for row, column in itertools.product(range(kernel), repeat=2):
        at = f"{row}{column}"
        starts = (row * dilation, column * dilation)
        ends = [start + (size - 1) * stride + 1 for start in starts]
        bounds = [ints(f"starts{at}", *starts), ints(f"ends{at}", *ends), space]
        bounds += [strides] if stride > 1 else []
        nodes += [
            helper.make_node("Slice", ["x_t", *bounds], [f"met{at}"], f"met{at}"),
            helper.make_node("Reshape", [f"met{at}", channels], [f"rows{at}"], f"rows{at}"),
            helper.make_node("Gemm", ["left", f"rows{at}"], [f"by{at}"], f"by{at}", transB=1),
        ]
        products.append(f"by{at}")
    whole = ints("whole", kernel, kernel, FILTERS, CHANNELS)
    nodes += [
        helper.make_node("Concat", products, ["stacked"], "stack", axis=0),
        helper.make_node("Reshape", ["stacked", whole], ["by_place"], "by_place"),
        helper.make_node("Transpose", ["by_place"], ["w_grad"], "last", perm=[2, 3, 0, 1]),
    ]
    return save(path, nodes, size, kernel, made)


def step_as_convolution(
    path: Path, *, kernel: int = 3, stride: int = 1, dilation: int = 1, pad: int = 1
) -> onnx.ModelProto:
    """The same in the form of `conv_gradients.as_convolution`."""
    size = (SIZE + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
    attributes = {"strides": [dilation] * 2, "dilations": [stride] * 2, "pads": [pad] * 4}
    ends = numpy_helper.from_array(np.array([kernel, kernel], np.int64), "ends")
    starts = numpy_helper.from_array(np.array([0, 0], np.int64), "starts")
    space = numpy_helper.from_array(np.array([2, 3], np.int64), "space")
    nodes = [
        helper.make_node("Transpose", ["x"], ["x_t"], "large", perm=[1, 0, 2, 3]),
        helper.make_node("Transpose", ["g"], ["g_t"], "small", perm=[1, 0, 2, 3]),
        helper.make_node("Conv", ["x_t", "g_t"], ["product"], "product", **attributes),
        helper.make_node("Slice", ["product", "starts", "ends", "space"], ["cut"], "cut"),
        helper.make_node("Transpose", ["cut"], ["w_grad"], "last", perm=[1, 0, 2, 3]),
    ]
    made = [starts, ends, space]
    if (SIZE + 2 * pad - stride * (size - 1) - 1) // dilation + 1 == kernel:
        nodes[4].input[0], made = "product", []
        del nodes[3]
    return save(path, nodes, size, kernel, made)


def save(
    path: Path,
    nodes: list[onnx.NodeProto],
    size: int,
    kernel: int,
    made: list[onnx.TensorProto],
) -> onnx.ModelProto:
    shapes = {"x": (SAMPLES, CHANNELS, SIZE, SIZE), "g": (SAMPLES, FILTERS, size, size)}
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    result = (FILTERS, CHANNELS, kernel, kernel)
    outputs = [helper.make_tensor_value_info("w_grad", TensorProto.FLOAT, result)]
    graph = helper.make_graph(nodes, "step", inputs, outputs, made)
    sets = [helper.make_opsetid("", 20)]
    model = helper.make_model(graph, opset_imports=sets, ir_version=10)
    onnx.save(model, path)
    return model


def found_in(path: Path) -> list[Convolved]:
    model = read_model(path)
    return convolutions_of(model, analysed_graph(model, {}))


@pytest.mark.parametrize("form", [step, step_as_convolution])
@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"kernel": 2, "pad": 0},
        {"kernel": 4, "stride": 2, "dilation": 3, "pad": 3},
    ],
)
def test_it_is_found_and_one_node_gives_its_numbers(
    form: Callable[..., onnx.ModelProto], sizes: dict[str, int], tmp_path: Path
):
    path = tmp_path / "step.onnx"
    nodes = form(path, **sizes).graph.node
    (one,) = found_in(path)
    assert len(one.operations) + len(one.prepares) == len(nodes)
    result = api.optimize(
        path,
        budget="100%",
        output=tmp_path / "planned.onnx",
        fuse="auto",
        time_limit_s=1.0,
    )
    assert result.verification is not None and result.verification.passed, result.verification
    kinds = [node.op_type for node in onnx.load(tmp_path / "planned.onnx").graph.node]
    assert kinds == ["KernelGradient"]


def change(model: onnx.ModelProto, what: str) -> None:
    graph = model.graph
    nodes = {node.name: node for node in graph.node}
    constants = {tensor.name: tensor for tensor in graph.initializer}

    def put(name: str, value: object, dtype: type = np.int64) -> None:
        constants[name].CopyFrom(numpy_helper.from_array(np.array(value, dtype), name))

    if what == "a place is met twice":
        put("starts01", [0, 0]), put("ends01", [SIZE, SIZE])
    elif what == "places are in another order":
        nodes["stack"].input[0], nodes["stack"].input[1] = "by01", "by00"
    elif what == "products stand side by side":
        nodes["stack"].attribute[0].i = 1
    elif what == "sums begin with others":
        nodes["by11"].input.append("by00")
    elif what == "a product is doubled":
        nodes["by11"].attribute.append(helper.make_attribute("alpha", 2.0))
    elif what == "a product is of another":
        nodes["by11"].input[1] = "rows00"
    elif what == "a product is an output":
        graph.output.append(helper.make_tensor_value_info("by11", TensorProto.FLOAT, None))
    elif what == "the last axes change places":
        nodes["last"].attribute[0].ints[:] = [3, 2, 0, 1]
        shape = graph.output[0].type.tensor_type.shape
        shape.dim[0].dim_value, shape.dim[1].dim_value = CHANNELS, FILTERS
    elif what.endswith(" are fed"):
        name = {"starts": "starts11", "ends": "ends00", "sizes": "whole"}[what.split()[0]]
        count = numpy_helper.to_array(constants[name]).size
        graph.input.append(helper.make_tensor_value_info(name, TensorProto.INT64, [count]))


@pytest.mark.parametrize(
    "what",
    [
        "a place is met twice",
        "places are in another order",
        "products stand side by side",
        "sums begin with others",
        "a product is doubled",
        "a product is of another",
        "a product is an output",
        "the last axes change places",
        "starts are fed",
        "ends are fed",
        "sizes are fed",
    ],
)
def test_what_is_only_like_it_stays_as_it_is(what: str, tmp_path: Path):
    path = tmp_path / "step.onnx"
    model = step(path)
    change(model, what)
    onnx.save(model, path)
    assert not found_in(path)


def test_the_padding_of_ones_is_not_that_of_zeros(tmp_path: Path):
    path = tmp_path / "step.onnx"
    model = step(path)
    (zero,) = (tensor for tensor in model.graph.initializer if tensor.name == "zero")
    zero.CopyFrom(numpy_helper.from_array(np.float32(1), "zero"))
    onnx.save(model, path)
    (one,) = found_in(path)
    assert "pads 0 0 0 0" in one.window
    assert len(one.operations) + len(one.prepares) == len(model.graph.node) - 1


def fused_kinds(path: Path) -> list[str]:
    model = read_model(path)
    graph = analysed_graph(model, {})
    made = with_fusion(
        model,
        graph,
        default_order(graph),
        only_exact=False,
        kernels=FusedKernels(convolutions=True),
    )
    assert made is not None
    assert sorted(made.order) == sorted(str(node.name) for node in made.model.graph)
    return sorted(node.op_type for node in made.model.graph)


def test_what_others_read_stays_beside_it(tmp_path: Path):
    path = tmp_path / "step.onnx"
    model = step(path)
    model.graph.output.append(helper.make_tensor_value_info("x_t", TensorProto.FLOAT, None))
    onnx.save(model, path)
    assert fused_kinds(path) == ["KernelGradient", "Pad", "Transpose"]


def test_what_two_gradients_share_goes_with_both(tmp_path: Path):
    path = tmp_path / "step.onnx"
    model = step(path)
    own = [node for node in model.graph.node if node.name not in ("pad", "large", "small", "left")]
    for node in own:
        other = model.graph.node.add()
        other.CopyFrom(node)
        other.name = f"{node.name}_2"
        other.output[0] = f"{node.output[0]}_2"
        made = {one.output[0] for one in own}
        other.input[:] = [f"{name}_2" if name in made else name for name in node.input]
    output = model.graph.output.add()
    output.CopyFrom(model.graph.output[0])
    output.name = "w_grad_2"
    onnx.save(model, path)
    assert fused_kinds(path) == ["KernelGradient"] * 2


@pytest.mark.parametrize("what", ["cut elsewhere", "padded more"])
def test_a_convolution_that_is_no_gradient_stays_one(what: str, tmp_path: Path):
    path = tmp_path / "step.onnx"
    model = step_as_convolution(path, stride=2)
    nodes = {node.name: node for node in model.graph.node}
    if what == "cut elsewhere":
        for tensor in model.graph.initializer:
            if tensor.name in ("starts", "ends"):
                numbers = numpy_helper.to_array(tensor) + 1
                tensor.CopyFrom(numpy_helper.from_array(numbers, tensor.name))
    else:
        pads = next(a for a in nodes["product"].attribute if a.name == "pads")
        pads.ints[:] = [1, 1, 3, 3]
    onnx.save(model, path)
    assert not [one for one in found_in(path) if one.op_type == "KernelGradient"]
