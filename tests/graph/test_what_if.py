"""Estimates for other ways to store tensors, against tensors that are stored so for real."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import scipy.sparse
from onnx import TensorProto as T
from onnx import numpy_helper as nh

from planner import api
from planner.errors import UsageError
from planner.graph.liveness import timeline
from planner.graph.model import Category, TrainingGraph
from planner.graph.schedule import default_order
from planner.graph.what_if import parse_what_if, stored_as
from planner.onnxio.load import load_model
from planner.pipeline.prepare.graphs import analysed_graph
from planner.runtime.feeds.inputs import make_inputs

ZOO = Path(__file__).parents[2] / "models" / "zoo"
HALF = {"fp16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}


def graph_of(path: Path) -> TrainingGraph:
    return analysed_graph(load_model(path).model, {})


def peak_of(graph: TrainingGraph, order=None) -> int:
    return timeline(graph, order or default_order(graph)).peak_bytes


def in_half(path: Path, to: Path) -> Path:
    """A model whose every float is a float16."""
    proto = onnx.load(path)
    graph = proto.graph
    for info in (*graph.input, *graph.output, *graph.value_info):
        kind = info.type.tensor_type
        kind.elem_type = T.FLOAT16 if kind.elem_type == T.FLOAT else kind.elem_type

    def halved(tensor: onnx.TensorProto) -> None:
        if tensor.data_type == T.FLOAT:
            array = nh.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(nh.from_array(array, tensor.name))

    for tensor in graph.initializer:
        halved(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                halved(attribute.t)
            if attribute.name in ("to", "dtype") and attribute.i == T.FLOAT:
                attribute.i = T.FLOAT16
    onnx.save(proto, to)
    return to


@pytest.mark.parametrize("name", ["mlp_adamw", "resnet18", "gpt"])
def test_a_model_made_in_half_has_the_peak_that_was_estimated(name: str, tmp_path: Path) -> None:
    graph = graph_of(ZOO / f"{name}.onnx")
    real = graph_of(in_half(ZOO / f"{name}.onnx", tmp_path / "half.onnx"))
    statistics = {t.id for t in real.tensors if t.dtype == "float"}  # in 32 bits, says the standard
    made_by = {real.operations[real.tensors[t].producer].op_type for t in statistics}
    assert made_by == ({"LayerNormalization"} if name == "gpt" else set())
    more = sum(real.tensors[t].bytes // 2 for t in statistics)
    for text in ("fp16", "bf16"):
        estimate = stored_as(graph, parse_what_if(text))
        assert all(
            a.bytes == b.bytes
            for a, b in zip(estimate.tensors, real.tensors, strict=True)
            if a.id not in statistics
        )
        assert peak_of(estimate) <= peak_of(real) <= peak_of(estimate) + more
        assert peak_of(real) < 0.55 * peak_of(graph)


def test_sizes_are_those_of_arrays_that_were_cast(tmp_path: Path) -> None:
    """Every value that ONNX Runtime computes, cast, or stored as compressed sparse rows."""
    path = ZOO / "mlp_adamw.onnx"
    graph = graph_of(path)
    proto = onnx.load(path)
    made = [name for node in proto.graph.node for name in node.output if name]
    listed = {v.name for v in proto.graph.output}
    proto.graph.output.extend(onnx.ValueInfoProto(name=n) for n in made if n not in listed)
    onnx.save(proto, tmp_path / "all.onnx")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        str(tmp_path / "all.onnx"), options, providers=["CPUExecutionProvider"]
    )
    feeds, _ = make_inputs(path, 0, {}, None)
    names = [v.name for v in session.get_outputs()]
    found = session.run(names, dict(feeds))
    arrays = {**feeds, **dict(zip(names, map(np.asarray, found), strict=True))}
    for text, kind in HALF.items():
        half = stored_as(graph, parse_what_if(text))
        sparse = stored_as(graph, parse_what_if(f"{text},sparse=0.3"))
        for tensor, small in zip(half.tensors, sparse.tensors, strict=True):
            array = arrays.get(tensor.name)
            if array is None:
                continue
            cast = array.astype(kind) if array.dtype == np.float32 else array
            assert tensor.bytes == cast.nbytes, tensor.name
            if small.category is Category.PARAMETER and array.ndim >= 2:
                assert small.bytes == csr_bytes(array, 0.3, kind.itemsize)


def csr_bytes(array: np.ndarray, share: float, itemsize: int) -> int:
    """Bytes of the largest elements in compressed sparse rows, the values of so many bytes each."""
    flat = np.abs(array).reshape(array.shape[0], -1)
    kept = int(np.ceil(share * flat.size))
    mask = np.zeros(flat.size, dtype=bool)
    mask[np.argsort(-flat, axis=None, kind="stable")[:kept]] = True
    values = np.where(mask.reshape(flat.shape), flat + 1, 0)  # none of the kept ones is a zero
    stored = scipy.sparse.csr_matrix(values)
    assert stored.nnz == kept and stored.indices.dtype == stored.indptr.dtype == np.int32
    return stored.nnz * itemsize + stored.indices.nbytes + stored.indptr.nbytes


def test_what_sparse_leaves_alone_and_what_not() -> None:
    graph = graph_of(ZOO / "mlp_adamw.onnx")
    sparse = stored_as(graph, parse_what_if("sparse=0.25"))
    changed = {
        t.name: t.bytes / s.bytes
        for t, s in zip(graph.tensors, sparse.tensors, strict=True)
        if t.bytes != s.bytes
    }
    matrices = {
        t.name for t in graph.tensors if t.category is Category.PARAMETER and len(t.shape) > 1
    }
    state = {f"{name}{end}" for name in matrices for end in ("_m", "_v")}
    outputs = {f"{name}_new" for name in matrices | state}
    assert changed.keys() == matrices | state | outputs
    assert all(changed[name] == pytest.approx(4, rel=0.01) for name in state | outputs)
    assert all(changed[name] < 2 for name in matrices), "each value has an index of its size"


def test_all_of_it_kept_costs_its_indices() -> None:
    graph = graph_of(ZOO / "mlp_adamw.onnx")
    assert peak_of(stored_as(graph, parse_what_if("sparse=1"))) > peak_of(graph)


def test_the_analysis_has_an_estimate_for_each_question() -> None:
    asked = ("bf16", "sparse=0.5", "bf16,sparse=0.5")
    found = api.analyze(ZOO / "mlp_adamw.onnx", time_limit_s=3.0, what_if=asked)
    assert tuple(e.what_if for e in found.what_if) == asked
    for estimate in found.what_if:
        assert sum(estimate.composition.values()) == estimate.peak_bytes
        assert estimate.assumptions
    half, sparse, both = (e.peak_bytes for e in found.what_if)
    whole = found.default.timeline.peak_bytes
    assert both < half < whole and both < sparse < whole
    assert half >= whole / 2, "what is no float stays as it is"


@pytest.mark.parametrize(
    "text",
    ["", "int8", "bf16,fp16", "sparse", "sparse=0", "sparse=1.5", "sparse=1e-3", "sparse=-1"],
)
def test_what_is_no_way_to_store_tensors_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--as .*(is not one of|the share of elements)"):
        parse_what_if(text)


def test_what_would_change_nothing_is_refused(tmp_path: Path) -> None:
    half = graph_of(in_half(ZOO / "mlp_adamw.onnx", tmp_path / "half.onnx"))
    with pytest.raises(UsageError, match="changes nothing: the model has no floating-point tensor"):
        stored_as(half, parse_what_if("bf16"))
    assert parse_what_if("fp16,sparse=.3").kept == Fraction("0.3")
