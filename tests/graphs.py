"""Random ONNX graphs and problems for property tests, and small helpers to run them."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from hypothesis import strategies as st
from onnx import TensorProto as T
from onnx import helper as h

from planner.bound.instants import min_peak_bound
from planner.formulate import Allowed, Formulation, OpCosts, formulate
from planner.graph.model import TrainingGraph
from planner.graph.schedule import default_order
from planner.pipeline.prepare.graphs import analysed_graph
from planner.plan.decisions import Choice, Decisions
from planner.plan.problem import Action, ActionKind, PlanOp, PlanTensor, Problem
from planner.simulate.simulate import simulate

SIDE = 8
_KINDS = ("Sigmoid", "Tanh", "Relu", "Exp", "Add", "Mul", "MatMul", "Softmax", "Split", "Reshape")


# Strategies that draws share: to make one takes longer than to draw from it.
_SIZES = st.integers(1, 20)
_MICROSECONDS = st.integers(1, 9)
_OUTPUTS = st.integers(1, 2)
_WORKSPACES = st.sampled_from([0, 0, 3])
_ONE_IN_EIGHT = st.integers(0, 7)
_ONE_IN_SIX = st.integers(0, 5)


@functools.cache
def _some_of(count: int, least: int) -> st.SearchStrategy[set[int]]:
    """`least` to three of `range(count)`."""
    return st.sets(st.integers(0, count - 1), min_size=least, max_size=3)


@functools.lru_cache(maxsize=None, typed=True)  # a Choice equals its number
def _one_of(*choices: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(choices)


@st.composite
def onnx_graphs(draw: st.DrawFn, max_nodes: int = 24) -> onnx.ModelProto:
    """A random graph of [SIDE, SIDE] tensors with views, in-place candidates and two-output nodes;
    every value is read by a node or is a graph output."""
    values = ["x", "w"]
    nodes: list[onnx.NodeProto] = []
    used: set[str] = set()
    for i in range(draw(st.integers(3, max_nodes))):
        kind = draw(_one_of(*_KINDS))
        recent = values[-6:]
        a, b = draw(_one_of(*recent)), draw(_one_of(*values))
        name = f"n{i}"
        if kind in ("Add", "Mul", "MatMul"):
            nodes.append(h.make_node(kind, [a, b], [f"v{i}"], name=name))
            used.update((a, b))
            values.append(f"v{i}")
        elif kind == "Split":
            nodes.append(
                h.make_node(kind, [a], [f"s{i}", f"t{i}"], name=name, axis=1, num_outputs=2)
            )
            nodes.append(h.make_node("Concat", [f"t{i}", f"s{i}"], [f"v{i}"], name=f"c{i}", axis=1))
            used.update((a, f"s{i}", f"t{i}"))
            values.append(f"v{i}")
        elif kind == "Reshape":
            nodes.append(h.make_node(kind, [a, "flat"], [f"r{i}"], name=name))
            nodes.append(h.make_node("Neg", [f"r{i}"], [f"g{i}"], name=f"g{i}_node"))
            nodes.append(h.make_node(kind, [f"g{i}", "square"], [f"v{i}"], name=f"b{i}"))
            used.update((a, f"r{i}", f"g{i}"))
            values.append(f"v{i}")
        else:
            nodes.append(h.make_node(kind, [a], [f"v{i}"], name=name))
            used.add(a)
            values.append(f"v{i}")
    outputs = [v for v in values[2:] if v not in used] or [values[-1]]
    extra = draw(_one_of(*values[2:]))
    outputs = sorted({*outputs, extra})
    info = [h.make_tensor_value_info(o, T.FLOAT, [SIDE, SIDE]) for o in outputs]
    inputs = [h.make_tensor_value_info(n, T.FLOAT, [SIDE, SIDE]) for n in ("x", "w")]
    shapes = [
        h.make_tensor("flat", T.INT64, [1], [SIDE * SIDE]),
        h.make_tensor("square", T.INT64, [2], [SIDE, SIDE]),
    ]
    graph = h.make_graph(nodes, "random", inputs, info, shapes)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)


def feeds_for(seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs of a random graph."""
    rng = np.random.default_rng(seed)
    return {n: rng.standard_normal((SIDE, SIDE)).astype(np.float32) * 0.1 for n in ("x", "w")}


def graph_of(proto: onnx.ModelProto) -> tuple[ir.Model, TrainingGraph]:
    """The model and its training graph."""
    model = ir.from_proto(proto)
    return model, analysed_graph(model, {})


def formulation_of(graph: TrainingGraph) -> Formulation:
    """In ONNX Runtime's default order, unit durations, no capacity limit, swaps allowed."""
    return formulate(
        graph,
        default_order(graph),
        OpCosts(duration_us=[1.0] * len(graph.operations)),
        allowed=Allowed(swap_out_bytes_per_s=1e9, swap_in_bytes_per_s=1e9),
    )


@st.composite
def decisions_for(draw: st.DrawFn, problem: Problem) -> Decisions:
    """Any decisions: drop, swap or keep in each gap, extended and released at will."""
    gaps = {}
    for t, tensor in enumerate(problem.tensors):
        for gap in range(len(tensor.uses)):
            choices: list[Choice | None] = [None, None]
            if problem.allow_swap and tensor.swappable:
                choices.append(Choice.SWAP)
            if problem.allow_recompute and problem.ops[tensor.producer].recomputable:
                choices.append(Choice.DROP)
            choice = draw(_one_of(*choices))
            if choice is not None and not (tensor.to_end and choice is Choice.DROP):
                gaps[t, gap] = choice
    extended = draw(_some_of(len(problem.tensors), 0))
    decided = sorted(gaps)
    released = {decided[i] for i in draw(_some_of(len(gaps), 0))} if gaps else set()
    return Decisions(gaps=gaps, extended=frozenset(extended), released=frozenset(released))


@st.composite
def problems(draw: st.DrawFn, max_ops: int = 12, swaps: bool = True) -> Problem:
    """A random planning problem: a chain with skips, some two-output and fixed operations, some
    outputs that may be written in place, some tensors that stay to the end or are not swappable."""
    count = draw(st.integers(3, max_ops))
    ops: list[PlanOp] = []
    uses: list[list[int]] = []
    producer: list[int] = []
    size: list[int] = []
    stays: list[bool] = []
    for i in range(count):
        reads = {len(uses) - 1, *draw(_some_of(len(uses), 1))} if uses else set()
        for t in reads:
            uses[t].append(i)
        made = draw(_OUTPUTS) if i else 1
        outputs = tuple(range(len(uses), len(uses) + made))
        uses.extend([] for _ in range(made))
        producer.extend([i] * made)
        size.extend(draw(_SIZES) for _ in outputs)
        stays.extend(draw(_ONE_IN_EIGHT) == 0 for _ in outputs)
        inplace: tuple[tuple[int, int], ...] = ()
        source = draw(_one_of(None, None, *sorted(reads)))
        if source is not None and not stays[source]:
            size[outputs[0]] = size[source]
            inplace = ((source, outputs[0]),)
        ops.append(
            PlanOp(
                name=f"op{i}",
                duration_us=float(draw(_MICROSECONDS)),
                inputs=tuple(sorted(reads)),
                outputs=outputs,
                workspace_bytes=draw(_WORKSPACES),
                recomputable=draw(_ONE_IN_SIX) > 0,
                inplace=inplace,
            )
        )
    tensors = tuple(
        PlanTensor(
            name=f"t{t}",
            bytes=size[t],
            producer=producer[t],
            uses=tuple(uses[t]),
            to_end=stays[t] or not uses[t],
            swappable=draw(_ONE_IN_SIX) > 0,
            host_copy=draw(_ONE_IN_EIGHT) == 0,
        )
        for t in range(len(uses))
    )
    bandwidth = 5e6 if swaps else 0.0
    return Problem(
        name="random",
        ops=tuple(ops),
        tensors=tensors,
        fixed_bytes=5,
        capacity_bytes=1 << 40,
        swap_out_bytes_per_s=bandwidth,
        swap_in_bytes_per_s=bandwidth,
    )


def there_and_back(count: int) -> Problem:
    """A chain of `count` operations and its backward pass, of uneven sizes and times: too hard to
    be solved to the end in a second."""
    draw = random.Random(0)
    last = 2 * count - 1
    ops, tensors = [], []
    for i in range(2 * count):
        inputs = {i - 1} if i else set()
        if i >= count:
            inputs.add(last - i)
        duration = draw.randint(5, 99) / 7
        ops.append(
            PlanOp(name=f"op{i}", duration_us=duration, inputs=tuple(sorted(inputs)), outputs=(i,))
        )
    for i in range(2 * count):
        uses = tuple(u for u, op in enumerate(ops) if i in op.inputs)
        size = draw.randint(50, 999)
        tensors.append(PlanTensor(name=f"t{i}", bytes=size, producer=i, uses=uses, to_end=not uses))
    return Problem(
        name="there and back",
        ops=tuple(ops),
        tensors=tuple(tensors),
        fixed_bytes=0,
        capacity_bytes=1 << 40,
        swap_out_bytes_per_s=3e7,
        swap_in_bytes_per_s=4e7,
    )


def base_actions(problem: Problem) -> list[Action]:
    """Every operation once, in base order."""
    return [Action(kind=ActionKind.RUN, target=i) for i in range(len(problem.ops))]


def at_capacity(problem: Problem, capacity: int) -> Problem:
    """The problem with another capacity."""
    return replace(problem, capacity_bytes=capacity)


def between(problem: Problem, share: float) -> Problem:
    """Capacity between the one-operation bound (0) and the peak of the base order (1)."""
    low, _ = min_peak_bound(problem)
    high = simulate(problem, base_actions(problem)).peak_bytes
    return at_capacity(problem, low + int(share * (high - low)))


LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")


def check_runs_as_planned(
    path: str,
    order: Sequence[str],
    expected: Mapping[str, np.ndarray],
    folder: Path,
    feeds: dict[str, np.ndarray] | None = None,
) -> None:
    """A rewritten random graph runs in its planned order and gives the same bits, at every level.

    Args:
        feeds: where they are not those of a random graph.
    """
    for level in LEVELS:
        ran, results = run_on_ort(path, feeds or feeds_for(), folder, level)
        assert tuple(ran) == order, level
        assert list(results) == list(expected)
        for name, value in expected.items():
            assert results[name].tobytes() == value.tobytes(), (level, name)


def run_on_ort(
    model: bytes | str, feeds: dict[str, np.ndarray], folder: Path, level: str = "ORT_ENABLE_ALL"
) -> tuple[list[str], dict[str, np.ndarray]]:
    """(names of the nodes in executed order, outputs by name), under default options otherwise; copies
    beside the operations under watch."""
    import onnxruntime as ort

    from planner.runtime.swapping import CHECK_SWAPS, LINK_JITTER_US, register_for

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry(CHECK_SWAPS, "1")
    options.add_session_config_entry(LINK_JITTER_US, "300")
    if isinstance(model, str):
        register_for(options, Path(model))
    options.intra_op_num_threads = 1
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    results = dict(zip(names, session.run(None, feeds), strict=True))
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    suffix = "_kernel_time"
    order = [
        e["name"].removesuffix(suffix)
        for e in events
        if e.get("cat") == "Node" and e["name"].endswith(suffix)
    ]
    return order, results
