"""Images in blocks of channels (NCHWc): what a session of default options runs is what is planned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper as h
from onnx import numpy_helper

from planner import analyze, apply, optimize, verify
from planner.errors import ModelError, UsageError
from planner.files.structuring import read_json
from planner.onnxio.load import load_model, read_model, value_types
from planner.onnxio.shape_rules.blocked import DOMAIN
from planner.plan.planfile import Plan
from planner.results import OptimizeResult
from planner.runtime.feeds.inputs import make_inputs
from planner.runtime.opened import session_options
from planner.runtime.optimizers import blocked as layout
from planner.runtime.optimizers.normalize import normalize_for, optimize_file
from planner.targets import HOST
from planner.targets.keys import BLOCK_KEY

Level = onnxruntime.GraphOptimizationLevel
LEVELS = (
    Level.ORT_DISABLE_ALL,
    Level.ORT_ENABLE_BASIC,
    Level.ORT_ENABLE_EXTENDED,
    Level.ORT_ENABLE_ALL,
)

pytestmark = pytest.mark.skipif(
    not layout.block_channels(), reason="ONNX Runtime has no blocked layout on this processor"
)


def image(name: str, *dims: int) -> onnx.ValueInfoProto:
    return h.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims)


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    weights: dict[str, np.ndarray] | None = None,
    opset: int = 18,
) -> onnx.ModelProto:
    held = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = h.make_graph(nodes, "g", inputs, outputs, held)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=9)


def pools(op_type: str, opset: int) -> onnx.ModelProto:
    """A chain of pools, which can be recomputed: each level is read again at the end."""
    window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [1, 1]}
    nodes = [h.make_node("Sin", ["x"], ["v0"], name="start")]
    for i in range(6):
        nodes.append(h.make_node(op_type, [f"v{i}"], [f"p{i}"], name=f"pool{i}", **window))
        nodes.append(h.make_node("Tanh", [f"p{i}"], [f"v{i + 1}"], name=f"tanh{i}"))
    nodes.append(h.make_node("Exp", ["v6"], ["d6"], name="turn"))
    for i in reversed(range(6)):
        nodes.append(h.make_node("Mul", [f"d{i + 1}", f"v{i}"], [f"d{i}"], name=f"back{i}"))
    nodes.append(h.make_node("ReduceMean", ["d0"], ["y"], name="end", keepdims=0))
    return model(nodes, [image("x", 2, 32, 16, 16)], [image("y")], opset=opset)


def network(*, channels: int = 24, opset: int = 17) -> onnx.ModelProto:
    """A network for inference, weights constant, whose decoder reads each level of its encoder."""
    rng = np.random.default_rng(0)
    weights: dict[str, np.ndarray] = {}
    nodes: list[onnx.NodeProto] = []

    def conv(source: str, target: str, before: int, after: int) -> None:
        weights[f"{target}_w"] = 0.2 * rng.standard_normal((after, before, 3, 3), np.float32)
        weights[f"{target}_b"] = 0.1 * rng.standard_normal(after, np.float32)
        inputs = [source, f"{target}_w", f"{target}_b"]
        nodes.append(h.make_node("Conv", inputs, [target], name=target, pads=[1, 1, 1, 1]))

    source, before = "x", 3
    for i in range(8):
        conv(source, f"c{i}", before, channels)
        nodes.append(h.make_node("Relu", [f"c{i}"], [f"v{i}"], name=f"relu{i}"))
        source, before = f"v{i}", channels
    for i in reversed(range(8)):
        conv(source, f"e{i}", channels, channels)
        nodes.append(h.make_node("Add", [f"e{i}", f"v{i}"], [f"s{i}"], name=f"skip{i}"))
        nodes.append(h.make_node("Sigmoid", [f"s{i}"], [f"d{i}"], name=f"gate{i}"))
        source = f"d{i}"
    nodes.append(h.make_node("GlobalAveragePool", [source], ["y"], name="head"))
    inputs, outputs = [image("x", 2, 3, 32, 32)], [image("y", 2, channels, 1, 1)]
    return model(nodes, inputs, outputs, weights, opset)


def run(path: Path, level: Level, **more: int) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feeds, _ = make_inputs(path, 0, {}, None)
    return [np.asarray(array) for array in session.run(None, dict(feeds))]


def blocked_nodes(path: Path) -> list[onnx.NodeProto]:
    return [node for node in onnx.load(path).graph.node if node.domain == DOMAIN]


def planned(proto: onnx.ModelProto, folder: Path, budget: str = "70%") -> OptimizeResult:
    """Optimized, verified at every level, with the bits that the original has by default."""
    onnx.save(proto, folder / "m.onnx")
    result = optimize(
        folder / "m.onnx",
        budget=budget,
        output=folder / "planned.onnx",
        plan_path=folder / "plan.json",
        swap="none",
        time_limit_s=1.0,
        verify="thorough",
    )
    found = result.verification
    assert found is not None and found.passed, found
    assert [(check.level, check.equal) for check in found.orders] == [
        ("disabled", True),
        ("extended", True),
        ("all", True),
    ]
    assert all(c.live_bytes == c.predicted_live_bytes for c in found.memory), found.memory
    assert all(output.identical for output in found.outputs)
    wanted = run(folder / "m.onnx", Level.ORT_ENABLE_ALL)
    for level in LEVELS:
        for a, b in zip(wanted, run(folder / "planned.onnx", level), strict=True):
            np.testing.assert_array_equal(a.view(np.int32), b.view(np.int32))
    return result


def test_pools_of_the_same_bits_stay_plain(tmp_path: Path) -> None:
    for op_type, opset in (("MaxPool", 17), ("AveragePool", 22)):
        folder = tmp_path / op_type
        folder.mkdir()
        result = planned(pools(op_type, opset), folder)
        assert not blocked_nodes(folder / "planned.onnx")
        assert result.plan.block_channels == 0
        assert any("plain layout" in line for line in result.plan.assumptions)


def test_averages_of_other_bits_are_planned_in_blocks(tmp_path: Path) -> None:
    result = planned(pools("AveragePool", 17), tmp_path)
    kinds = {node.op_type for node in blocked_nodes(tmp_path / "planned.onnx")}
    assert kinds == {"AveragePool", "ReorderInput", "ReorderOutput"}
    assert result.plan.block_channels == 0  # a file without weights in blocks runs anywhere
    assert "ORT_ENABLE_ALL" in " ".join(result.plan.assumptions)


@pytest.fixture(scope="module", params=[24, 32])
def inference(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A network with constant weights, planned: of 24 channels, 8 of each 32 that are stored are none."""
    folder = tmp_path_factory.mktemp("inference")
    result = planned(network(channels=request.param), folder)
    assert result.plan.block_channels == layout.block_channels()
    yield folder


def test_constant_weights_are_planned_in_blocks(inference: Path) -> None:
    assert {node.op_type for node in blocked_nodes(inference / "planned.onnx")} >= {"Conv"}
    assert "NCHWc" in " ".join(analyze(inference / "m.onnx", time_limit_s=1).assumptions)
    again = apply(inference / "m.onnx", inference / "plan.json", output=inference / "again.onnx")
    assert again.read_bytes() == (inference / "planned.onnx").read_bytes()
    found = verify(
        inference / "m.onnx", inference / "planned.onnx", plan=inference / "plan.json", fast=True
    )
    assert found.passed


def test_weights_in_blocks_of_another_length_are_refused(
    inference: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_path, file = inference / "m.onnx", inference / "planned.onnx"
    session_options(file)
    other = layout.block_channels() // 2
    props = {BLOCK_KEY: str(other)}
    with pytest.raises(UsageError, match=f"blocks of {other} channels.*on this machine"):
        layout.check_block(props, "file")
    plan = read_json(inference / "plan.json", Plan, what="a plan")
    from planner.pipeline.record.rebuild import prepared_for

    foreign = replace(plan, block_channels=other)
    with (
        pytest.raises(UsageError, match="make the plan again on this machine"),
        prepared_for(model_path, foreign),
    ):
        pass


def test_what_is_planned_is_the_same_each_time(tmp_path: Path) -> None:
    """ONNX Runtime names and places the nodes that lay images out again by pointers."""
    nodes, outputs = [], []
    for i in range(4):  # whose images are read in the plain layout, too
        nodes.append(h.make_node("Conv", ["x", f"w{i}"], [f"c{i}"], name=f"conv{i}"))
        nodes.append(h.make_node("Relu", [f"c{i}"], [f"r{i}"], name=f"relu{i}"))
        nodes.append(h.make_node("Sin", [f"c{i}"], [f"s{i}"], name=f"sin{i}"))
        nodes.append(h.make_node("Mul", [f"s{i}", f"r{i}"], [f"y{i}"], name=f"mul{i}"))
        outputs.append(image(f"y{i}", 2, 32, 8, 8))
    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.standard_normal((32, 3, 1, 1), np.float32) for i in range(4)}
    onnx.save(model(nodes, [image("x", 2, 3, 8, 8)], outputs, weights), tmp_path / "m.onnx")
    loaded = load_model(tmp_path / "m.onnx")
    written, found, held = set(), set(), []
    for number in range(8):
        optimize_file(loaded.path, tmp_path / "all.onnx", external=False, level="all")
        nodes = onnx.load(tmp_path / "all.onnx").graph.node
        written.add(tuple((n.name, *n.output) for n in nodes))
        made = normalize_for(loaded, HOST, level="all").model.graph
        found.add(tuple((str(n.name), *(str(v.name) for v in n.outputs)) for n in made))
        held.append(bytearray(5000 * number))  # the next ones lie elsewhere
    assert len(written) > 1, "ONNX Runtime's own result does not differ: settle() serves nothing"
    assert len(found) == 1


def test_a_model_saved_in_blocks_is_planned_as_it_is(tmp_path: Path) -> None:
    onnx.save(network(), tmp_path / "plain.onnx")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "saved.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(
        str(tmp_path / "plain.onnx"), options, providers=["CPUExecutionProvider"]
    )
    result = planned(onnx.load(tmp_path / "saved.onnx"), tmp_path)
    assert result.plan.block_channels == layout.block_channels()


def test_one_file_for_every_target_has_no_blocked_weights(tmp_path: Path) -> None:
    onnx.save(network(), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"blocks of channels.*'c0' and \d+ more.*--device"):
        optimize(tmp_path / "m.onnx", budget="80%", output=tmp_path / "o.onnx", device="any")


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_bits_of_a_pool_are_the_same_where_it_is_said(
    data: st.DataObject,
) -> None:
    """Denormals, signed zeros and, for a maximum, an infinity among the numbers."""
    op_type, opset = data.draw(
        st.sampled_from(
            [("MaxPool", 12), ("MaxPool", 22), ("AveragePool", 19), ("AveragePool", 22)]
        )
    )
    kernel = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    attributes: dict[str, object] = {
        "kernel_shape": list(kernel),
        "strides": list(data.draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))),
        "pads": [data.draw(st.integers(0, (k - 1) // 2)) for k in (*kernel, *kernel)],
    }
    if op_type == "AveragePool":
        attributes["count_include_pad"] = data.draw(st.integers(0, 1))
    else:
        attributes["ceil_mode"] = data.draw(st.integers(0, 1))
    dims = [2, 2 * layout.block_channels(), 7, 9]
    nodes = [h.make_node(op_type, ["x"], ["y"], name="pool", **attributes)]
    shape = h.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    proto = model(nodes, [image("x", *dims)], [shape], opset=opset)
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    x = rng.standard_normal(dims, np.float32)
    large = np.inf if op_type == "MaxPool" else 1e38
    odd = np.array([large, -0.0, 0.0, 1e-40, -1e-40, -3e38], np.float32)
    where = rng.random(dims) < 0.2
    x[where] = rng.choice(odd, int(where.sum()))
    found = []
    for level in (Level.ORT_ENABLE_EXTENDED, Level.ORT_ENABLE_ALL):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = level
        options.log_severity_level = 3
        data_ = proto.SerializeToString()
        session = onnxruntime.InferenceSession(data_, options, providers=["CPUExecutionProvider"])
        found.append(np.asarray(session.run(None, {"x": x})[0]))
    if op_type == "MaxPool":  # of zeros of both signs either is the largest
        found = [array + np.float32(0.0) for array in found]
    np.testing.assert_array_equal(found[0].view(np.int32), found[1].view(np.int32))


@pytest.mark.parametrize("group", [1, 24], ids=["dense", "depthwise"])
def test_sizes_in_blocks_are_those_of_the_run(group: int, tmp_path: Path) -> None:
    """24 channels are padded wherever a block is longer than 8, however they are convolved."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((24, 24 // group, 3, 3), np.float32)}
    nodes = [
        h.make_node("Sin", ["x"], ["s"], name="sin"),
        h.make_node("Conv", ["s", "w"], ["c"], name="conv", group=group),
        h.make_node("Tanh", ["c"], ["y"], name="tanh"),
    ]
    source = tmp_path / "m.onnx"
    onnx.save(model(nodes, [image("x", 1, 24, 9, 9)], [image("y", 1, 24, 7, 7)], weights), source)
    planned_on = tmp_path / "blocked.onnx"
    optimize_file(source, planned_on, external=False, level="all")
    types = value_types(read_model(planned_on), {})
    proto = onnx.load(planned_on)
    names = [name for node in proto.graph.node for name in node.output]
    assert any(node.domain == DOMAIN for node in proto.graph.node)
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = Level.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    found = session.run(names, {"x": np.zeros((1, 24, 9, 9), np.float32)})
    assert {n: np.asarray(a).shape for n, a in zip(names, found, strict=True)} == {
        name: types[name].shape for name in names
    }


def test_images_in_blocks_within_a_branch(tmp_path: Path) -> None:
    """The level ALL lays out what is in bodies, too: what is planned has the same bits."""
    dims = [2, 32, 16, 16]
    weights = 0.1 * np.random.default_rng(0).standard_normal((32, 32, 3, 3), np.float32)
    then = h.make_graph(
        [h.make_node("Conv", ["v3", "W"], ["a"], name="inner", pads=[1, 1, 1, 1])],
        "then",
        [],
        [image("a", *dims)],
        [numpy_helper.from_array(weights, "W")],
    )
    other = h.make_graph([h.make_node("Exp", ["v3"], ["b"])], "else", [], [image("b", *dims)])
    nodes = [h.make_node("Sin", ["x" if i == 0 else f"v{i - 1}"], [f"v{i}"]) for i in range(8)]
    nodes.append(h.make_node("If", ["c"], ["d8"], name="if", then_branch=then, else_branch=other))
    for i in reversed(range(8)):
        nodes.append(h.make_node("Mul", [f"d{i + 1}", f"v{i}"], [f"d{i}"]))
    nodes.append(h.make_node("ReduceMean", ["d0"], ["y"], keepdims=0))
    for node in nodes:
        node.name = node.name or f"n_{node.output[0]}"
    flag = h.make_tensor_value_info("c", onnx.TensorProto.BOOL, [])
    proto = model(nodes, [image("x", *dims), flag], [image("y")], opset=17)
    result = planned(proto, tmp_path, "75%")
    assert result.plan.block_channels == layout.block_channels()
