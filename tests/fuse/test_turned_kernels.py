"""planner.fused::TurnedKernel: the kernel of an image's gradient, as the exporter writes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper

from planner import api
from planner.fuse.convolutions import convolutions_of
from planner.onnxio.load import read_model
from planner.pipeline.prepare.graphs import analysed_graph
from tests.fuse.graphs import model_of, session
from tests.fuse.test_kernel_gradients import step


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (40, 33, 3, 3), (5, 17, 2, 7), (3, 4, 5), (6, 7), (4, 0, 3, 3)]
)
def test_it_is_the_kernel_in_reverse_with_filters_and_channels_exchanged(shape: tuple[int, ...]):
    kernel = np.random.default_rng(0).standard_normal(shape, np.float32)
    node = helper.make_node("TurnedKernel", ["w"], ["y"], domain="planner.fused")
    model = model_of([node], {"w": kernel}, ["y"])
    wanted = np.flip(kernel, axis=tuple(range(2, len(shape)))).swapaxes(0, 1)
    for threads in (1, 3):
        (found,) = session(model, threads).run(None, {"w": kernel})
        np.testing.assert_array_equal(found, wanted)


def gradient(path: Path) -> onnx.ModelProto:
    """The gradient of an image by a convolution of it, as the exporter writes it."""
    model = onnx.parser.parse_model(
        """
        <ir_version: 9, opset_import: ["" : 20]>
        g (float[2, 12, 8, 8] g, float[12, 5, 3, 3] w) => (float[2, 5, 8, 8] x_grad)
        <int64[2] starts = {-1, -1}, int64[2] ends = {-9223372036854775807, -9223372036854775807},
         int64[2] axes = {2, 3}, int64[2] steps = {-1, -1}>
        {
          reverse = Slice(w, starts, ends, axes, steps)
          turned = Transpose <perm = [1, 0, 2, 3]> (reverse)
          x_grad = Conv <pads = [1, 1, 1, 1]> (g, turned)
        }
        """
    )
    for node in model.graph.node:
        node.name = node.output[0]
    onnx.save(model, path)
    return model


def found_in(path: Path, *, only_exact: bool = True) -> list[str]:
    model = read_model(path)
    found = convolutions_of(model, analysed_graph(model, {}), only_exact=only_exact)
    return [one.op_type for one in found]


@pytest.mark.parametrize("fuse", ["exact", "auto"])
def test_a_plan_has_one_node_with_the_bits_of_two(fuse: str, tmp_path: Path):
    path, planned = tmp_path / "step.onnx", tmp_path / "planned.onnx"
    gradient(path)
    result = api.optimize(
        path,
        budget="100%",
        output=planned,
        fuse=fuse,  # type: ignore[arg-type]
        time_limit_s=1.0,
    )
    assert result.verification is not None and result.verification.passed, result.verification
    kinds = [node.op_type for node in onnx.load(planned).graph.node]
    assert kinds == ["TurnedKernel", "Conv"]


@pytest.mark.parametrize(
    "what", ["steps", "starts", "ends", "axes", "a fed start", "another order", "a second reader"]
)
def test_what_is_only_like_it_stays_as_it_is(what: str, tmp_path: Path):
    path = tmp_path / "step.onnx"
    model = gradient(path)
    assert found_in(path) == ["TurnedKernel"]
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    others = {"steps": [-1, -2], "starts": [-1, -2], "ends": [-1, -9], "axes": [1, 3]}
    if what in others:
        made = numpy_helper.from_array(np.array(others[what], np.int64), what)
        constants[what].CopyFrom(made)
    elif what == "a fed start":
        graph.input.append(helper.make_tensor_value_info("starts", onnx.TensorProto.INT64, [2]))
    elif what == "another order":
        graph.node[1].attribute[0].ints[:] = [1, 0, 3, 2]
    else:
        graph.output.append(helper.make_tensor_value_info("reverse", onnx.TensorProto.FLOAT, None))
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    onnx.save(model, path)
    assert found_in(path) == []


def test_a_slice_that_another_node_reads_stays(tmp_path: Path):
    """The image of a kernel's gradient may be turned itself: that gradient reads what a Slice made."""
    path = tmp_path / "step.onnx"
    model = step(path)
    reverse = onnx.parser.parse_node("turned = Slice(g, back, before, axes23, back)")
    reverse.name = "turned"
    model.graph.node.insert(0, reverse)
    for name, numbers in (("back", [-1, -1]), ("before", [-(1 << 31)] * 2), ("axes23", [2, 3])):
        model.graph.initializer.append(numpy_helper.from_array(np.array(numbers), name))
    for node in list(model.graph.node)[1:]:
        node.input[:] = ["turned" if name == "g" else name for name in node.input]
    onnx.save(model, path)
    assert found_in(path, only_exact=False) == ["KernelGradient"]
