"""Fused operations: their bits beside those of ONNX Runtime's kernels on a device, and what they save."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import helper

from planner.choices import RELATIVE
from planner.fuse.operators import OPERATORS
from planner.fuse.rewrite import with_fusion
from planner.graph.schedule import default_order
from planner.targets import cpu, cuda, target_named
from reports.gpu.basics import Found, bound, least_ms
from reports.gpu.graphs import Where, node_events
from tests.fuse.graphs import Array, same_bits
from tests.fuse.test_operators import CASES, both
from tests.graphs import graph_of

_NEAR = 1e-5


def rows(where: Where) -> Found:
    """Compare each operator with its program, special values included: same bits, or the error."""
    found: Found = {"same": [], "different": [], "gaps": {}, "without_kernel": []}

    def run(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
        results, ran = _profiled(where, model, feeds)
        if any(facts["provider"] != where.provider for _, facts in ran):
            raise _ElsewhereError
        return results

    kernels = target_named(where.device).fused
    assert kernels is not None
    for name, dtype in CASES:
        if name in ("Cast", "Pow"):
            continue  # which have attributes and constants: `step` has them
        title = f"{name} {dtype}"
        try:
            wanted, made = both(name, dtype, run=run)
        except _ElsewhereError:
            found["without_kernel"].append(title)
            continue
        if OPERATORS[name].exact and name not in kernels.inexact:
            found["same" if same_bits(wanted, made) else "different"].append(title)
        else:
            found["gaps"][title] = _gap(made, wanted)
    near = all(gap < _NEAR for gap in found["gaps"].values())
    return {**found, "holds": bool(found["same"]) and not found["different"] and near}


def half(where: Where) -> Found:
    """Compare the operators in float16, whose programs are only for CUDA, up to the type's rounding."""
    proto = _layer(where.side, onnx.TensorProto.FLOAT16)
    model, graph = graph_of(proto)
    made = with_fusion(model, graph, default_order(graph), only_exact=False, kernels=cuda.FUSED)
    assert made is not None
    feeds = _feeds(where)
    wanted = where.session(proto, 0).run(None, feeds)
    found: Found = {"fused": len(made.members), "operations": len(graph.operations)}
    if not where.cuda:
        return {**found, "skipped": "it has no kernel on the CPU", "holds": len(made.members) > 0}
    results = where.session(ir.to_proto(made.model), 0).run(None, feeds)
    found["gap"] = max(map(_gap, results, wanted))
    return {**found, "holds": found["gap"] < RELATIVE["float16"]}


def _feeds(where: Where) -> dict[str, Array]:
    draw = np.random.default_rng(0)
    shapes = {"x": [where.side] * 2, "w": [where.side] * 2, "b": [where.side]}
    return {name: np.float32(draw.standard_normal(shape)) for name, shape in shapes.items()}


def _gap(one: Array, other: Array) -> float:
    """Return the largest difference, relative to element plus median; infinity where NaNs differ."""
    if not np.array_equal(np.isnan(one), np.isnan(other)):
        return float("inf")
    with np.errstate(invalid="ignore"):
        apart = np.where(one == other, 0, np.abs(one.astype(np.float64) - other))
    finite = np.abs(other[np.isfinite(other)])
    return float(np.nanmax(apart / (np.abs(other) + np.median(finite))))


class _ElsewhereError(Exception):
    """A node that does not run on the device."""


def _profiled(
    where: Where, model: onnx.ModelProto, feeds: Mapping[str, Array]
) -> tuple[list[Array], list[tuple[str, dict[str, Any]]]]:
    """Return a model's outputs, and the nodes that ran, as `node_events` has them."""
    with tempfile.TemporaryDirectory() as folder:
        kept = {"enable_profiling": True, "profile_file_prefix": str(Path(folder) / "p")}
        session = where.session(model, 0, **kept)
        return session.run(None, dict(feeds)), node_events(session)


def step(where: Where) -> Found:
    """Run a product, a layer normalization and an activation, unfused and fused in both ways."""
    proto = _layer(where.side)
    feeds = _feeds(where)
    models = {"as it is": proto} | {way: _fused(where, proto, way) for way in ("exact", "auto")}
    found: Found = {"launches": {}, "elsewhere": []}
    results: dict[str, list[Array]] = {}
    sessions: dict[str, ort.InferenceSession] = {}
    for way, model in models.items():
        results[way], ran = _profiled(where, model, feeds)
        found["launches"][way] = len(ran)
        found["elsewhere"] += [n for n, facts in ran if facts["provider"] != where.provider]
        sessions[way] = where.session(model, 0)
    again = sessions["as it is"].run(None, feeds)
    wanted = results["as it is"]
    found["steady"] = all(map(same_bits, again, wanted))
    found["same_bits"] = all(map(same_bits, results["exact"], wanted))
    found["gap"] = max(map(_gap, results["auto"], wanted))
    ms = least_ms({w: bound(where, s, feeds) for w, s in sessions.items()}, where.many(30, 2))
    found |= {"ms": ms, "ratio": {way: ms[way] / ms["as it is"] for way in ("exact", "auto")}}
    few = found["launches"]["auto"] < found["launches"]["exact"] < found["launches"]["as it is"]
    is_exact = found["same_bits"] or not found["steady"]
    holds = is_exact and found["gap"] < _NEAR and few and not found["elsewhere"]
    return {**found, "holds": holds}


def _layer(side: int, number: int = onnx.TensorProto.FLOAT) -> onnx.ModelProto:
    """Build a product, then element operations and means over rows, in a type, with casts around."""
    lines = (
        "m MatMul x w; s Add m b; mean ReduceMean s last; d Sub s mean; q Mul d d; var ReduceMean q last;"
        "v Add var tiny; root Sqrt v; n Div d root; r Relu n; a Abs n; g Greater r a; c Where g r a;"
        "k Max c n; t Tanh k; y Mul t n"
    )
    words = map(str.split, lines.split(";"))
    nodes = [helper.make_node(kind, read, [made], made) for made, kind, *read in words]
    dtype = helper.tensor_dtype_to_np_dtype(number)
    if number != onnx.TensorProto.FLOAT:
        nodes = _cast(nodes, ("x", "w", "b"), ("y", "c"), number)
    square = [side, side]
    shapes = {"x": square, "w": square, "b": [side], "y": square, "c": square}
    ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in shapes.items()]
    fixed = [
        onnx.numpy_helper.from_array(np.array([-1], np.int64), "last"),
        onnx.numpy_helper.from_array(np.array(1e-5, dtype), "tiny"),
    ]
    graph = helper.make_graph(nodes, "layer", ends[:3], ends[3:], fixed)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _cast(
    nodes: list[onnx.NodeProto], inputs: Sequence[str], outputs: Sequence[str], number: int
) -> list[onnx.NodeProto]:
    """Return the nodes in another type, with casts of their inputs and outputs."""
    inner = {name: f"{name}_inner" for name in (*inputs, *outputs)}
    for node in nodes:
        node.input[:] = [inner.get(name, name) for name in node.input]
        node.output[:] = [inner.get(name, name) for name in node.output]
    head = [helper.make_node("Cast", [n], [inner[n]], f"cast_{n}", to=number) for n in inputs]
    tail = [helper.make_node("Cast", [inner[n]], [n], f"cast_{n}", to=1) for n in outputs]
    return [*head, *nodes, *tail]


def _fused(where: Where, proto: onnx.ModelProto, mode: str) -> onnx.ModelProto:
    model, graph = graph_of(proto)
    kernels = (cuda if where.cuda else cpu).FUSED
    exact = mode == "exact"
    made = with_fusion(model, graph, default_order(graph), only_exact=exact, kernels=kernels)
    assert made is not None
    return ir.to_proto(made.model)


CHECKS: dict[str, Callable[[Where], Found]] = {
    "fused rows": rows,
    "fused step": step,
    "fused half": half,
}
"""The checks, in the order in which they run."""
