"""What ONNX Runtime does on a CUDA device: `python -m reports.cuda.facts`.

Facts on which plans for CUDA rest, each measured by a small graph made for it: whether `Size` of a tensor
on the device copies it, which kernels write over their input, when a fed tensor is copied, how fast
copies are and whether they overlap, what `gpu_mem_limit` bounds, and whether sessions of one model give
the same bits. Each case is a process of its own. Writes `cuda_facts.json`, the cases that
were asked for; `python -m reports.cuda` makes the page.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
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

FOLDER = Path(__file__).parents[1]
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


_X = {"x": (T.FLOAT, [SIDE, SIDE])}


def _sum(value: str, output: str) -> Node:
    return h.make_node("ReduceSum", [value], [output], keepdims=0)


def case_profile() -> dict[str, Any]:
    """What a profile says of each node on the device."""
    case = Case(
        graph([h.make_node("Neg", ["x"], ["a"]), _sum("a", "y")], _X, ["y"]), {"x": square()}
    )
    case.run()
    events = case.events()
    return {"events": [{"name": e["name"], "dur": e["dur"], **e["args"]} for e in events]}


def case_size() -> dict[str, Any]:
    """Steps with and without eight `Size` of tensors of 64 MiB on the device."""
    found = {}
    for count in (0, 8):
        nodes = [h.make_node("Neg", ["x"], ["a0"])]
        nodes += [h.make_node(("Exp", "Neg")[i % 2], [f"a{i}"], [f"a{i + 1}"]) for i in range(8)]
        nodes += [h.make_node("Size", [f"a{i}"], [f"s{i}"], f"size{i}") for i in range(count)]
        case = Case(graph([*nodes, _sum("a8", "y")], _X, ["y"]), {"x": square()})
        found[f"{count}_s"] = case.least_s()
        events = case.events()
        found[f"{count}_providers"] = sorted(
            {f"{e['args']['op_name']} on {e['args']['provider']}" for e in events}
        )
    return found


_UNARY = [
    "Relu",
    "Sigmoid",
    "Tanh",
    "LeakyRelu",
    "Elu",
    "Selu",
    "Softplus",
    "Softsign",
    "HardSigmoid",
    "ThresholdedRelu",
    "Celu",
    "Shrink",
    "Gelu",
    "Neg",
    "Exp",
    "Log",
    "Sqrt",
    "Erf",
    "Abs",
    "Sign",
    "Floor",
    "Reciprocal",
    "Identity",
    "Softmax",
    "LogSoftmax",
    "Trilu",
    "HardSwish",
    "Reshape",
    "Flatten",
    "Squeeze",
    "Unsqueeze",
    "Transpose",
    "Cast",
    "Clip",
    "Dropout",
    "Add",
    "Mul",
    "Sub",
    "Div",
    "Where",
    "ScatterElements",
    "ScatterND",
    "LayerNormalization",
    "Mish",
    "QuickGelu",
    "FastGelu",
    "BiasGelu",
    "Pow",
    "Min",
    "Max",
    "Expand",
]


def _operator(op: str) -> tuple[list[Node], dict[str, np.ndarray]]:
    """The node from a to b, and the constants that it reads."""
    row = np.ones((SIDE,), np.float32)
    shape = np.array([SIDE, SIDE], np.int64)
    one = np.array([[0]], np.int64)
    more: dict[str, tuple[list[str], dict[str, np.ndarray], dict[str, Any]]] = {
        "Reshape": (["a", "s"], {"s": np.array([SIDE * SIDE], np.int64)}, {}),
        "Expand": (["a", "s"], {"s": shape}, {}),
        "Unsqueeze": (["a", "s"], {"s": np.array([0], np.int64)}, {}),
        "Flatten": (["a"], {}, {"axis": 0}),
        "Transpose": (["a"], {}, {"perm": [1, 0]}),
        "Cast": (["a"], {}, {"to": T.INT32}),
        "Clip": (["a", "l"], {"l": np.array(0.1, np.float32)}, {}),
        "Add": (["a", "r"], {"r": row}, {}),
        "Mul": (["a", "r"], {"r": row}, {}),
        "Sub": (["a", "r"], {"r": row}, {}),
        "Div": (["a", "r"], {"r": row}, {}),
        "Pow": (["a", "r"], {"r": row}, {}),
        "Min": (["a", "r"], {"r": row}, {}),
        "Max": (["a", "r"], {"r": row}, {}),
        "Where": (["c", "a", "r"], {"c": row > 0, "r": row}, {}),
        "LayerNormalization": (["a", "r", "r2"], {"r": row, "r2": row}, {}),
        "BiasGelu": (["a", "r"], {"r": row}, {}),
        "ScatterElements": (
            ["a", "i", "u"],
            {"i": np.zeros((1, SIDE), np.int64), "u": row[None]},
            {"axis": 0},
        ),
        "ScatterND": (["a", "i", "u"], {"i": one, "u": row[None]}, {}),
    }
    inputs, constants, attributes = more.get(op, (["a"], {}, {}))
    domain = "com.microsoft" if op in ("QuickGelu", "FastGelu", "BiasGelu") else ""
    return [h.make_node(op, inputs, ["b"], "op", domain=domain, **attributes)], constants


def case_inplace(op: str) -> dict[str, Any]:
    """Bytes that the arena took for x -> a -> op -> b -> sum: b over a, or beside it.

    Neg and Exp of x are a's and b's neighbours; where b is written over a, one buffer less is taken.
    """
    nodes, constants = _operator(op)
    reduce = (
        [_sum("b", "y")]
        if op != "Cast"
        else [h.make_node("Cast", ["b"], ["d"], to=T.FLOAT), _sum("d", "y")]
    )
    model = graph([h.make_node("Neg", ["x"], ["a"]), *nodes, *reduce], _X, ["y"], constants)
    case = Case(model, {"x": square()}, optimized=False)
    before = used_bytes()
    case.run()
    taken = used_bytes() - before
    where = {e["args"]["provider"] for e in case.events() if e["args"]["op_name"] == op}
    return {"op": op, "taken_mib": taken / MIB, "provider": sorted(where)}


def case_feeds() -> dict[str, Any]:
    """Bytes taken where x is needed late: fed as such, read by a copy, or an initializer."""
    found: dict[str, Any] = {}
    small = np.ones((1, SIDE), np.float32)
    for how in ("fed", "fed, copied", "initializer, copied", "overridable, copied"):
        nodes = [
            h.make_node("Expand", ["z", "shape"], ["a"]),
            h.make_node("Exp", ["a"], ["b"]),
            _sum("b", "first"),
        ]
        value = "x"
        if "copied" in how:
            # first in the file is last of what a node reads (`planner.order`)
            nodes.insert(0, h.make_node("MemcpyFromHost", ["x"], ["xd"], "in"))
            value = "xd"
        nodes += [
            h.make_node("Mul", [value, "first"], ["c"]),  # not before the first part is done
            _sum("c", "y"),
        ]
        constants = {"shape": np.array([SIDE, SIDE], np.int64)}
        inputs: dict[str, tuple[int, list[int]]] = {"z": (T.FLOAT, [1, SIDE])}
        feeds = {"z": small}
        if how.startswith("fed"):
            inputs |= _X
            feeds["x"] = square()
        else:
            constants["x"] = square()
        model = graph(
            nodes, inputs, ["y"], constants, overridable=["x"] if "overridable" in how else []
        )
        before = None
        try:
            warm = Case(graph([_sum("z", "y")], {"z": (T.FLOAT, [1, SIDE])}, ["y"]), {"z": small})
            warm.run()
            before = used_bytes()
            case = Case(model, feeds, bound=False)
            loaded = used_bytes()
            case.run()
            found[how] = {
                "load_mib": (loaded - before) / MIB,
                "run_mib": (used_bytes() - loaded) / MIB,
                "nodes": [
                    [
                        e["name"].removesuffix("_kernel_time"),
                        round(int(e["args"]["mem_bytes_in_use"]) / MIB, 1),
                        round(int(e["args"]["mem_arena_held"]) / MIB, 1),
                    ]
                    for e in case.events()
                    if "mem_arena_held" in e["args"]
                ],
            }
        except Exception as error:  # a refusal is what is asked here
            found[how] = {"error": str(error)[:300]}
    return found


def case_copies() -> dict[str, Any]:
    """Times of products, of copies of 256 MiB out and in, and of both in one step."""
    side = 8192
    x = np.random.default_rng(0).standard_normal((side, side), dtype=np.float32)
    kinds = {"x": (T.FLOAT, [side, side]), "w": (T.FLOAT, [side, side])}
    products = [h.make_node("MatMul", ["w", "w"], ["p0"])] + [
        h.make_node("MatMul", [f"p{i}", "w"], [f"p{i + 1}"]) for i in range(3)
    ]
    # host0 is anchored first, so that products stand between the copies in the file's order
    copies = [
        h.make_node("MemcpyToHost", ["x"], ["host"], "out"),
        h.make_node("MemcpyFromHost", ["host"], ["back"], "in"),
    ]
    found: dict[str, Any] = {"bytes": 4 * side * side}
    feeds = {"x": x, "w": x / side}
    for name, nodes, outputs in (
        ("products", [*products, _sum("p3", "y")], ["y"]),
        ("copies", [*copies, _sum("back", "z")], ["z"]),
        ("both", [*copies, *products, _sum("p3", "y"), _sum("back", "z")], ["y", "z"]),
    ):
        used = {k: v for k, v in kinds.items() if any(k in n.input for n in nodes)}
        case = Case(graph(nodes, used, outputs), {k: feeds[k] for k in used})
        found[f"{name}_s"] = case.least_s()
        if name == "copies":
            events = case.events()[-4:]
            found["events_us"] = {e["args"]["op_name"]: e["dur"] for e in events}
    return found


def case_limit() -> dict[str, Any]:
    """`gpu_mem_limit` on both sides of what a graph needs; whether pinned memory counts."""
    nodes = [h.make_node("Neg", ["x"], ["a"]), h.make_node("Exp", ["a"], ["b"])]
    nodes += [h.make_node("Add", ["a", "b"], ["c"]), _sum("c", "y")]
    model = graph(nodes, _X, ["y"])
    found: dict[str, Any] = {}
    # x, a, b, c: four buffers, and a few KiB for the sum
    for buffers in (3, 3.9, 4.1):
        try:
            Case(
                model,
                {"x": square()},
                bound=False,
                settings={"gpu_mem_limit": str(int(buffers * BIG))},
            ).run()
            found[f"{buffers} buffers"] = "runs"
        except Exception as error:
            found[f"{buffers} buffers"] = str(error)[-400:]
    # two copies out of 64 MiB each are alive on the host at once
    nodes = [h.make_node("Neg", ["x"], ["a"])]
    nodes += [
        h.make_node("MemcpyToHost", ["a"], [f"h{i}"], f"out{i}", __planner=str(i)) for i in range(4)
    ]
    nodes += [h.make_node("Exp", ["a"], ["b"]), _sum("b", "y")]
    nodes += [h.make_node("Size", [f"h{i}"], [f"s{i}"], f"anchor{i}") for i in range(4)]
    nodes += [h.make_node("Max", [f"s{i}" for i in range(4)], ["total"])]
    try:
        case = Case(
            graph(nodes, _X, ["y", "total"]),
            {"x": square()},
            bound=False,
            settings={"gpu_mem_limit": str(int(3.1 * BIG))},
        )
        case.run()
        found["256 MiB pinned beside 3 buffers, limit of 3.1"] = "runs"
    except Exception as error:
        found["256 MiB pinned beside 3 buffers, limit of 3.1"] = str(error)[-400:]
    return found


def case_cuda_graph() -> dict[str, Any]:
    """`enable_cuda_graph` with and without a copy in the model."""
    found: dict[str, Any] = {}
    for name in ("no copies", "copies"):
        nodes = [h.make_node("Neg", ["x"], ["a"])]
        value = "a"
        if name == "copies":
            nodes += [
                h.make_node("MemcpyToHost", ["a"], ["host"], "out"),
                h.make_node("MemcpyFromHost", ["host"], ["back"], "in"),
            ]
            value = "back"
        try:
            case = Case(
                graph([*nodes, _sum(value, "y")], _X, ["y"]),
                {"x": square()},
                settings={"enable_cuda_graph": "1"},
            )
            value_ort = ort.OrtValue.ortvalue_from_numpy(np.zeros((), np.float32), "cuda", 0)
            case.binding.bind_ortvalue_output("y", value_ort)
            for _ in range(3):
                case.session.run_with_iobinding(case.binding)
            found[name] = "runs"
        except Exception as error:
            found[name] = str(error)[-400:]
    return found


def case_same_bits(search: str) -> dict[str, Any]:
    """Whether several sessions with one convolution, forward and backward-like, give the same bits."""
    random = np.random.default_rng(0)
    x = random.standard_normal((32, 64, 56, 56), dtype=np.float32)
    w = random.standard_normal((128, 64, 3, 3), dtype=np.float32)
    nodes = [
        h.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        h.make_node("ConvTranspose", ["a", "w"], ["b"], pads=[1, 1, 1, 1]),
        h.make_node("MatMul", ["b", "m"], ["c"]),
    ]
    model = graph(
        nodes,
        {"x": (T.FLOAT, list(x.shape)), "w": (T.FLOAT, list(w.shape))},
        ["a", "b", "c"],
        {"m": random.standard_normal((56, 56), dtype=np.float32)},
    )
    kinds: list[set[bytes]] = [set(), set(), set()]
    times, taken = [], []
    for _ in range(4):
        case = Case(model, {"x": x, "w": w}, settings={"cudnn_conv_algo_search": search})
        before = used_bytes()
        case.run()
        taken.append((used_bytes() - before) / MIB)
        for _ in range(2):
            for kind, array in zip(kinds, case.run(), strict=True):
                kind.add(array.tobytes())
        times.append(case.least_s(5))
        del case
    return {
        "search": search,
        "different": [len(kind) for kind in kinds],
        "least_s": times,
        "taken_mib": taken,
        "buffers_mib": [array.nbytes / MIB for array in (x, w)] + [32 * 128 * 56 * 56 * 4 / MIB],
    }


_STEADY: dict[str, tuple[str, list[list[int]], dict[str, Any]]] = {
    "MatMul": ("MatMul", [[2048, 4096], [4096, 1024]], {}),
    "MatMul, batched": ("MatMul", [[96, 256, 64], [96, 64, 256]], {}),
    "Gemm, both turned": ("Gemm", [[8192, 1024], [512, 8192]], {"transA": 1, "transB": 1}),
    "Gemm, long": ("Gemm", [[8192, 64], [8192, 64]], {"transA": 1}),
    "Conv": ("Conv", [[32, 64, 56, 56], [64, 64, 3, 3]], {"pads": [1, 1, 1, 1]}),
    "Conv, large kernel": ("Conv", [[64, 32, 58, 58], [64, 32, 56, 56]], {}),
    "ConvTranspose": ("ConvTranspose", [[32, 64, 28, 28], [64, 64, 3, 3]], {"strides": [2, 2]}),
    "ReduceSum, first": ("ReduceSum", [[8192, 1024]], {"axes": [0]}),
    "ReduceSum, first two": ("ReduceSum", [[8, 1024, 1024]], {"axes": [0, 1]}),
    "ReduceSum, first of three": ("ReduceSum", [[8, 1024, 1024]], {"axes": [0]}),
    "ReduceSum, last": ("ReduceSum", [[8192, 1024]], {"axes": [1]}),
    "ReduceSum, middle": ("ReduceSum", [[64, 256, 256]], {"axes": [1]}),
    "ReduceSum, all but the second": ("ReduceSum", [[32, 64, 56, 56]], {"axes": [0, 2, 3]}),
    "ReduceSum, a row": ("ReduceSum", [[8192]], {"axes": [0]}),
    "ReduceSum, all": ("ReduceSum", [[4096, 4096]], {}),
    "ReduceMean, first": ("ReduceMean", [[8192, 1024]], {"axes": [0]}),
    "ReduceMean, last": ("ReduceMean", [[8192, 1024]], {"axes": [1]}),
    "ReduceMean, all": ("ReduceMean", [[4096, 4096]], {}),
    "ReduceMean, all but the second": ("ReduceMean", [[32, 64, 56, 56]], {"axes": [0, 2, 3]}),
    "ReduceSumSquare, first": ("ReduceSumSquare", [[8192, 1024]], {"axes": [0]}),
    "ReduceL2, all": ("ReduceL2", [[4096, 4096]], {}),
    "ReduceMax, first": ("ReduceMax", [[8192, 1024]], {"axes": [0]}),
    "ReduceLogSumExp, last": ("ReduceLogSumExp", [[8192, 1024]], {"axes": [1]}),
    "ReduceProd, first": ("ReduceProd", [[8192, 64]], {"axes": [0]}),
    "Softmax": ("Softmax", [[8192, 1024]], {}),
    "LogSoftmax": ("LogSoftmax", [[1024, 50257]], {}),
    "LayerNormalization": ("LayerNormalization", [[8192, 1024], [1024], [1024]], {}),
    "BatchNormalization": (
        "BatchNormalization",
        [[32, 64, 56, 56], [64], [64], [64], [64]],
        {"training_mode": 1},
    ),
    "GlobalAveragePool": ("GlobalAveragePool", [[32, 512, 14, 14]], {}),
    "AveragePool": ("AveragePool", [[32, 64, 56, 56]], {"kernel_shape": [2, 2]}),
    "CumSum": ("CumSum", [[64, 4096]], {}),
    "Einsum": ("Einsum", [[64, 128, 64], [64, 128, 64]], {"equation": "bij,bik->jk"}),
    "ScatterElements, add": ("ScatterElements", [[1024, 512], [4096, 512]], {"reduction": "add"}),
    "ScatterND, add": ("ScatterND", [[1024, 512], [4096, 512]], {"reduction": "add"}),
    "ScatterND": ("ScatterND", [[1024, 512], [1024, 512]], {}),
    "Gelu": ("Gelu", [[4096, 1024]], {}),
}
"""Operators by case: their type, shapes of what they read, and attributes (`axes` as an input)."""


def case_steady(name: str) -> dict[str, Any]:
    """In how many ways the bits of an operator's outputs come out: 30 runs of one session, one of two
    others."""
    op, shapes, attributes = _STEADY[name]
    random = np.random.default_rng(0)
    feeds = {f"x{i}": random.standard_normal(s, dtype=np.float32) for i, s in enumerate(shapes)}
    if op == "BatchNormalization":
        feeds["x4"] = np.abs(feeds["x4"])
    inputs = {name: (T.FLOAT, list(array.shape)) for name, array in feeds.items()}
    names, constants = list(feeds), {}
    attributes = dict(attributes)
    if "axes" in attributes:
        constants["axes"] = np.array(attributes.pop("axes"), np.int64)
        names.append("axes")
    if op == "CumSum":
        constants["axis"] = np.array(1, np.int64)
        names.append("axis")
    if op.startswith("Scatter"):
        rows, columns = shapes[1]
        index = np.sort(random.integers(0, shapes[0][0], rows))
        if not attributes:
            index = random.permutation(rows)
        of_elements = op == "ScatterElements"
        constants["i"] = np.repeat(index[:, None], columns, 1) if of_elements else index[:, None]
        names.insert(1, "i")
    outputs = ["y", "mean", "var"][: 3 if op == "BatchNormalization" else 1]
    model = graph([h.make_node(op, names, outputs, "op", **attributes)], inputs, outputs, constants)
    found: list[list[bytes]] = []
    for runs in (30, 1, 1):
        case = Case(model, feeds)
        found.append([case.run()[0].tobytes() for _ in range(runs)])
        provider = case.events()[0]["args"]["provider"]
        del case
    return {
        "steady": name,
        "provider": provider,
        "in_a_session": len(set(found[0])),
        "in_all": len({bits for runs in found for bits in runs}),
    }


CASES: dict[str, tuple[Callable[..., dict[str, Any]], list[tuple[str, ...]]]] = {
    "profile": (case_profile, [()]),
    "size": (case_size, [()]),
    "feeds": (case_feeds, [()]),
    "copies": (case_copies, [()]),
    "limit": (case_limit, [()]),
    "cuda_graph": (case_cuda_graph, [()]),
    "same_bits": (case_same_bits, [("EXHAUSTIVE",), ("HEURISTIC",), ("DEFAULT",)]),
    "steady": (case_steady, [(name,) for name in _STEADY]),
    "inplace": (case_inplace, [(op,) for op in _UNARY]),
}


def _worker(names: Sequence[str]) -> None:
    """Cases in one process, a line of JSON each."""
    sessions.check_provider(CUDA)
    ort.set_default_logger_severity(3)
    warm = Case(graph([_sum("x", "y")], _X, ["y"]), {"x": square()})  # context, cuBLAS, cuDNN
    warm.run()
    for name in names:
        function, calls = CASES[name]
        for call in calls:
            try:
                found = function(*call)
            except Exception as error:
                found = {"error": f"{type(error).__name__}: {error}"[:500], "call": list(call)}
            print(json.dumps({"case": name, **found}, default=str), flush=True)


def main() -> int:
    """Run the cases, write what they found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where to write")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        _worker(options.cases)
        return 0
    rows: list[dict[str, Any]] = []
    for name in options.cases:
        command = [sys.executable, "-m", "reports.cuda.facts", "--worker", "--cases", name]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
        found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        rows += found or [{"case": name, "error": done.stderr[-1500:]}]
        for row in found or rows[-1:]:
            print(json.dumps(row)[:1500], flush=True)
    path = options.folder / "cuda_facts.json"
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    rows = [row for row in before if row["case"] not in options.cases] + rows
    rows.sort(key=lambda row: list(CASES).index(row["case"]))
    path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
