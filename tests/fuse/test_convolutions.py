"""planner.fused::DirectConv and KernelGradient against float64, and as a part of `--fuse`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper

from planner import api
from planner.fuse.convolutions import convolutions_of
from planner.onnxio.load import read_model
from planner.pipeline.answer.explain import explain
from planner.pipeline.prepare.graphs import analysed_graph
from tests.fuse.graphs import Array, model_of, session
from tests.native.graphs import child

NAMES = ("strides", "dilations", "pads", "group")


def drawn(random: np.random.Generator) -> tuple[dict[str, Any], dict[str, Array]]:
    """A window, and an image and a kernel that it goes with."""
    two = [random.integers(1, 3, 2).tolist() for _ in range(2)]
    pads = random.integers(0, 4, 4).tolist()
    groups, channels, filters = (int(n) for n in random.integers(1, 5, 3))
    filters = int(random.choice([filters, 19]))  # with a part of a block left over
    size = random.integers(5, 40, 2)
    kernel = [int(random.integers(1, (n - 1) // d + 2)) for n, d in zip(size, two[1], strict=True)]
    samples = int(random.integers(1, 4))
    feeds = {
        "x": random.standard_normal((samples, groups * channels, *size), np.float32),
        "w": random.standard_normal((groups * filters, channels, *kernel), np.float32),
    }
    return dict(zip(NAMES, (*two, pads, groups), strict=True)), feeds


def of_ours(window: dict[str, Any], feeds: dict[str, Array]) -> onnx.ModelProto:
    text = " ".join(f"{k} {' '.join(map(str, np.atleast_1d(v)))}" for k, v in window.items())
    node = helper.make_node("DirectConv", ["x", "w"], ["y"], domain="planner.fused", window=text)
    return model_of([node], feeds, ["y"])


def of_conv(window: dict[str, Any], feeds: dict[str, Array]) -> onnx.ModelProto:
    return model_of([helper.make_node("Conv", ["x", "w"], ["y"], **window)], feeds, ["y"])


def in_float64(window: dict[str, Any], x: Array, w: Array) -> Array:
    """The definition, result by result."""
    (sy, sx), (dy, dx), pads, groups = (window[name] for name in NAMES)
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    of_group, (channels, kh, kw) = w.shape[0] // groups, w.shape[1:]
    rows = (x.shape[2] - dy * (kh - 1) - 1) // sy + 1
    columns = (x.shape[3] - dx * (kw - 1) - 1) // sx + 1
    made = np.zeros((x.shape[0], w.shape[0], rows, columns))
    for f, r, c in np.ndindex(w.shape[0], rows, columns):
        first = f // of_group * channels
        window_ = x[:, first : first + channels, r * sy :: dy, c * sx :: dx][:, :, :kh, :kw]
        made[:, f, r, c] = (window_ * w[f].astype(np.float64)).sum((1, 2, 3))
    return made


@pytest.mark.parametrize("seed", range(32))
def test_random_windows_are_those_of_float64(seed: int):
    window, feeds = drawn(np.random.default_rng(seed))
    if seed % 2:  # depthwise
        window["group"] *= feeds["w"].shape[1]
        feeds["w"] = feeds["w"].reshape(-1, 1, *feeds["w"].shape[2:])[: window["group"]]
    (found,) = session(of_ours(window, feeds)).run(None, feeds)
    wanted = in_float64(window, feeds["x"], feeds["w"])
    terms = feeds["w"][0].size
    assert found.shape == wanted.shape == session(of_conv(window, feeds)).run(None, feeds)[0].shape
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=2e-7 * (4 + terms))
    (again,) = session(of_ours(window, feeds), threads=3).run(None, feeds)
    np.testing.assert_array_equal(found, again)


def gradient_window(window: dict[str, Any], kernel: tuple[int, ...]) -> str:
    given = {name: window[name] for name in ("strides", "dilations", "pads")}
    return " ".join(
        f"{k} {' '.join(map(str, v))}" for k, v in ({**given, "kernel": kernel}).items()
    )


@pytest.mark.parametrize("seed", range(24))
def test_a_random_kernels_gradient_is_that_of_float64(seed: int):
    random = np.random.default_rng(seed)
    window, feeds = drawn(random)
    window["group"] = 1
    x = feeds["x"]
    kernel = (int(random.integers(1, 23)), x.shape[1], *feeds["w"].shape[2:])
    result = in_float64(window, x, np.zeros(kernel)).shape
    given = {"x": x, "g": random.standard_normal(result, np.float32)}
    text = gradient_window(window, kernel[2:])
    node = helper.make_node(
        "KernelGradient", ["x", "g"], ["y"], domain="planner.fused", window=text
    )
    (found,) = session(model_of([node], given, ["y"])).run(None, given)
    # a convolution is linear in its kernel: the gradient of sum(g * conv(x, w)) by each element of w
    (sy, sx), (dy, dx), pads, _ = (window[name] for name in NAMES)
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    wanted = np.zeros(kernel)
    for row, column in np.ndindex(*kernel[2:]):
        met = x[:, :, row * dy :: sy, column * dx :: sx][:, :, : result[2], : result[3]]
        wanted[:, :, row, column] = np.einsum("nfyx,ncyx->fc", given["g"].astype(np.float64), met)
    terms = result[0] * result[2] * result[3]
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7 * (4 + terms))
    (again,) = session(model_of([node], given, ["y"]), threads=3).run(None, given)
    np.testing.assert_array_equal(found, again)


@pytest.mark.parametrize(
    ("image", "kernel", "stride"),
    [
        ((1, 2, 300, 400), (2, 1, 3, 3), 1),
        ((2, 2, 301, 403), (2, 1, 5, 3), 2),
        ((1, 40, 20, 260), (9, 40, 3, 3), 1),
        ((1, 40, 41, 523), (5, 40, 3, 3), 2),
    ],
)
def test_images_that_come_in_strips_and_channels_in_parts(
    image: tuple[int, ...], kernel: tuple[int, ...], stride: int
):
    groups = image[1] // kernel[1]
    window = dict(zip(NAMES, ([stride] * 2, [1, 1], [1, 1, 1, 1], groups), strict=True))
    random = np.random.default_rng(0)
    feeds = {
        "x": random.standard_normal(image, np.float32),
        "w": random.standard_normal(kernel, np.float32),
    }
    (found,) = session(of_ours(window, feeds)).run(None, feeds)
    (wanted,) = session(of_conv(window, feeds)).run(None, feeds)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)


def test_long_sums_are_as_exact_as_a_product_of_matrices():
    random = np.random.default_rng(0)
    given = {name: random.standard_normal((1, 8, 256, 1024), np.float32) for name in ("x", "g")}
    node = helper.make_node(
        "KernelGradient", ["x", "g"], ["y"], domain="planner.fused", window="kernel 1 1"
    )
    (found,) = session(model_of([node], given, ["y"])).run(None, given)
    x, g = (given[name].reshape(8, -1) for name in ("x", "g"))
    wanted = g.astype(np.float64) @ x.astype(np.float64).T
    ours, theirs = (np.abs(made - wanted).max() for made in (found.reshape(8, 8), g @ x.T))
    assert ours <= 2 * theirs


@pytest.mark.parametrize("kernel", [(7, 3, 3, 3), (6, 1, 3, 3), (5, 3, 30, 30)])
def test_a_bias_is_added_in_each_of_the_ways(kernel: tuple[int, ...]):
    random = np.random.default_rng(0)
    groups = 6 if kernel[1] == 1 else 1
    feeds = {
        "x": random.standard_normal((2, groups * kernel[1], 34, 41), np.float32),
        "w": random.standard_normal(kernel, np.float32),
        "b": random.standard_normal(kernel[0], np.float32),
    }
    node = helper.make_node(
        "DirectConv", ["x", "w", "b"], ["y"], domain="planner.fused", window=f"group {groups}"
    )
    (found,) = session(model_of([node], feeds, ["y"])).run(None, feeds)
    window = dict(zip(NAMES, ([1, 1], [1, 1], [0] * 4, groups), strict=True))
    wanted = in_float64(window, feeds["x"], feeds["w"]) + feeds["b"][:, None, None]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)
    feeds["b"] = feeds["b"][:-1]
    with pytest.raises(Exception, match="the bias has not a number for each filter"):
        session(model_of([node], feeds, ["y"])).run(None, feeds)


@pytest.mark.parametrize(
    ("op_type", "window", "said"),
    [
        ("DirectConv", "kernel 3 3", "is no window of this operator"),
        ("KernelGradient", "group 1", "is no window of this operator"),
        ("KernelGradient", "group 2 kernel 3 3", "a kernel's gradient has one group"),
        ("KernelGradient", "kernel 9 9", "the kernel is larger than the image"),
        ("KernelGradient", "kernel 3 2", "the windows and their gradients do not agree"),
    ],
)
def test_a_gradients_window_that_does_not_fit_is_named(op_type: str, window: str, said: str):
    feeds = {"x": np.ones((1, 2, 8, 8), np.float32), "g": np.ones((1, 2, 6, 6), np.float32)}
    node = helper.make_node(op_type, ["x", "g"], ["y"], domain="planner.fused", window=window)
    with pytest.raises(Exception, match=said):
        session(model_of([node], feeds, ["y"])).run(None, feeds)


@pytest.mark.parametrize(
    ("kernel", "groups"), [((6, 2, 21, 21), 2), ((4, 1, 3, 3), 4), ((6, 4, 3, 3), 1)]
)
def test_a_value_that_is_none_reaches_what_reads_it_alone(kernel: tuple[int, ...], groups: int):
    window, feeds = dict(zip(NAMES, ([1, 1], [1, 1], [1, 1, 1, 1], groups), strict=True)), {}
    random = np.random.default_rng(0)
    feeds["x"] = random.standard_normal((1, 4, 21, 21), np.float32)
    feeds["w"] = random.standard_normal(kernel, np.float32)
    feeds["x"][0, 0, 20, 20], feeds["x"][0, 3, 0, 0] = np.nan, np.inf
    (found,) = session(of_ours(window, feeds)).run(None, feeds)
    (wanted,) = session(of_conv(window, feeds)).run(None, feeds)
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(wanted))
    assert 0 < np.isfinite(found).sum() < found.size


@pytest.mark.parametrize(
    "text", ["strides 1", "strides 0 1", "pads 1 1 1 -1", "stride 1 1", "group x"]
)
def test_a_window_that_is_none_is_named_as_the_session_opens(text: str):
    _, feeds = drawn(np.random.default_rng(0))
    node = helper.make_node("DirectConv", ["x", "w"], ["y"], domain="planner.fused", window=text)
    with pytest.raises(Exception, match=f"planner.fused: '{text}' is no window"):
        session(model_of([node], feeds, ["y"]))


@pytest.mark.parametrize(
    ("window", "kernel", "said"),
    [
        ("group 3", (4, 2, 3, 3), "channels and groups do not agree"),
        ("group 1", (4, 4, 9, 9), "the kernel is larger than the image"),
    ],
)
def test_shapes_that_do_not_agree_are_named(window: str, kernel: tuple[int, ...], said: str):
    feeds = {"x": np.ones((1, 4, 8, 8), np.float32), "w": np.ones(kernel, np.float32)}
    node = helper.make_node("DirectConv", ["x", "w"], ["y"], domain="planner.fused", window=window)
    with pytest.raises(Exception, match=said):
        session(model_of([node], feeds, ["y"])).run(None, feeds)


STEP = """
<ir_version: 10, opset_import: ["" : 20]>
step (float[8, 24, 20, 20] x, float[24, 1, 3, 3] w, float[8, 24, 20, 20] g)
  => (float[24, 1, 3, 3] w_grad, float[1, 24, 1, 1] shift_grad)
<int64[4] grouped = {1, 192, 20, 20}, int64[3] axes = {0, 2, 3}, float four = {4.0}>
{
  y = Conv <group = 24, pads = [1, 1, 1, 1]> (x, w)
  below = Less (y, four)
  zero = Sub (g, g)
  gated = Where (below, g, zero)
  mean = ReduceMean (gated, axes)
  centred = Sub (gated, mean)
  shift_grad = ReduceSum (centred, axes)
  large_t = Transpose <perm = [1, 0, 2, 3]> (x)
  large = Reshape (large_t, grouped)
  small = Transpose <perm = [1, 0, 2, 3]> (centred)
  product = Conv <group = 24, kernel_shape = [20, 20], pads = [1, 1, 1, 1]> (large, small)
  w_grad = Transpose <perm = [1, 0, 2, 3]> (product)
}
"""
"""A depthwise convolution's gradient of its kernel, and of a shift that a normalization takes away."""


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("step") / "step.onnx"
    onnx.save(onnx.parser.parse_model(STEP), path)
    return path


def test_depthwise_convolutions_and_gradients_of_kernels_are_found(step: Path):
    model = read_model(step)
    graph = analysed_graph(model, {})
    found = [graph.operations[one.operations[-1]] for one in convolutions_of(model, graph)]
    assert [graph.tensors[op.outputs[0]].name for op in found] == ["y", "product"]


def test_a_plan_with_it_is_verified_and_made_again(step: Path, tmp_path: Path):
    result = api.optimize(
        step,
        budget="100%",
        output=tmp_path / "planned.onnx",
        plan_path=tmp_path / "plan.json",
        fuse="auto",
        calibrate=False,
        time_limit_s=1.0,
    )
    verification = result.verification
    assert verification is not None and verification.passed, verification
    rewritten = onnx.load(tmp_path / "planned.onnx")
    nodes = [n for n in rewritten.graph.node if n.op_type == "DirectConv"]
    window = "strides 1 1 dilations 1 1 pads 1 1 1 1 group 24"
    assert [a.s.decode() for node in nodes for a in node.attribute] == [window] * 2
    assert explain(step, tmp_path / "plan.json", "product").program == window
    api.apply(step, tmp_path / "plan.json", output=tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "planned.onnx").read_bytes()


def test_it_keeps_no_bits_so_that_exact_leaves_it_alone(step: Path, tmp_path: Path):
    api.optimize(
        step, budget="100%", output=tmp_path / "exact.onnx", fuse="exact", time_limit_s=1.0
    )
    kinds = {node.op_type for node in onnx.load(tmp_path / "exact.onnx").graph.node}
    assert "DirectConv" not in kinds


SHORT = """
import resource
import numpy as np
import onnxruntime as ort
from tests.fuse.graphs import session
from tests.fuse.test_convolutions import NAMES, of_ours
window = dict(zip(NAMES, ([1, 1], [1, 1], [0, 0, 0, 0], 8)))
wide = {"x": np.ones((1, 8, 1, 2 << 20), "f4"), "w": np.ones((8, 1, 1, 1), "f4")}
ours = session(of_ours(window, wide), threads=4)
bound = ours.io_binding()
for name, array in wide.items():
    bound.bind_cpu_input(name, array)
bound.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_numpy(np.zeros_like(wide["x"])))
taken = int(open("/proc/self/statm").read().split()[0]) * 4096
soft, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (taken + (4 << 20), hard))  # a task takes 16 MiB
try:
    ours.run_with_iobinding(bound)
except Exception as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
ours.run_with_iobinding(bound)
assert (bound.get_outputs()[0].numpy() == 1).all()
"""


def test_no_memory_for_a_threads_values_is_an_error_of_the_node():
    assert "no memory for the values of a thread" in child(SHORT)
