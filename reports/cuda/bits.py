"""Whether sessions of one model give the same bits on a CUDA device, operator by operator."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto as T
from onnx import helper as h

from reports.cuda.cases import MIB, Case, graph, used_bytes


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


STEADY: dict[str, tuple[str, list[list[int]], dict[str, Any]]] = {
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
    op, shapes, attributes = STEADY[name]
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
