"""Models of one node, and sessions that know planner.fused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import helper

from planner.native import library_path

Array = npt.NDArray[Any]


def model_of(nodes: Sequence[onnx.NodeProto], feeds: Mapping[str, Array], outputs: Sequence[str]):
    """A model that is fed arrays of these types and shapes."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in feeds.items()
    ]
    made = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph(list(nodes), "test", inputs, made)
    sets = [helper.make_opsetid("", 18), helper.make_opsetid("planner.fused", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=9)


def session(
    model: onnx.ModelProto, threads: int = 1, library: Path | None = None
) -> ort.InferenceSession:
    """A session that has the library."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    options.register_custom_ops_library(str(library or library_path()))
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def pointwise_model(program: str, feeds: Mapping[str, Array]) -> onnx.ModelProto:
    """A model of one node that runs a program, whose inputs these arrays are in order."""
    names = [
        f"out{i}"
        for i in range(sum(line.split()[:1] == ["output"] for line in program.splitlines()))
    ]
    node = helper.make_node(
        "Pointwise", list(feeds), names, domain="planner.fused", program=program
    )
    return model_of([node], feeds, names)


def pointwise(
    program: str, feeds: Mapping[str, Array], threads: int = 1, library: Path | None = None
) -> list[Array]:
    """What a program makes of arrays, which are its inputs in order."""
    return session(pointwise_model(program, feeds), threads, library).run(None, dict(feeds))


def here(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """What a model makes on the CPU."""
    return session(model).run(None, dict(feeds))


def ulps(found: Array, wanted: Array) -> float:
    """The most units in the last place of float32 by which finite results are off."""
    finite = np.isfinite(wanted)
    gap = np.abs(found.astype(np.float64) - wanted)[finite]
    unit = np.spacing(np.abs(wanted[finite]).astype(np.float32)).astype(np.float64)
    return float((gap / unit).max(initial=0.0))


def same_bits(one: Array, other: Array) -> bool:
    """Whether two arrays are equal bit for bit, any NaN counting as any other."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype.kind != "f":
        return bool(np.array_equal(one, other))
    bits = f"u{one.dtype.itemsize}"
    both = np.isnan(one) & np.isnan(other)
    return bool(((one.view(bits) == other.view(bits)) | both).all())
