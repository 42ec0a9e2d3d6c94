"""What ONNX Runtime does on a CUDA device: `python -m reports.cuda.facts`.

Facts on which plans for CUDA rest, each measured by a small graph made for it: whether `Size` of a tensor
on the device copies it, which kernels write over their input, when a fed tensor is copied, how fast
copies are and whether they overlap, what `gpu_mem_limit` bounds, and whether sessions of one model give
the same bits. Each case is a process of its own. Writes `cuda_facts.json`, the cases that
were asked for; `python -m reports.cuda` makes the page.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import TensorProto as T
from onnx import helper as h

from planner.runtime.device import sessions
from planner.targets import CUDA
from reports.cuda.bits import STEADY, case_same_bits, case_steady
from reports.cuda.cases import BIG, MIB, SIDE, SQUARE, Case, Node, graph, square, summed, used_bytes

FOLDER = Path(__file__).parents[1]


def case_profile() -> dict[str, Any]:
    """What a profile says of each node on the device."""
    case = Case(
        graph([h.make_node("Neg", ["x"], ["a"]), summed("a", "y")], SQUARE, ["y"]), {"x": square()}
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
        case = Case(graph([*nodes, summed("a8", "y")], SQUARE, ["y"]), {"x": square()})
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
        [summed("b", "y")]
        if op != "Cast"
        else [h.make_node("Cast", ["b"], ["d"], to=T.FLOAT), summed("d", "y")]
    )
    model = graph([h.make_node("Neg", ["x"], ["a"]), *nodes, *reduce], SQUARE, ["y"], constants)
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
            summed("b", "first"),
        ]
        value = "x"
        if "copied" in how:
            # first in the file is last of what a node reads (`planner.order`)
            nodes.insert(0, h.make_node("MemcpyFromHost", ["x"], ["xd"], "in"))
            value = "xd"
        nodes += [
            h.make_node("Mul", [value, "first"], ["c"]),  # not before the first part is done
            summed("c", "y"),
        ]
        constants = {"shape": np.array([SIDE, SIDE], np.int64)}
        inputs: dict[str, tuple[int, list[int]]] = {"z": (T.FLOAT, [1, SIDE])}
        feeds = {"z": small}
        if how.startswith("fed"):
            inputs |= SQUARE
            feeds["x"] = square()
        else:
            constants["x"] = square()
        model = graph(
            nodes, inputs, ["y"], constants, overridable=["x"] if "overridable" in how else []
        )
        before = None
        try:
            warm = Case(graph([summed("z", "y")], {"z": (T.FLOAT, [1, SIDE])}, ["y"]), {"z": small})
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
        ("products", [*products, summed("p3", "y")], ["y"]),
        ("copies", [*copies, summed("back", "z")], ["z"]),
        ("both", [*copies, *products, summed("p3", "y"), summed("back", "z")], ["y", "z"]),
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
    nodes += [h.make_node("Add", ["a", "b"], ["c"]), summed("c", "y")]
    model = graph(nodes, SQUARE, ["y"])
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
    nodes += [h.make_node("Exp", ["a"], ["b"]), summed("b", "y")]
    nodes += [h.make_node("Size", [f"h{i}"], [f"s{i}"], f"anchor{i}") for i in range(4)]
    nodes += [h.make_node("Max", [f"s{i}" for i in range(4)], ["total"])]
    try:
        case = Case(
            graph(nodes, SQUARE, ["y", "total"]),
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
                graph([*nodes, summed(value, "y")], SQUARE, ["y"]),
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


CASES: dict[str, tuple[Callable[..., dict[str, Any]], list[tuple[str, ...]]]] = {
    "profile": (case_profile, [()]),
    "size": (case_size, [()]),
    "feeds": (case_feeds, [()]),
    "copies": (case_copies, [()]),
    "limit": (case_limit, [()]),
    "cuda_graph": (case_cuda_graph, [()]),
    "same_bits": (case_same_bits, [("EXHAUSTIVE",), ("HEURISTIC",), ("DEFAULT",)]),
    "steady": (case_steady, [(name,) for name in STEADY]),
    "inplace": (case_inplace, [(op,) for op in _UNARY]),
}


def _worker(names: Sequence[str]) -> None:
    """Cases in one process, a line of JSON each."""
    sessions.check_provider(CUDA)
    ort.set_default_logger_severity(3)
    warm = Case(graph([summed("x", "y")], SQUARE, ["y"]), {"x": square()})  # context, cuBLAS, cuDNN
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
