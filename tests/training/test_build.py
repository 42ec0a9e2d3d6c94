"""Training graphs that the installed ONNX Runtime cannot run: named before any planning."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from planner.cli.main import main
from planner.errors import ModelError
from planner.graph.build import build_graph
from planner.onnxio.load import load_model, value_types
from planner.pipeline.prepare.prepared import prepare
from planner.request import Request
from planner.runtime.build import check_build
from tests.training.conftest import Run

EACH = """
import contextlib, io, json, sys
from planner.cli.main import main
found = []
for arguments in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        status = main(arguments)
    found.append([status, " ".join(said.getvalue().split())])
print(json.dumps(found))
"""
"""planner on one command line after the other: status, and what it says, in one line."""


def _model(
    *nodes: onnx.NodeProto, inputs: tuple[str, ...] = ("x",), outputs: tuple[str, ...] = ("y",)
) -> onnx.ModelProto:
    graph = h.make_graph(
        list(nodes),
        "training",
        [h.make_tensor_value_info(n, T.FLOAT, [4, 4]) for n in inputs],
        [h.make_tensor_value_info(n, T.FLOAT, [4, 4]) for n in outputs],
    )
    imports = [h.make_opsetid("", 17), h.make_opsetid("com.microsoft", 1)]
    return h.make_model(graph, opset_imports=imports, ir_version=8)


def _node(op_type: str, inputs: list[str], outputs: list[str], name: str) -> onnx.NodeProto:
    return h.make_node(op_type, inputs, outputs, name=name, domain="com.microsoft")


RELU_GRAD = _node("ReluGrad", ["x", "x"], ["y"], "back")


def _saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "training_model.onnx"
    onnx.save(model, path)
    return path


def _prepare(path: Path, *, ort_optimize: bool) -> None:
    prepare(Request(model=path, ort_optimize=ort_optimize))


@pytest.mark.parametrize("ort_optimize", [True, False])
def test_a_stock_build_has_no_gradient_kernels(tmp_path: Path, ort_optimize: bool) -> None:
    path = _saved(_model(RELU_GRAD), tmp_path)
    with pytest.raises(ModelError, match="has no kernels for ReluGrad") as error:
        _prepare(path, ort_optimize=ort_optimize)
    assert "'back'" in str(error.value)
    assert "install onnxruntime-training-cpu==1.19.2" in str(error.value)


def test_the_command_line_says_so_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _saved(_model(RELU_GRAD), tmp_path)
    output = tmp_path / "out.onnx"
    assert main(["optimize", str(path), "--budget", "60%", "-o", str(output)]) == 3
    assert "no kernels for ReluGrad" in " ".join(capsys.readouterr().err.split())
    assert not output.exists()


def test_a_graph_of_ortmodule_is_named(tmp_path: Path) -> None:
    path = _saved(_model(_node("YieldOp", ["x"], ["y"], "yield")), tmp_path)
    with pytest.raises(ModelError, match=r"'yield' .YieldOp. makes this a graph of ORTModule"):
        check_build(load_model(path).model)


def _newer(ir_version: int, opset: int) -> onnx.ModelProto:
    model = _model(RELU_GRAD)
    model.ir_version = ir_version
    model.opset_import[0].version = opset
    return model


BUFFER = "w_grad.accumulation.buffer"
OLD = _node("InPlaceAccumulator", [BUFFER, "x"], ["y"], "accumulate")
NEWER = "not made by onnxruntime-training 1.19.2"
REFUSED = (
    (_newer(11, 17), (), 3, f"{NEWER} (IR version 11"),
    (_newer(8, 22), (), 3, f"{NEWER} (operator set 22"),
    (
        _model(OLD, inputs=("x", BUFFER)),
        (),
        3,
        "node 'accumulate' (InPlaceAccumulator) is of an onnxruntime-training older",
    ),
    (
        _model(RELU_GRAD),
        ("--swap", "only"),
        2,
        "CPU provider has no kernel for copies to the host",
    ),
    (
        _model(_node("Frobnicate", ["x"], ["y"], "odd")),
        (),
        3,
        "does not know the operator com.microsoft:Frobnicate",
    ),
)
"""Models of another age, copies without a kernel, an unknown operator: options, status, what is said."""


def test_what_the_build_cannot_run_is_refused_by_name(training_run: Run, tmp_path: Path) -> None:
    output = tmp_path / "out.onnx"
    lines = []
    for number, (model, options, _, _) in enumerate(REFUSED):
        path = tmp_path / f"{number}.onnx"
        onnx.save(model, path)
        lines.append(["optimize", str(path), "--budget", "50%", "-o", str(output), *options])
    done = training_run("-c", EACH, json.dumps(lines))
    answers = json.loads(done.stdout.splitlines()[-1])
    for (_, _, status, said), (found, message) in zip(REFUSED, answers, strict=True):
        assert found == status and said in message
    assert not output.exists()


def test_a_buffer_with_another_reader_is_refused(tmp_path: Path) -> None:
    nodes = (
        h.make_node("Neg", ["x"], ["g"], name="gradient"),
        _node("InPlaceAccumulatorV2", ["b", "g"], ["flag"], "accumulate"),
        h.make_node("Abs", ["b"], ["y"], name="reader"),
    )
    model = _model(*nodes, inputs=("x", "b"))
    model.graph.output.append(h.make_tensor_value_info("flag", T.BOOL, [1]))
    loaded = load_model(_saved(model, tmp_path))
    with pytest.raises(ModelError, match=r"'b' is written over by node 'accumulate'.*'reader'"):
        build_graph(loaded.model, value_types(loaded.model, {}))
