"""Training graphs that the installed ONNX Runtime cannot run: named before any planning."""

from __future__ import annotations

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
from tests.process import PLANNER
from tests.training.conftest import Run


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


@pytest.mark.parametrize(
    ("ir_version", "opset", "why"), [(11, 17, "IR version 11"), (8, 22, "operator set 22")]
)
def test_newer_artifacts_are_refused(
    training_run: Run, tmp_path: Path, ir_version: int, opset: int, why: str
) -> None:
    model = _model(RELU_GRAD)
    model.ir_version = ir_version
    model.opset_import[0].version = opset
    message = _refusal(training_run, _saved(model, tmp_path))
    assert f"not made by onnxruntime-training 1.19.2 ({why}" in message


def test_older_artifacts_are_refused(training_run: Run, tmp_path: Path) -> None:
    buffer = "w_grad.accumulation.buffer"
    old = _node("InPlaceAccumulator", [buffer, "x"], ["y"], "accumulate")
    path = _saved(_model(old, inputs=("x", buffer)), tmp_path)
    message = _refusal(training_run, path)
    assert "node 'accumulate' (InPlaceAccumulator) is of an onnxruntime-training older" in message


def test_copies_are_refused_where_they_have_no_kernel(training_run: Run, tmp_path: Path) -> None:
    path = _saved(_model(RELU_GRAD), tmp_path)
    message = _refusal(training_run, path, "--swap", "only", status=2)
    assert "CPU provider has no kernel for copies to the host" in message


def test_an_operator_that_the_build_lacks_is_named(training_run: Run, tmp_path: Path) -> None:
    path = _saved(_model(_node("Frobnicate", ["x"], ["y"], "odd")), tmp_path)
    assert "does not know the operator com.microsoft:Frobnicate" in _refusal(training_run, path)


def _refusal(training_run: Run, path: Path, *more: str, status: int = 3) -> str:
    """What `planner optimize` says in the training environment, in one line."""
    output = path.with_name("out.onnx")
    line = ["optimize", path, "--budget", "50%", "-o", output, *more]
    done = training_run(*PLANNER, *line, check=False)
    assert done.returncode == status
    assert not output.exists()
    return " ".join(done.stderr.split())


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
