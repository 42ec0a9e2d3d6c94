"""What ONNX Runtime's optimizers hand back computes the same, initializers that they changed included."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from planner.onnxio.load import load_model
from planner.pipeline.answer import optimizing
from planner.pipeline.prepare.prepared import prepare
from planner.request import Request
from planner.runtime.optimizers.normalize import (
    Normalized,
    fused_beside,
    normalize,
    normalize_ahead,
    normalize_for,
    optimize_file,
)
from planner.targets import HOST

ZOO = Path(__file__).parents[2] / "models" / "zoo"


def patches(width: int) -> onnx.ModelProto:
    """A patch embedding: convolution, flatten, transpose, and a table of positions, 4 tokens of
    `width`. The transpose optimizer moves the transposition behind the sum, and permutes the table
    under its own name."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((1, 4, width)).astype(np.float32)
    nodes = [
        h.make_node("Conv", ["x", "w"], ["c"], "conv", kernel_shape=[4, 4], strides=[4, 4]),
        h.make_node("Reshape", ["c", "shape"], ["f"], "flatten"),
        h.make_node("Transpose", ["f"], ["t"], "transpose", perm=[0, 2, 1]),
        h.make_node("Add", ["t", "table"], ["s"], "sum"),
        h.make_node("Transpose", ["s"], ["u"], "back", perm=[0, 2, 1]),
        h.make_node("Exp", ["u"], ["y"], "exp"),
    ]
    graph = h.make_graph(
        nodes,
        "patches",
        [
            h.make_tensor_value_info("x", T.FLOAT, [1, 3, 8, 8]),
            h.make_tensor_value_info("w", T.FLOAT, [width, 3, 4, 4]),
        ],
        [h.make_tensor_value_info("y", T.FLOAT, [1, width, 4])],
        initializer=[
            nh.from_array(np.array([1, width, 4], dtype=np.int64), "shape"),
            nh.from_array(table, "table"),
        ],
    )
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("width", [4, 6])
def test_a_permuted_initializer_is_not_put_back(width: int, tmp_path: Path) -> None:
    source, output = tmp_path / "source.onnx", tmp_path / "normalized.onnx"
    onnx.save(patches(width), source)
    ir.save(normalize(load_model(source)), output)
    rng = np.random.default_rng(1)
    feeds = {
        "x": rng.standard_normal((1, 3, 8, 8)).astype(np.float32),
        "w": rng.standard_normal((width, 3, 4, 4)).astype(np.float32),
    }
    expected, found = (
        ort.InferenceSession(str(p), providers=["CPUExecutionProvider"]).run(None, feeds)[0]
        for p in (source, output)
    )
    assert found.tobytes() == expected.tobytes()
    # the test would be empty if the optimizers left the table alone
    kept = nh.to_array(next(t for t in patches(width).graph.initializer if t.name == "table"))
    now = {t.name: nh.to_array(t) for t in onnx.load(output).graph.initializer}
    assert "table" not in now or now["table"].shape != kept.shape or (now["table"] != kept).any()


def halves() -> onnx.ModelProto:
    """Two slices, of which the first pass makes a Split with sizes of its own; the next one takes the
    equal shape for these."""
    numbers = {"none": [0], "two": [2], "four": [4], "square": [2, 2]}
    nodes = [
        h.make_node("Slice", ["x", "none", "two", "none"], ["a"], "a"),
        h.make_node("Slice", ["x", "two", "four", "none"], ["b"], "b"),
        h.make_node("Mul", ["a", "b"], ["c"], "c"),
        h.make_node("Reshape", ["x", "square"], ["r"], "r"),
        h.make_node("Exp", ["r"], ["e"], "e"),
        h.make_node("Add", ["c", "e"], ["y"], "y"),
    ]
    graph = h.make_graph(
        nodes,
        "halves",
        [h.make_tensor_value_info("x", T.FLOAT, [4])],
        [h.make_tensor_value_info("y", T.FLOAT, [2, 2])],
        initializer=[nh.from_array(np.array(v, np.int64), name) for name, v in numbers.items()],
    )
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9)


def _written(found: Normalized) -> tuple[bytes, bytes | None, tuple[str, ...]]:
    first = None if found.first is None else ir.to_proto(found.first).SerializeToString()
    return ir.to_proto(found.model).SerializeToString(), first, found.executed


@pytest.mark.parametrize(("made", "passes"), [(patches(4), 1), (halves(), 2)])
def test_what_is_found_ahead_is_what_all_passes_leave(
    made: onnx.ModelProto, passes: int, tmp_path: Path
) -> None:
    source, written = tmp_path / "source.onnx", tmp_path / "written.onnx"
    onnx.save(made, source)
    optimize_file(source, written, external=False, level="extended")
    ahead = normalize_ahead(load_model(source), written)
    assert ahead.confirmed is not None
    later = ahead.confirmed()
    assert (later is None) == (passes == 1)
    assert _written(later or ahead) == _written(normalize_for(load_model(source), HOST))


@pytest.mark.parametrize("made", [onnx.load(ZOO / "mlp_adamw.onnx"), halves()])
def test_a_large_model_is_prepared_ahead_as_others_are(
    made: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source.onnx"
    onnx.save(made, source)
    asked = Request(model=source)
    asked = replace(asked, costs=replace(asked.costs, calibrate="never"))
    monkeypatch.setattr(optimizing, "MANY_NODES", 0)
    calls: list[Path] = []
    whole = prepare(asked)
    monkeypatch.setattr(
        "planner.pipeline.target.placing.normalize_ahead",
        lambda loaded, path: calls.append(path) or normalize_ahead(loaded, path),
    )
    with ExitStack() as stack:
        guessed = prepare(asked, on_loaded=optimizing.OriginalAhead(asked, stack).begin)
    assert len(calls) == 1
    assert guessed.graph == whole.graph
    assert guessed.baseline.graph == whole.baseline.graph
    assert (guessed.order, guessed.baseline.order) == (whole.order, whole.baseline.order)
    assert guessed.types == whole.types


@pytest.mark.parametrize("places", [(0, 1), (1, 0)])
def test_a_sum_goes_into_the_convolution_that_comes_first_in_the_file(
    places: tuple[int, int], tmp_path: Path
) -> None:
    image = [1, 16, 8, 8]
    values = {"x": image, "z": image, "v": [16, 16, 3, 3], "w": [16, 16, 3, 3], "u": [16]}
    inputs = [h.make_tensor_value_info(name, T.FLOAT, dims) for name, dims in values.items()]
    nodes = [
        h.make_node("Conv", ["x", "v", "u"], ["a"], "a", pads=[1] * 4),
        h.make_node("Conv", ["z", "w", "u"], ["b"], "b", pads=[1] * 4),
        h.make_node("Add", ["a", "b"], ["s"], "s"),
        h.make_node("Sigmoid", ["s"], ["y"], "y"),
    ]
    outputs = [h.make_tensor_value_info("y", T.FLOAT, image)]
    graph = h.make_graph(nodes, "sum", inputs, outputs)
    opsets = [h.make_opsetid("", 17)]
    onnx.save(h.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "sum.onnx")
    loaded = load_model(tmp_path / "sum.onnx")
    given = ir.from_proto(ir.to_proto(loaded.model))
    others = list(given.graph)
    given.graph.remove(others)
    given.graph.extend(others[place] for place in places)
    given.graph.extend(others[2:])
    optimize_file(loaded.path, tmp_path / "there.onnx", external=False, level="all")

    def fused(model: ir.Model) -> list[list[str]]:
        return [
            [value.name or "" for value in node.inputs if value is not None]
            for node in model.graph
            if node.op_type == "FusedConv"
        ]

    there = fused(ir.load(tmp_path / "there.onnx"))
    assert len(there) == 1
    assert fused(fused_beside(loaded, given).model) == there
