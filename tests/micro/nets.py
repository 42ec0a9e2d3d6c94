"""Small training graphs with a symbolic batch, written by hand, and steps of them on ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from planner.onnxio.load import load_model
from planner.pipeline.levers.dividing import Divisible, RunModel, divisible, run_model
from planner.request import Request

Arrays = dict[str, npt.NDArray[Any]]
IGNORED = -100
FEATURES, HIDDEN, CLASSES = 8, 16, 4


class Graph:
    """Nodes, inputs, outputs and constants of a graph to be."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.constants: dict[str, npt.NDArray[Any]] = {}

    def op(self, kind: str, *inputs: str, to: str, **attributes: Any) -> str:
        outputs = to.split()
        self.nodes.append(
            h.make_node(kind, inputs, outputs, name=f"{kind}:{outputs[0]}", **attributes)
        )
        return outputs[0]

    def cast(self, source: str, to: str) -> str:
        """A number for each truth value or integer."""
        self.nodes.append(h.make_node("Cast", [source], [to], name=f"Cast:{to}", to=T.FLOAT))
        return to

    def const(self, name: str, value: Any, dtype: str) -> str:
        self.constants[name] = np.asarray(value, dtype)
        return name

    def input(self, name: str, shape: list[Any], kind: int = T.FLOAT) -> str:
        self.inputs.append(h.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, name: str, shape: list[Any] | None = None, kind: int = T.FLOAT) -> None:
        self.outputs.append(h.make_tensor_value_info(name, kind, shape))

    def save(self, path: Path) -> Path:
        weights = [nh.from_array(a, n) for n, a in self.constants.items()]
        graph = h.make_graph(self.nodes, "step", self.inputs, self.outputs, weights)
        model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9)
        model = onnx.shape_inference.infer_shapes(model)
        del model.graph.value_info[:]
        onnx.checker.check_model(model)
        onnx.save(model, path)
        return path


@dataclass(frozen=True, kw_only=True)
class Mlp:
    """A classifier: its loss, gradients, and the update where it is asked for.

    Attributes:
        loss: "mean" and "sum" over samples, "counted" for a mean over targets that are not ignored.
        update: clip the gradients by their norm, and apply AdamW.
        norm: normalize the hidden layer with the statistics of the batch.
        dropout: of the hidden layer.
    """

    loss: str = "counted"
    update: bool = False
    norm: bool = False
    dropout: bool = False
    batch: Any = "batch"
    hidden: int = HIDDEN
    layers: int = 2

    @property
    def shapes(self) -> dict[str, list[int]]:
        """Of the weights, the first layer's first."""
        sides = [FEATURES, *[self.hidden] * (self.layers - 1), CLASSES]
        return {f"w{i}": [sides[i], sides[i + 1]] for i in range(self.layers)}

    def save(self, path: Path) -> Path:
        g = Graph()
        self._forward(g)
        self._loss(g)
        self._backward(g)
        if self.update:
            self._update(g)
        else:
            for w in self.shapes:
                g.output(f"{w}_grad")
        return g.save(path)

    def _forward(self, g: Graph) -> None:
        g.input("x", [self.batch, FEATURES])
        g.input("y", [self.batch], T.INT64)
        for w, shape in self.shapes.items():
            g.input(w, shape)
        last, value = f"w{self.layers - 1}", "x"
        for i in range(self.layers - 2):
            g.op("MatMul", value, f"w{i}", to=f"z{i}")
            value = g.op("Relu", f"z{i}", to=f"a{i + 1}")
        g.op("MatMul", value, f"w{self.layers - 2}", to="z")
        if self.norm:
            for name in ("s", "b"):
                g.const(name, np.ones(self.hidden), "float32")
            g.op("ReduceMean", "z", to="mean_z", axes=[0], keepdims=0)
            g.op("Sub", "z", "mean_z", to="centred")
            g.op("Mul", "centred", "centred", to="squares")
            g.op("ReduceMean", "squares", to="var_z", axes=[0], keepdims=0)
            g.op("BatchNormalization", "z", "s", "b", "mean_z", "var_z", to="normed")
        g.op("Relu", "normed" if self.norm else "z", to="h_all")
        if self.dropout:
            g.const("half", 0.5, "float32")
            g.const("on", True, "bool")
            g.op("Dropout", "h_all", "half", "on", to="h mask")
        else:
            g.op("Identity", "h_all", to="h")
        g.op("MatMul", "h", last, to="logits")
        g.op("LogSoftmax", "logits", to="logp", axis=-1)

    def _loss(self, g: Graph) -> None:
        g.const("ignored", IGNORED, "int64")
        g.const("none", 0, "int64")
        g.const("zero", 0.0, "float32")
        g.const("one", 1.0, "float32")
        g.const("axis1", [1], "int64")
        g.op("Equal", "y", "ignored", to="skip")
        g.op("Where", "skip", "none", "y", to="safe")
        g.op("Unsqueeze", "safe", "axis1", to="index")
        g.op("GatherElements", "logp", "index", to="picked", axis=1)
        g.op("Squeeze", "picked", "axis1", to="scores")
        g.op("Where", "skip", "zero", "scores", to="kept")
        g.op("Not", "skip", to="counted")
        g.cast("counted", "weights")
        if self.loss == "mean":
            g.op("ReduceMean", "kept", to="average", keepdims=0)
            g.op("Neg", "average", to="loss")
            g.op("Size", "y", to="size")
            g.cast("size", "samples")
            g.op("Reciprocal", "samples", to="each")
        else:
            g.op("ReduceSum", "kept", to="total", keepdims=0)
            g.op("Neg", "total", to="loss" if self.loss == "sum" else "negated")
            g.op("Identity", "one", to="each") if self.loss == "sum" else None
        if self.loss == "counted":
            g.op("ReduceSum", "weights", to="count", keepdims=0)
            g.op("Div", "negated", "count", to="loss")
            g.op("Reciprocal", "count", to="each")
        g.output("loss", [])

    def _backward(self, g: Graph) -> None:
        g.const("classes", CLASSES, "int64")
        g.const("levels", [0.0, 1.0], "float32")
        g.op("Exp", "logp", to="p")
        g.op("OneHot", "safe", "classes", "levels", to="hot", axis=-1)
        g.op("Sub", "p", "hot", to="error")
        g.op("Unsqueeze", "weights", "axis1", to="column")
        g.op("Mul", "error", "column", to="masked")
        g.op("Mul", "masked", "each", to="dlogits")
        g.op("Transpose", "h", to="h_t")
        last = f"w{self.layers - 1}"
        g.op("MatMul", "h_t", "dlogits", to=f"{last}_grad")
        g.op("Transpose", last, to="last_t")
        g.op("MatMul", "dlogits", "last_t", to="dh_all")
        if self.dropout:
            g.cast("mask", "kept_h")
            g.const("two", 2.0, "float32")
            g.op("Mul", "kept_h", "two", to="factor")
            g.op("Mul", "dh_all", "factor", to="dh")
        else:
            g.op("Identity", "dh_all", to="dh")
        g.op("Greater", "z", "zero", to="active")
        g.cast("active", "active_f")
        g.op("Mul", "dh", "active_f", to="dz")
        gradient = "dz"
        for i in range(self.layers - 2, -1, -1):
            value = f"a{i}" if i else "x"
            g.op("Transpose", value, to=f"{value}_t")
            g.op("MatMul", f"{value}_t", gradient, to=f"w{i}_grad")
            if i:
                g.op("Transpose", f"w{i}", to=f"w{i}_t")
                g.op("MatMul", gradient, f"w{i}_t", to=f"da{i}")
                g.op("Greater", f"z{i - 1}", "zero", to=f"active{i}")
                g.cast(f"active{i}", f"active{i}_f")
                gradient = g.op("Mul", f"da{i}", f"active{i}_f", to=f"dz{i - 1}")

    def _update(self, g: Graph) -> None:
        for name, value in (
            ("limit", 0.05),
            ("rate", 1e-2),
            ("eps", 1e-8),
            ("b1", 0.9),
            ("b2", 0.999),
        ):
            g.const(name, value, "float32")
        g.const("c1", 0.1, "float32")
        g.const("c2", 0.001, "float32")
        for w in self.shapes:
            g.op("ReduceSumSquare", f"{w}_grad", to=f"{w}_squares", keepdims=0)
        squares = "w0_squares"
        for i in range(1, self.layers):
            squares = g.op("Add", squares, f"w{i}_squares", to=f"squares_{i}")
        g.op("Sqrt", squares, to="norm")
        g.op("Div", "limit", "norm", to="ratio")
        g.op("Min", "ratio", "one", to="clip")
        for w, shape in self.shapes.items():
            for state in ("m", "v"):
                g.input(f"{w}_{state}", shape)
            g.op("Mul", f"{w}_grad", "clip", to=f"{w}_g")
            g.op("Mul", f"{w}_m", "b1", to=f"{w}_m1")
            g.op("Mul", f"{w}_g", "c1", to=f"{w}_m2")
            g.op("Add", f"{w}_m1", f"{w}_m2", to=f"{w}_m_new")
            g.op("Mul", f"{w}_g", f"{w}_g", to=f"{w}_gg")
            g.op("Mul", f"{w}_v", "b2", to=f"{w}_v1")
            g.op("Mul", f"{w}_gg", "c2", to=f"{w}_v2")
            g.op("Add", f"{w}_v1", f"{w}_v2", to=f"{w}_v_new")
            g.op("Sqrt", f"{w}_v_new", to=f"{w}_root")
            g.op("Add", f"{w}_root", "eps", to=f"{w}_denominator")
            g.op("Div", f"{w}_m_new", f"{w}_denominator", to=f"{w}_direction")
            g.op("Mul", f"{w}_direction", "rate", to=f"{w}_step")
            g.op("Sub", w, f"{w}_step", to=f"{w}_new")
            for name in (f"{w}_new", f"{w}_m_new", f"{w}_v_new"):
                g.output(name)


def feeds_of(path: Path, batch: int, seed: int = 0) -> Arrays:
    """Inputs of a whole step; no target is ignored."""
    rng = np.random.default_rng(seed)
    found: Arrays = {}
    for value in onnx.load(path).graph.input:
        tensor = value.type.tensor_type
        shape = [batch if d.dim_param else d.dim_value for d in tensor.shape.dim]
        if tensor.elem_type == T.INT64:
            found[value.name] = rng.integers(0, CLASSES, shape)
        else:
            found[value.name] = 0.3 * np.abs(rng.standard_normal(shape)).astype(np.float32)
            if not value.name.endswith(("_m", "_v")):
                found[value.name] *= rng.choice(np.array([-1.0, 1.0], np.float32), shape)
    return found


def divided(path: Path, batch: int) -> Divisible:
    """A model, and how it adds up."""
    request = Request(model=path, dims={"batch": batch})
    return divisible(load_model(path, dims={"batch": batch}), request, lambda _: None)


def in_runs(path: Path, batch: int, runs: int, folder: Path) -> RunModel:
    """The model of one run of so many."""
    folder.mkdir()
    return run_model(divided(path, batch), Request(model=path, dims={"batch": batch}), runs, folder)


def session_of(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def outputs(session: ort.InferenceSession, feeds: Mapping[str, Any]) -> Arrays:
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(feeds)), strict=True))


def step_in_runs(made: RunModel, feeds: Arrays) -> Arrays:
    """A step of all runs: what the last one leaves, and what each has for its own samples, joined."""
    session, batches = session_of(made.request.model), made.batches
    size = batches.batch // batches.runs
    shapes = {i.name: i.shape for i in session.get_inputs()}
    kinds = {i.name: np.int64 if "int64" in i.type else np.float32 for i in session.get_inputs()}
    totals = {a.input: np.zeros(shapes[a.input], kinds[a.input]) for a in batches.accumulators}
    rows: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in batches.per_run}
    last: Arrays = {}
    for k in range(batches.runs):
        cut = {
            n: a.take(range(size * k, size * (k + 1)), axis=batches.inputs[n])
            if n in batches.inputs
            else a
            for n, a in feeds.items()
        }
        last = outputs(session, {**cut, **totals})
        totals = {a.input: last[a.output] for a in batches.accumulators}
        for name, found in rows.items():
            found.append(last[name])
    return {**last, **{n: np.concatenate(a, batches.per_run[n]) for n, a in rows.items()}}


def assert_same(expected: Arrays, found: Arrays, share: float = 1e-4) -> None:
    """Each output of the original, within a share of its largest element."""
    for name, array in expected.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape, name
        limit = share * float(np.abs(array).max(initial=0.0))
        np.testing.assert_allclose(found[name], array, rtol=0, atol=limit, err_msg=name)
