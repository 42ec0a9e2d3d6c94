"""Graphs in float16, which the CPU runs between casts: what is planned rounds where a session of the file
does, and so do sessions of what is written, however often it is loaded."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from planner import optimize
from planner.errors import InfeasibleBudgetError
from planner.onnxio.load import load_model
from planner.runtime.optimizers.normalize import normalize, normalize_ahead, optimize_file

SIZE = 512

HALF_OPS = ("Exp", "Sin", "Tanh", "Neg", "Mul", "Add")
"""Without a kernel in float16 on the CPU, most of them."""

LEVELS = (
    ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
)


def mixed(rng: random.Random, count: int) -> onnx.ModelProto:
    """A graph of random operators in either type, with casts between them as autocast writes them, and
    two in a row as well."""
    held: dict[int, list[str]] = {T.FLOAT: ["x"], T.FLOAT16: []}
    nodes: list[onnx.NodeProto] = []

    def add(op_type: str, operands: list[str], kind: int, **attributes: int) -> str:
        name = f"{op_type.lower()}_{len(nodes)}"
        nodes.append(h.make_node(op_type, operands, [name], name, **attributes))
        held[kind].append(name)
        return name

    def cast(kind: int) -> None:
        other = T.FLOAT if kind == T.FLOAT16 else T.FLOAT16
        if held[other]:
            name = add("Cast", [rng.choice(held[other])], kind, to=kind)
            if rng.random() < 0.4:
                add("Cast", [name], other, to=other)

    for _ in range(count):
        kind = rng.choice((T.FLOAT, T.FLOAT16))
        if rng.random() < 0.4 or not held[kind]:
            cast(kind)
        else:
            op_type = rng.choice(HALF_OPS)
            arity = 2 if op_type in ("Mul", "Add") else 1
            add(op_type, [rng.choice(held[kind][-4:]) for _ in range(arity)], kind)
    read = {name for node in nodes for name in node.input}
    kinds = {name: kind for kind, names in held.items() for name in names}
    ends = [name for name in kinds if name not in read and name != "x"]
    outputs = [h.make_tensor_value_info(name, kinds[name], [SIZE]) for name in ends]
    graph = h.make_graph(nodes, "g", [h.make_tensor_value_info("x", T.FLOAT, [SIZE])], outputs)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9)


X = np.random.default_rng(0).standard_normal(SIZE).astype(np.float32)


def bits(path: Path, level: ort.GraphOptimizationLevel = LEVELS[-1]) -> list[bytes]:
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 3
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    found = session.run(None, {i.name: X for i in session.get_inputs()})
    return [np.asarray(array).tobytes() for array in found]


@pytest.mark.parametrize("seed", range(12))
def test_what_is_planned_rounds_as_a_session_does(seed: int, tmp_path: Path) -> None:
    source, written = tmp_path / "m.onnx", tmp_path / "written.onnx"
    onnx.save(mixed(random.Random(seed), 40), source)
    optimize_file(source, written, external=False, level="all")
    loaded = load_model(source)
    ahead = normalize_ahead(loaded, written)
    confirmed = ahead.confirmed() if ahead.confirmed else None
    for model in (normalize(loaded), (confirmed or ahead).model):
        path = tmp_path / "normalized.onnx"
        ir.save(model, path)
        assert all(bits(path, level) == bits(source) for level in LEVELS)


def test_a_session_of_what_a_session_wrote_rounds_less(tmp_path: Path) -> None:
    """Else the others here would show nothing."""
    differ = 0
    for seed in range(12):
        source, written = tmp_path / f"{seed}.onnx", tmp_path / f"{seed}.written.onnx"
        onnx.save(mixed(random.Random(seed), 40), source)
        optimize_file(source, written, external=False, level="all")
        differ += bits(source) != bits(written)
    assert differ >= 2


@pytest.mark.parametrize("seed", range(4))
def test_a_plan_keeps_the_bits(seed: int, tmp_path: Path) -> None:
    source, output = tmp_path / "m.onnx", tmp_path / "o.onnx"
    onnx.save(mixed(random.Random(seed), 60), source)
    for budget in ("100%", "75%"):
        try:
            found = optimize(source, budget=budget, output=output, budget_of="live",
                             time_limit_s=1, strict=True, force=True, verify=not seed)  # fmt: skip
        except InfeasibleBudgetError:
            continue
        assert seed or (found.verification is not None and found.verification.passed)
        assert bits(output) == bits(source)
