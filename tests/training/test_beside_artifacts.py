"""Training graphs that planner makes of forward models, beside onnxruntime-training's and PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from models.artifacts.nets import CLASSES, NETS, VOCABULARY, Net
from planner.export.from_onnx.forward import differentiate
from tests.training.conftest import Run

torch = pytest.importorskip("torch")
pytest.importorskip("onnxsim")
f = torch.nn.functional

Arrays = dict[str, np.ndarray]
NEAR = 1e-5
"""Norm of a difference by the norm: float32 sums in another order."""

_GRADIENTS = """
import sys
import numpy as np
import onnxruntime as ort
folder, feeds_path, found_path = sys.argv[1:]
session = ort.InferenceSession(folder + "/training_model.onnx", providers=["CPUExecutionProvider"])
feeds = dict(np.load(feeds_path))
feeds["lazy_reset_grad"] = np.array([True])
for value in session.get_inputs():
    if value.name not in feeds:
        feeds[value.name] = np.zeros(value.shape, np.float32)
names = [value.name for value in session.get_outputs()]
results = dict(zip(names, session.run(None, feeds)))
loss = next(a for n, a in results.items() if n not in feeds and np.ndim(a) == 0)
mark = "_grad.accumulation.buffer"
gradients = {n[: -len(mark)]: a for n, a in feeds.items() if n.endswith(mark)}
np.savez(found_path, loss=loss, **gradients)
"""


def _linear(a: Any, b: Any, c: Any, transB: int = 0) -> Any:
    return a @ (b.T if transB else b) + c


_TORCH: Mapping[str, Callable[..., Any]] = {
    "Add": lambda a, b: a + b,
    "Div": lambda a, b: a / b,
    "Erf": torch.erf,
    "Gather": lambda a, i, axis=0: torch.index_select(a, axis, i.flatten()).reshape(
        (*a.shape[:axis], *i.shape, *a.shape[axis + 1 :])
    ),
    "Gemm": _linear,
    "Identity": lambda a: a,
    "LayerNormalization": lambda a, w, b, axis=-1, epsilon=1e-5: f.layer_norm(
        a, a.shape[axis:], w, b, epsilon
    ),
    "MatMul": lambda a, b: a @ b,
    "Mul": lambda a, b: a * b,
    "Relu": torch.relu,
    "Reshape": lambda a, s: a.reshape(s.tolist()),
    "Softmax": lambda a, axis=-1: torch.softmax(a, axis),
    "Tanh": torch.tanh,
    "Transpose": lambda a, perm: a.permute(perm),
    "Where": torch.where,
}


def in_torch(net: Net, weights: Mapping[str, Any], x: Any) -> Any:
    """What a net's nodes compute, node by node."""
    found: dict[str, Any] = {"x": x}
    for tensor in net.model.graph.initializer:
        found[tensor.name] = torch.from_numpy(numpy_helper.to_array(tensor).copy())
    found.update(weights)
    for node in net.model.graph.node:
        said = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        found[node.output[0]] = _TORCH[node.op_type](*(found[n] for n in node.input), **said)
    return found["output"]


def fed(net: Net) -> Arrays:
    random = np.random.default_rng(0)
    value = net.model.graph.input[0]
    shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    if value.type.tensor_type.elem_type == onnx.TensorProto.INT64:
        x = random.integers(0, VOCABULARY, shape)
    else:
        x = random.standard_normal(shape, np.float32)
    (result,) = net.model.graph.output
    rows, classes = (dim.dim_value for dim in result.type.tensor_type.shape.dim)
    assert classes in (CLASSES, VOCABULARY)
    return {"x": x, "target": random.integers(0, classes, rows)}


def run(graph: Any, feeds: Arrays) -> Arrays:
    session = onnxruntime.InferenceSession(graph.model.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, map(np.asarray, session.run(None, feeds)), strict=True))


def apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Norm of the difference, by the norm."""
    assert one.keys() == other.keys() and one
    off = sum(np.square(np.float64(one[n]) - np.float64(other[n])).sum() for n in one)
    return float((off / sum(np.square(np.float64(other[n])).sum() for n in other)) ** 0.5)


@pytest.mark.parametrize("name", ["encoder", "gpt"])
def test_the_same_loss_gradients_and_steps(
    training_run: Run, artifacts: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    net = NETS[name]()
    net = replace(net, model=onnx.ModelProto.FromString(net.model.SerializeToString()))
    onnx.save(net.model, tmp_path / "forward.onnx")
    feeds = fed(net)

    graph = differentiate(tmp_path / "forward.onnx", loss="cross_entropy", train=net.parameters)
    start = {n: np.array(a) for n, a in graph.parameters.items()}
    mine = run(graph, {**feeds, **start})
    gradients = {n: mine[f"{n}_grad"] for n in start}

    np.savez(tmp_path / "feeds.npz", **start, x=feeds["x"], labels=feeds["target"])
    (tmp_path / "gradients.py").write_text(_GRADIENTS)
    script = (tmp_path / "gradients.py", artifacts(name), tmp_path / "feeds.npz")
    training_run(*script, tmp_path / "theirs.npz")
    theirs = dict(np.load(tmp_path / "theirs.npz"))
    assert np.isclose(mine["loss"], theirs.pop("loss"), rtol=NEAR)
    assert apart(gradients, theirs) < NEAR

    weights = {n: torch.from_numpy(a.copy()).requires_grad_() for n, a in start.items()}
    x, target = (torch.from_numpy(feeds[n]) for n in ("x", "target"))
    loss = f.cross_entropy(in_torch(net, weights, x), target)
    loss.backward()
    assert np.isclose(mine["loss"], loss.item(), rtol=NEAR)
    assert apart(gradients, {n: w.grad for n, w in weights.items()}) < NEAR

    _same_steps(net, tmp_path / "forward.onnx", feeds, weights)


def _same_steps(net: Net, path: Path, feeds: Arrays, weights: Mapping[str, Any]) -> None:
    """Three steps of AdamW in the graph and in PyTorch, each from what the one before left."""
    stepping = differentiate(
        path, loss="cross_entropy", optimizer="adamw", train=net.parameters, check=False
    )
    held = {n: np.array(a) for n, a in stepping.parameters.items()}
    held |= {s.name: np.full(s.shape, s.initial, s.dtype) for s in stepping.state}
    before = {n: w.detach().numpy().copy() for n, w in weights.items()}
    optimizer = torch.optim.AdamW(weights.values(), lr=float(held["lr"]))
    x, target = (torch.from_numpy(feeds[n]) for n in ("x", "target"))
    for step in range(1, 4):
        held["step"] = np.array(step, np.float32)
        results = run(stepping, {**feeds, **held})
        held |= {n: results[f"{n}_new"] for n in held if f"{n}_new" in results}
        optimizer.zero_grad()
        loss = f.cross_entropy(in_torch(net, weights, x), target)
        loss.backward()
        optimizer.step()
        assert np.isclose(results["loss"], loss.item(), rtol=1e-4)
    moved = {n: held[n] - before[n] for n in weights}
    theirs = {n: w.detach().numpy() - before[n] for n, w in weights.items()}
    assert apart(moved, theirs) < 1e-2  # Adam divides gradients that are all rounding by themselves
