"""Small graphs in a session on a CUDA device, and what they use there."""

from __future__ import annotations

import ctypes
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from planner.runtime.device import sessions
from planner.targets import CUDA

MIB = 2**20
SIDE = 4096
BIG = 4 * SIDE * SIDE
"""Bytes of the square float matrix that most cases work on: 64 MiB."""

Node = onnx.NodeProto


def graph(
    nodes: Sequence[Node],
    inputs: Mapping[str, tuple[int, list[int]]],
    outputs: Sequence[str],
    constants: dict[str, np.ndarray] | None = None,
    *,
    overridable: Sequence[str] = (),
) -> bytes:
    """A model; types of inputs as given, outputs are inferred."""
    for i, node in enumerate(nodes):
        node.name = node.name or f"n{i}"
    made = h.make_graph(
        list(nodes),
        "case",
        [h.make_tensor_value_info(name, *what) for name, what in inputs.items()],
        [h.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()],
    )
    for name in overridable:
        array = (constants or {})[name]
        kind = h.np_dtype_to_tensor_dtype(array.dtype)
        made.input.append(h.make_tensor_value_info(name, kind, list(array.shape)))
    opsets = [h.make_opsetid("", 20), h.make_opsetid("com.microsoft", 1)]
    return h.make_model(made, opset_imports=opsets, ir_version=10).SerializeToString()


class Case:
    """A session on the device, and what it used."""

    def __init__(
        self,
        model: bytes,
        feeds: dict[str, np.ndarray],
        *,
        settings: dict[str, str] | None = None,
        bound: bool = True,
        optimized: bool = True,
    ) -> None:
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name) / "case.onnx"
        path.write_bytes(model)
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.enable_mem_pattern = False
        if not optimized:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(self.folder.name) / "profile")
        self.session = sessions.create(CUDA, path, options, {**CUDA.options, **(settings or {})})
        self.feeds = feeds
        self.binding = self.session.io_binding()
        if bound:
            for name, array in feeds.items():
                value = ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0)
                self.binding.bind_ortvalue_input(name, value)
        self.bound = bound

    def run(self) -> Any:
        """One step; outputs come to the host."""
        if not self.bound:
            return self.session.run(None, self.feeds)
        self.binding.clear_binding_outputs()
        for output in self.session.get_outputs():
            self.binding.bind_output(output.name, "cuda", 0)
        self.session.run_with_iobinding(self.binding)
        return self.binding.copy_outputs_to_cpu()

    def least_s(self, runs: int = 7) -> float:
        """The least time of a step, outputs small."""
        found = []
        for _ in range(runs):
            start = time.perf_counter()
            self.run()
            found.append(time.perf_counter() - start)
        return min(found)

    def events(self) -> list[dict[str, Any]]:
        """Events of kernels of all runs, in order."""
        entries = json.loads(Path(self.session.end_profiling()).read_text(encoding="utf-8"))
        nodes = [
            e for e in entries if e.get("cat") == "Node" and e["name"].endswith("_kernel_time")
        ]
        return sorted(nodes, key=lambda e: e["ts"])


def used_bytes() -> int:
    """Device memory in use, by the driver (cuMemGetInfo), of all processes."""
    driver = ctypes.CDLL("libcuda.so.1")
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    code = driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    if code:
        raise RuntimeError(f"cuMemGetInfo: {code}")
    return total.value - free.value


def square(seed: int = 0) -> np.ndarray:
    """A big matrix."""
    return np.random.default_rng(seed).standard_normal((SIDE, SIDE), dtype=np.float32)


SQUARE = {"x": (T.FLOAT, [SIDE, SIDE])}


def summed(value: str, output: str) -> Node:
    return h.make_node("ReduceSum", [value], [output], keepdims=0)
