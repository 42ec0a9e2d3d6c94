"""Inference graphs, plain and as ONNX Runtime's optimizers save them: loaded, planned, run."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from onnx import helper as h
from torch import Tensor, nn

from models.nets import GPT, BERTClassifier
from planner import optimize
from planner.results import OptimizeResult
from planner.runtime.feeds.inputs import make_inputs

Level = onnxruntime.GraphOptimizationLevel


class SuperResolution(nn.Module):
    """Residual blocks with one long skip (as EDSR: Lim et al., 2017): the skip can be recomputed."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(width, width, 3, padding=1),
            )
            for _ in range(3)
        )
        self.tail = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = skip = self.head(x)
        for block in self.blocks:
            y = y + block(y)
        return self.tail(y + skip)


def transformer(kind: type[nn.Module]) -> nn.Module:
    return kind(vocabulary=50, positions=128, width=32, heads=2, layers=2)


def exported(module: nn.Module, example: Tensor, path: Path, *, weights: bool = True) -> Path:
    """Through PyTorch's own exporter. The operator set is from before LayerNormalization and Gelu,
    so that fusions make them."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(),
            (example,),
            str(path),
            dynamo=False,
            opset_version=14,
            export_params=weights,
            keep_initializers_as_inputs=not weights,
        )
    return path


def as_saved(path: Path, level: Level) -> Path:
    """The model as a session of this level writes it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = level
    target = path.with_name(f"{path.stem}.saved.onnx")
    options.optimized_model_filepath = str(target)
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return target


def outputs(path: Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return [np.asarray(array) for array in session.run(None, feeds)]


def check(result: OptimizeResult, path: Path, *, rounding: float = 0.0) -> None:
    """The plan was verified, changes something, and leaves the numbers as they were."""
    assert result.verification is not None and result.verification.passed
    assert result.plan.planned.peak_bytes < result.plan.baseline.peak_bytes
    feeds, _ = make_inputs(path)
    assert result.output_path is not None
    for a, b in zip(outputs(path, feeds), outputs(result.output_path, feeds), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=rounding * float(np.abs(a).max()))


FUSED = {
    "bert": {"FusedGemm", "FusedMatMul", "Gelu", "SkipLayerNormalization"},
    "gpt": {"FusedMatMul", "Gelu", "LayerNormalization", "SkipLayerNormalization"},
}
CASES = {"bert": (BERTClassifier, "88%"), "gpt": (GPT, "95%")}


@pytest.mark.parametrize(
    ("name", "saved"), [("gpt", False), ("bert", True)], ids=["gpt-plain", "bert-saved"]
)
def test_transformer(name: str, saved: bool, tmp_path: Path) -> None:
    kind, budget = CASES[name]
    path = exported(transformer(kind), torch.randint(0, 50, (8, 128)), tmp_path / "m.onnx")
    if saved:
        path = as_saved(path, Level.ORT_ENABLE_EXTENDED)
        found = {node.op_type for node in onnx.load(path).graph.node}
        assert found >= FUSED[name], found
    result = optimize(
        path,
        budget=budget,
        swap="auto",
        output=tmp_path / "planned.onnx",
        time_limit_s=1,
    )
    check(result, path)


def contrib_chain() -> onnx.ModelProto:
    """Fused operators as ONNX Runtime's optimizers write them, each read again on the way back."""
    generator = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        values = generator.standard_normal(shape, np.float32) / np.float32(6)
        return onnx.numpy_helper.from_array(values, name)

    def fused(kind: str, inputs: list[str], output: str, **attributes: int) -> onnx.NodeProto:
        return h.make_node(
            kind, inputs, [output], name=output, domain="com.microsoft", **attributes
        )

    nodes = [
        fused("FastGelu", ["x", "bias"], "a"),
        fused("SkipLayerNormalization", ["a", "x", "scale", "shift"], "b"),
        fused("FusedMatMul", ["b", "w"], "c", transB=1),
        fused("BiasGelu", ["c", "bias"], "d"),
        fused("FastGelu", ["d", "bias"], "e"),
        fused("Gelu", ["e"], "f"),
        fused("QuickGelu", ["f"], "g"),
    ]
    last = "g"
    for value in ("f", "e", "d", "c", "b", "a"):
        result = "y" if value == "a" else f"back_{value}"
        nodes.append(h.make_node("Mul", [last, value], [result], name=result))
        last = result
    shapes = {"w": (32, 32), **dict.fromkeys(("scale", "shift", "bias"), (32,))}
    x, y = (
        h.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (8, 64, 32)) for name in ("x", "y")
    )
    weights = [weight(name, *shape) for name, shape in shapes.items()]
    return h.make_model(
        h.make_graph(nodes, "chain", [x], [y], weights),
        opset_imports=[h.make_opsetid("", 18), h.make_opsetid("com.microsoft", 1)],
        ir_version=9,
    )


def test_contrib_operators_are_sized_and_recomputed(tmp_path: Path) -> None:
    path, planned = tmp_path / "m.onnx", tmp_path / "planned.onnx"
    onnx.save(contrib_chain(), path)
    result = optimize(path, budget="80%", output=planned, swap="none", time_limit_s=1)
    check(result, path)
    copies = {n.op_type for n in onnx.load(planned).graph.node if "__recompute_" in n.name}
    assert copies & {"FastGelu", "BiasGelu", "Gelu", "FusedMatMul"}, copies


@pytest.mark.parametrize("saved", [False, True], ids=["plain", "saved"])
def test_convolutions_with_weights_as_inputs(saved: bool, tmp_path: Path) -> None:
    """At its default level ONNX Runtime takes each sum into the convolution before it: what is planned is
    what that leaves."""
    image = torch.randn(2, 3, 48, 48)
    path = exported(SuperResolution(), image, tmp_path / "m.onnx", weights=False)
    if saved:
        path = as_saved(path, Level.ORT_ENABLE_EXTENDED)
        assert "FusedConv" in {node.op_type for node in onnx.load(path).graph.node}
    result = optimize(
        path,
        budget="95%",
        output=tmp_path / "planned.onnx",
        swap="none",
        time_limit_s=1,
    )
    check(result, path)
