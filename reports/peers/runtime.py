"""A training step on ONNX Runtime: an exported graph or a rewritten one; bytes by its arena's events."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from planner.runtime.options import Opening
from planner.runtime.profile import create_session, run_session
from planner.runtime.profiled import profile
from planner.targets import target_named
from planner.targets.backend import backend_of
from reports.peers.numbers import Arrays

PRODUCTS = 30
"""Number of runs of the product, of which the least time counts."""


class OrtStep:
    """One model, opened with the options under which its bytes are counted: no memory pattern, no reuse
    of buffers across gaps, so that what is in use is what is alive."""

    def __init__(self, model: Path, feeds: Path, device: str, threads: int) -> None:
        self.model, self.device = model, device
        self.opening = Opening(memory="recommended", threads=threads)
        names = {info.name for info in onnx.load(model, load_external_data=False).graph.input}
        with np.load(feeds, allow_pickle=False) as held:
            self.feeds: Arrays = {name: held[name] for name in held.files if name in names}
        if device == "cuda":
            target = target_named("cuda")
            backend = backend_of(target)
            self._session = backend.open(model, self.opening.options(), target.options)
            self._binding = self._bound()
        else:
            self._session = create_session(model, self.opening.options())

    def _bound(self) -> ort.IOBinding:
        """Bind inputs and outputs on the GPU, where PyTorch has its own."""
        binding = self._session.io_binding()
        for name, array in self.feeds.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0))
        for output in self._session.get_outputs():
            binding.bind_output(output.name, "cuda", 0)
        return binding

    def step(self) -> list[Any]:
        """Compute loss and gradients; they are complete on return, and stay on a GPU."""
        if self.device == "cuda":
            self._session.run_with_iobinding(self._binding)
            self._binding.synchronize_outputs()
            return []
        return run_session(self._session, self.feeds)

    def seconds(self) -> float:
        """Time one step."""
        start = time.perf_counter()
        results = self.step()
        elapsed = time.perf_counter() - start
        del results
        return elapsed

    def numbers(self) -> Arrays:
        """Return the outputs by name."""
        results = self.step()
        if self.device == "cuda":
            results = self._binding.copy_outputs_to_cpu()
        names = [output.name for output in self._session.get_outputs()]
        return dict(zip(names, map(np.asarray, results), strict=True))


def cpu_peak_bytes(model: Path, feeds: Path, threads: int) -> dict[str, int]:
    """Return the most bytes at once in a run on the CPU, inside the arena (by its events) and outside.

    Both figures have the model's inputs and initializers in them (parameters, buffers, data). `peak`:
    bytes of tensors, as they were asked for. `with_scratch`: what the arena gave out at most, workspaces
    of kernels and rounding to 256 bytes included.
    """
    opening = Opening(memory="recommended", threads=threads)
    graph = onnx.load(model, load_external_data=False).graph
    names = {info.name for info in graph.input}
    with np.load(feeds, allow_pickle=False) as held:
        arrays = {name: held[name] for name in held.files if name in names}
    fixed = sum(array.nbytes for array in arrays.values())
    fixed += sum(onnx.numpy_helper.to_array(item).nbytes for item in graph.initializer)
    (run,) = profile(model, arrays, opening)
    asked, rounded = run[0].requested_in_use or 0, run[0].in_use or 0
    asked -= (
        run[0].requested_delta or 0
    )  # what was there before the first node: constants, counted above
    rounded -= run[0].in_use_delta or 0
    return {
        "peak": fixed + max(event.requested_in_use or 0 for event in run) - asked,
        "with_scratch": fixed + max(event.in_use_peak or 0 for event in run) - rounded,
    }


def shares(model: Path, feeds: Path, threads: int) -> dict[str, float]:
    """Of the kernels' time of a warm run on the CPU: operator type -> share."""
    names = {info.name for info in onnx.load(model, load_external_data=False).graph.input}
    with np.load(feeds, allow_pickle=False) as held:
        arrays = {name: held[name] for name in held.files if name in names}
    *_, run = profile(model, arrays, Opening(memory="recommended", threads=threads), runs=2)
    total: Counter[str] = Counter()
    for event in run:
        total[event.op_type] += event.duration_us
    whole = sum(total.values()) or 1
    return {name: us / whole for name, us in total.most_common()}


def product_seconds(rows: int, inner: int, columns: int, threads: int) -> float:
    """Time one float32 matrix product, the least of several runs: the runtime alone determines it."""
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("a", (rows, inner)), ("b", (inner, columns)), ("c", (rows, columns)))
    ]
    node = helper.make_node("MatMul", ["a", "b"], ["c"])
    model = helper.make_model(
        helper.make_graph([node], "product", infos[:2], infos[2:]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    options = Opening(threads=threads).options()
    session = ort.InferenceSession(model.SerializeToString(), options)
    draw = np.random.default_rng(0).standard_normal
    feeds = {
        "a": draw((rows, inner), dtype=np.float32),
        "b": draw((inner, columns), dtype=np.float32),
    }

    return least_seconds(lambda: session.run(None, feeds))


def least_seconds(run: Callable[[], object]) -> float:
    """Run something `PRODUCTS` times; return the least time."""

    def once() -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    return min(once() for _ in range(PRODUCTS))
