"""Control flow and sizes that depend on data: planned around, bounded, and checked in the run."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from planner import analyze, apply, optimize, verify
from planner.errors import ModelError, UsageError, VerificationError
from planner.results import OptimizeResult
from planner.runtime.feeds.inputs import make_inputs
from planner.runtime.memory.within import INNER_KEY
from planner.runtime.profiled import profile

SIDE = 128
DEPTH = 8
LEVELS = ("DISABLE_ALL", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE_ALL")


def value(name: str, shape: list[Any], kind: int = T.FLOAT) -> onnx.ValueInfoProto:
    return h.make_tensor_value_info(name, kind, shape)


def node(op_type: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """A node of names with spaces between them, called as its first output; `-` is an absent input."""
    names = [("" if name == "-" else name) for name in inputs.split()]
    made = outputs.split()
    return h.make_node(op_type, names, made, name=f"n_{made[0]}", **attributes)


def save(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    **arrays: np.ndarray,
) -> Path:
    held = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = h.make_graph(nodes, "g", inputs, outputs, held)
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8), path)
    return path


def there(source: str = "x") -> list[onnx.NodeProto]:
    """A chain as a forward pass has it: v0, v1, ..."""
    names = [source, *(f"v{i}" for i in range(DEPTH))]
    return [node("Sin", a, b) for a, b in itertools.pairwise(names)]


def back(source: str) -> list[onnx.NodeProto]:
    """A chain as a backward pass has it, which reads the other's values in turn, to the output y."""
    found = []
    for i in reversed(range(DEPTH)):
        found.append(node("Mul", f"{source} v{i}", f"d{i}"))
        source = f"d{i}"
    return [*found, node("ReduceMean", source, "y", keepdims=0)]


IMAGE = [SIDE, SIDE]


def with_if(path: Path) -> Path:
    """Branches that capture values of the forward pass, with names that occur in both."""
    then = h.make_graph(
        [node("Exp", "v3", "t"), node("Mul", "t v5", "a")], "then", [], [value("a", IMAGE)]
    )
    other = h.make_graph(
        [node("Tanh", "v3", "t"), node("Add", "t v2", "u"), node("Exp", "u", "b")],
        "else",
        [],
        [value("b", IMAGE)],
    )
    branch = node("If", "c", "w", then_branch=then, else_branch=other)
    inputs = [value("x", IMAGE), value("c", [], T.BOOL)]
    return save(path, [*there(), branch, *back("w")], inputs, [value("y", [])])


def loop_body() -> onnx.GraphProto:
    return h.make_graph(
        [
            node("Identity", "go", "go_on"),
            node("Mul", "s v2", "m"),
            node("Tanh", "m", "s_next"),
            node("ReduceMean", "s_next", "slice", axes=[1], keepdims=0),
        ],
        "body",
        [value("i", [], T.INT64), value("go", [], T.BOOL), value("s", IMAGE)],
        [value("go_on", [], T.BOOL), value("s_next", IMAGE), value("slice", [SIDE])],
    )


def with_loop(path: Path, *, trips: int | None = 5) -> Path:
    """A state that is carried, and slices that are collected; trips are an input where not given."""
    nodes = [
        *there(),
        node("Loop", "n - v7", "w s_all", body=loop_body()),
        *back("w"),
        node("ReduceMean", "s_all", "z", keepdims=0),
    ]
    inputs = [value("x", IMAGE), *([value("n", [], T.INT64)] if trips is None else [])]
    arrays = {} if trips is None else {"n": np.array(trips, np.int64)}
    return save(path, nodes, inputs, [value("y", []), value("z", [])], **arrays)


def with_scan(path: Path) -> Path:
    """A recurrent network over the first axis, its weights of the outer graph."""
    rng = np.random.default_rng(0)
    body = h.make_graph(
        [
            node("MatMul", "hp W", "m"),
            node("Add", "m xt", "a"),
            node("Tanh", "a", "hn"),
            node("Identity", "hn", "ho"),
        ],
        "step",
        [value("hp", [SIDE, 32]), value("xt", [SIDE, 32])],
        [value("hn", [SIDE, 32]), value("ho", [SIDE, 32])],
    )
    nodes = [
        *there(),
        node("Scan", "h0 v7", "hT hs", body=body, num_scan_inputs=1),
        *back("hs"),
    ]
    inputs = [value("x", [8, SIDE, 32]), value("h0", [SIDE, 32])]
    outputs = [value("y", []), value("hT", [SIDE, 32])]
    return save(path, nodes, inputs, outputs, W=rng.standard_normal((32, 32), np.float32) * 0.1)


EXPERTS, WIDTH, TOKENS = 3, 32, 256


def with_experts(path: Path) -> Path:
    """A mixture of experts: each takes the tokens that are routed to it, and its weights' gradient is
    made in a backward pass that reads what it saved."""
    rng = np.random.default_rng(1)
    arrays = {"Wg": rng.standard_normal((WIDTH, EXPERTS), np.float32), "none": np.float32(0.0)}
    nodes = [*there(), node("MatMul", "v7 Wg", "gate")]
    nodes += [node("ArgMax", "gate", "top", axis=1, keepdims=0), node("Mul", "v7 none", "sum_")]
    total, gradients = "sum_", []
    for e in range(EXPERTS):
        arrays[f"e{e}"] = np.array(e, np.int64)
        arrays[f"U{e}"] = rng.standard_normal((WIDTH, 4 * WIDTH), np.float32) * 0.1
        arrays[f"D{e}"] = rng.standard_normal((4 * WIDTH, WIDTH), np.float32) * 0.1
        nodes += [
            node("Equal", f"top e{e}", f"is{e}"),
            node("NonZero", f"is{e}", f"at{e}"),
            node("Transpose", f"at{e}", f"rows{e}", perm=[1, 0]),
            node("GatherND", f"v7 rows{e}", f"in{e}"),
            node("MatMul", f"in{e} U{e}", f"up{e}"),
            node("Tanh", f"up{e}", f"act{e}"),
            node("MatMul", f"act{e} D{e}", f"out{e}"),
            node("ScatterND", f"{total} rows{e} out{e}", f"sum{e}"),
        ]
        total = f"sum{e}"
    nodes.append(node("Mul", f"{total} v7", "g"))
    for e in reversed(range(EXPERTS)):
        nodes += [
            node("GatherND", f"g rows{e}", f"gout{e}"),
            node("Transpose", f"act{e}", f"turned{e}", perm=[1, 0]),
            node("MatMul", f"turned{e} gout{e}", f"D{e}_grad"),
        ]
        gradients.append(value(f"D{e}_grad", [4 * WIDTH, WIDTH]))
    inputs = [value("x", [TOKENS, WIDTH])]
    return save(path, [*nodes, *back("g")], inputs, [value("y", []), *gradients], **arrays)


MODELS = {
    "if": with_if,
    "loop": with_loop,
    "scan": with_scan,
    "experts": with_experts,
}


def feeds_of(path: Path) -> dict[str, np.ndarray]:
    return dict(make_inputs(path, 0, {}, None)[0])


def outputs(path: Path, feeds: dict[str, np.ndarray], level: str) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_{level}")
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return [np.asarray(a) for a in session.run(None, feeds)]


def optimized(path: Path, **more: Any) -> OptimizeResult:
    arguments: dict[str, Any] = {"budget": "75%", "swap": "none", "time_limit_s": 1.0}
    arguments |= {"verify": "thorough", **more}
    return optimize(
        path,
        output=path.with_name("planned.onnx"),
        plan_path=path.with_name("plan.json"),
        force=True,
        **arguments,
    )


def check(result: OptimizeResult, path: Path, feeds: dict[str, np.ndarray] | None = None) -> None:
    """Verified, below the original's peak, and the same bits at every level, in other runs too."""
    found = result.verification
    assert found is not None and found.passed, found
    assert all(o.identical for o in found.outputs)
    assert all(c.equal for c in found.orders) and len(found.orders) == 3
    assert all(c.live_bytes <= c.predicted_live_bytes for c in found.memory)
    assert result.after.timeline.peak_bytes < result.before.timeline.peak_bytes
    feeds = feeds or feeds_of(path)
    for level in LEVELS:
        wanted = outputs(path, feeds, level)
        for a, b in zip(wanted, outputs(result.output_path, feeds, level), strict=True):  # type: ignore[arg-type]
            assert a.dtype == b.dtype and a.tobytes() == b.tobytes()


@pytest.mark.parametrize(
    ("name", "swap"),
    [*((name, "none") for name in sorted(MODELS)), ("if", "only"), ("loop", "only")],
)
def test_planned_around_and_verified(name: str, swap: str, tmp_path: Path) -> None:
    path = MODELS[name](tmp_path / f"{name}.onnx")
    result = optimized(path, swap=swap)
    check(result, path)
    added = [n for n in onnx.load(result.output_path).graph.node if n.name not in _names(path)]  # type: ignore[arg-type]
    assert added, "the plan changes nothing"
    again = apply(path, path.with_name("plan.json"), output=path.with_name("again.onnx"))
    assert again.read_bytes() == path.with_name("planned.onnx").read_bytes()
    if name == "loop":
        planned, plan = path.with_name("planned.onnx"), path.with_name("plan.json")
        found = verify(path, planned, plan=plan, fast=True)
        assert found.passed, found.failures


def _names(path: Path) -> set[str]:
    return {n.name for n in onnx.load(path).graph.node}


def test_either_branch_gives_the_same_bits(tmp_path: Path) -> None:
    path = with_if(tmp_path / "if.onnx")
    taken, not_taken = ({**feeds_of(path), "c": np.array(flag)} for flag in (True, False))
    np.savez(tmp_path / "taken.npz", **taken)
    np.savez(tmp_path / "not.npz", **not_taken)
    result = optimized(path, inputs=tmp_path / "taken.npz")
    for feeds in (taken, not_taken):
        check(result, path, feeds)
    planned, plan = path.with_name("planned.onnx"), path.with_name("plan.json")
    assert verify(path, planned, plan=plan, inputs=tmp_path / "not.npz", fast=True).passed


@pytest.mark.parametrize("name", ["if", "loop", "scan"])
def test_bodies_hold_no_more_than_predicted(name: str, tmp_path: Path) -> None:
    """In each run of the profile, nothing that a body holds is beyond what its node is planned with."""
    path = MODELS[name](tmp_path / f"{name}.onnx")
    graph = analyze(path, time_limit_s=1).default.graph
    (op,) = (op for op in graph.operations if op.op_type in ("If", "Loop", "Scan"))
    assert {graph.tensors[t].name for t in op.inputs} >= {
        "if": {"v3", "v5", "v2"},
        "loop": {"v2"},
    }.get(name, {"W"})
    (run,) = profile(path, feeds_of(path), names=_names(path))
    (event,) = (e for e in run if e.op_type == op.op_type)
    assert sorted(e.name for e in run) == sorted(op.name for op in graph.operations)
    assert event.inner_requested is not None and event.requested_in_use is not None
    before = event.requested_in_use - (event.requested_delta or 0)
    made = sum(graph.tensors[t].bytes for t in op.outputs)
    held = event.inner_requested - before
    assert 0 < held <= op.inner_bytes + made <= held + 4 * SIDE * SIDE * 4


def test_a_loop_of_unknown_length_is_planned_as_a_run_shows_it(tmp_path: Path) -> None:
    path = with_loop(tmp_path / "loop.onnx", trips=None)
    feeds = {**feeds_of(path), "n": np.array(6)}
    np.savez(tmp_path / "six.npz", **feeds)
    result = optimized(path, inputs=tmp_path / "six.npz")
    check(result, path, feeds)
    (bound,) = result.plan.bounds
    assert (bound.name, bound.shape, bound.shown) == ("s_all", (6, SIDE), True)
    assert any("are those of one run" in line for line in result.plan.assumptions)
    feeds["n"] = np.array(9)  # as exact, whatever its length
    check(result, path, feeds)
    np.savez(tmp_path / "nine.npz", **feeds)
    found = verify(
        path,
        path.with_name("planned.onnx"),
        plan=path.with_name("plan.json"),
        inputs=tmp_path / "nine.npz",
        fast=True,
    )
    assert not found.passed
    assert any("tensor 's_all' takes" in f and "--bound" in f for f in found.failures)


@pytest.mark.parametrize("bound", [f"8x{SIDE}", 8 * SIDE, f"{8 * SIDE * 4}B"])
def test_a_bound_is_asked_for_in_three_ways(bound: str | int, tmp_path: Path) -> None:
    path = with_loop(tmp_path / "loop.onnx", trips=None)
    np.savez(tmp_path / "six.npz", **{**feeds_of(path), "n": np.array(6)})
    result = optimized(path, bounds={"s_all": bound}, inputs=tmp_path / "six.npz", verify=False)
    (found,) = result.plan.bounds
    assert (found.name, found.shape, found.shown) == ("s_all", (8, SIDE), False)
    tensor = result.before.graph.tensor_named("s_all")
    assert tensor.bytes == 8 * SIDE * 4 and tensor.unsized


def test_what_exceeds_its_bound_fails_by_name(tmp_path: Path) -> None:
    path = with_loop(tmp_path / "loop.onnx", trips=None)
    np.savez(tmp_path / "six.npz", **{**feeds_of(path), "n": np.array(6)})
    with pytest.raises(VerificationError, match=r"tensor 's_all' takes 3.00 KiB .* 2.00 KiB"):
        optimized(path, bounds={"s_all": (4, SIDE)}, inputs=tmp_path / "six.npz", verify=True)


def test_what_follows_from_a_bound_is_bounded(tmp_path: Path) -> None:
    """Of the experts' tensors no run says anything where the indices have a bound."""
    path = with_experts(tmp_path / "experts.onnx")
    bounds = {f"at{e}": TOKENS for e in range(EXPERTS)}
    result = optimized(path, bounds=bounds, verify=True)
    assert {b.name: b.shape for b in result.plan.bounds} == {n: (1, TOKENS) for n in bounds}
    graph = result.before.graph
    assert graph.tensor_named("up1").shape == (TOKENS, 4 * WIDTH)
    found = result.verification
    assert found is not None and found.passed
    assert any("are the predicted ones, which are bounds, or less" in note for note in found.notes)
    assert any("upper bounds" in line for line in result.plan.assumptions)


def test_a_body_of_unknown_size_is_as_a_run_shows_it_or_as_bounded(tmp_path: Path) -> None:
    body = h.make_graph(
        [
            node("NonZero", "v3", "at"),
            node("Cast", "at", "at_f", to=T.FLOAT),
            node("ReduceSum", "at_f", "count", keepdims=0),
            node("Mul", "count v2", "a"),
        ],
        "then",
        [],
        [value("a", IMAGE)],
    )
    other = h.make_graph([node("Exp", "v3", "b")], "else", [], [value("b", IMAGE)])
    branch = node("If", "c", "w", then_branch=body, else_branch=other)
    inputs = [value("x", IMAGE), value("c", [], T.BOOL)]
    path = save(tmp_path / "m.onnx", [*there(), branch, *back("w")], inputs, [value("y", [])])
    feeds = {**feeds_of(path), "c": np.array(True)}
    np.savez(tmp_path / "feeds.npz", **feeds)
    result = optimized(path, inputs=tmp_path / "feeds.npz", budget="90%")
    check(result, path, feeds)
    (bound,) = result.plan.bounds
    assert bound.name == "n_w" and bound.shown and bound.bytes
    result = optimized(path, inputs=tmp_path / "feeds.npz", bounds={"n_w": "400KiB"}, budget="90%")
    check(result, path, feeds)
    (made,) = (n for n in onnx.load(result.output_path).graph.node if n.op_type == "If")  # type: ignore[arg-type]
    assert {p.key: p.value for p in made.metadata_props}[INNER_KEY] == str(400 << 10)
    with pytest.raises(VerificationError, match=r"node 'n_w', with what its bodies hold, takes"):
        optimized(path, inputs=tmp_path / "feeds.npz", bounds={"n_w": "64KiB"}, verify=True)


def test_a_computed_size_is_bounded(tmp_path: Path) -> None:
    """A Range to a computed end, and what is expanded by it."""
    nodes = [
        *there(),
        node("Range", "zero n one", "r"),
        node("Cast", "r", "rf", to=T.FLOAT),
        node("Unsqueeze", "rf last", "column"),
        node("MatMul", "column row", "grid"),
        node("ReduceMean", "grid", "m", keepdims=0),
        node("Mul", "v7 m", "w"),
        *back("w"),
    ]
    arrays = {"zero": np.array(0), "one": np.array(1), "last": np.array([1])}
    row = np.ones((1, SIDE), np.float32)
    path = save(
        tmp_path / "m.onnx",
        nodes,
        [value("x", IMAGE), value("n", [], T.INT64)],
        [value("y", [])],
        row=row,
        **arrays,
    )
    np.savez(tmp_path / "n.npz", **{**feeds_of(path), "n": np.array(40)})
    result = optimized(path, bounds={"r": 64}, inputs=tmp_path / "n.npz")
    check(result, path, {**feeds_of(path), "n": np.array(40)})
    assert result.before.graph.tensor_named("grid").shape == (64, SIDE)


REFUSED = {
    "no such": ({"nothing": 3}, "no tensor of that name"),
    "near": ({"s_al": 3}, "the closest is 's_all'"),
    "known": ({"v0": 3}, r"its shape is known, 128x128"),
    "rank": ({"s_all": (3,)}, r"has the shape \?x128"),
    "node": ({"n_w": "12"}, "give bytes"),
    "text": ({"s_all": "many"}, "is not NAME=N"),
    "minus": ({"s_all": -1}, "is not between 0"),
    "unit": ({"s_all": "8x"}, "not understood"),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_a_bound_that_is_none_is_refused_by_name(case: str, tmp_path: Path) -> None:
    path = with_loop(tmp_path / "loop.onnx", trips=None)
    bounds, message = REFUSED[case]
    with pytest.raises(UsageError, match=message):
        analyze(path, bounds=bounds, time_limit_s=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "levers", [{"split": "auto"}, {"cast_saved": "fp16"}, {"micro_batch": 2}], ids=str
)
def test_levers_that_do_not_go_with_bodies(levers: dict[str, Any], tmp_path: Path) -> None:
    path = with_loop(tmp_path / "loop.onnx")
    with pytest.raises((UsageError, ModelError), match=r"--|batch"):
        optimized(path, **levers)


def test_bodies_are_planned_on_the_cpu(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"'n_w' \(Loop\).*--device cpu"):
        optimized(with_loop(tmp_path / "loop.onnx"), device="any")


def test_what_a_body_reads_has_to_be_there(tmp_path: Path) -> None:
    body = h.make_graph([node("Exp", "nowhere", "a")], "then", [], [value("a", IMAGE)])
    branch = node("If", "c", "w", then_branch=body, else_branch=body)
    inputs = [value("x", IMAGE), value("c", [], T.BOOL)]
    path = save(tmp_path / "m.onnx", [*there(), branch, *back("w")], inputs, [value("y", [])])
    with pytest.raises(ModelError, match=r"'n_w' \(If\) reads 'nowhere'"):
        analyze(path)


def test_what_bodies_read_stays_on_the_device(tmp_path: Path) -> None:
    path = with_scan(tmp_path / "scan.onnx")
    result = optimized(path, resident="host", swap="only", feeds="device")
    assert "x" in result.plan.resident and not {"W", "h0"} & {*result.plan.resident}
    check(result, path)


def test_a_branch_that_draws_random_numbers(tmp_path: Path) -> None:
    """In a body nodes keep their places, by which ONNX Runtime seeds them."""
    then = h.make_graph(
        [node("RandomNormalLike", "v3", "t"), node("Mul", "t v5", "a")],
        "t",
        [],
        [value("a", IMAGE)],
    )
    other = h.make_graph([node("Tanh", "v3", "b")], "e", [], [value("b", IMAGE)])
    branch = node("If", "c", "w", then_branch=then, else_branch=other)
    inputs = [value("x", IMAGE), value("c", [], T.BOOL)]
    path = save(tmp_path / "m.onnx", [*there(), branch, *back("w")], inputs, [value("y", [])])
    np.savez(tmp_path / "f.npz", **{**feeds_of(path), "c": np.array(True)})
    found = optimized(path, inputs=tmp_path / "f.npz").verification
    assert found is not None and found.passed, found.failures


@pytest.mark.parametrize("taken", [True, False])
def test_branches_of_two_sizes_are_planned_for_the_larger(taken: bool, tmp_path: Path) -> None:
    then = h.make_graph([node("Exp", "v3", "a")], "t", [], [value("a", IMAGE)])
    twice = h.make_graph(
        [node("Concat", "v3 v5", "b", axis=0)], "e", [], [value("b", [2 * SIDE, SIDE])]
    )
    nodes = [
        *there(),
        node("If", "c", "w", then_branch=then, else_branch=twice),
        node("ReduceMean", "w", "m", axes=[0], keepdims=1),
        *back("m"),
    ]
    inputs = [value("x", IMAGE), value("c", [], T.BOOL)]
    path = save(tmp_path / "m.onnx", nodes, inputs, [value("y", [])])
    feeds = {**feeds_of(path), "c": np.array(taken)}
    np.savez(tmp_path / "f.npz", **feeds)
    result = optimized(path, inputs=tmp_path / "f.npz")
    check(result, path, feeds)
    assert result.before.graph.tensor_named("w").shape == (2 * SIDE, SIDE)
    assert not result.plan.bounds


def test_a_state_that_grows_is_as_a_run_shows_it(tmp_path: Path) -> None:
    body = h.make_graph(
        [node("Identity", "go", "go_on"), node("Concat", "s v0", "s_next", axis=0)],
        "body",
        [value("i", [], T.INT64), value("go", [], T.BOOL), value("s", ["rows", SIDE])],
        [value("go_on", [], T.BOOL), value("s_next", ["more", SIDE])],
    )
    nodes = [
        *there(),
        node("Loop", "n - v7", "w", body=body),
        node("ReduceMean", "w", "m", axes=[0], keepdims=1),
        *back("m"),
    ]
    path = save(
        tmp_path / "m.onnx", nodes, [value("x", IMAGE)], [value("y", [])], n=np.array(3, np.int64)
    )
    result = optimized(path, budget="90%")
    check(result, path)
    shown = {b.name: b.shape or b.bytes for b in result.plan.bounds if b.shown}
    assert shown["w"] == (4 * SIDE, SIDE) and isinstance(shown["n_w"], int)


def nested(path: Path) -> Path:
    """A branch within a loop, both of which read values of the forward pass."""
    then = h.make_graph(
        [node("Exp", "s", "q"), node("Mul", "q v1", "a")], "t", [], [value("a", IMAGE)]
    )
    other = h.make_graph(
        [node("Tanh", "s", "q"), node("Mul", "q v2", "a")], "e", [], [value("a", IMAGE)]
    )
    body = h.make_graph(
        [
            node("Identity", "go", "go_on"),
            node("Greater", "i two", "c"),
            node("If", "c", "s_next", then_branch=then, else_branch=other),
        ],
        "body",
        [value("i", [], T.INT64), value("go", [], T.BOOL), value("s", IMAGE)],
        [value("go_on", [], T.BOOL), value("s_next", IMAGE)],
    )
    nodes = [*there(), node("Loop", "n - v7", "w", body=body), *back("w")]
    arrays = {"n": np.array(5), "two": np.array(2)}
    return save(path, nodes, [value("x", IMAGE)], [value("y", [])], **arrays)


def compressed(path: Path) -> Path:
    """Rows that a condition selects."""
    nodes = [
        *there(),
        node("ReduceSum", "v7 last", "s", keepdims=0),
        node("Greater", "s none", "c"),
        node("Compress", "v7 c", "u", axis=0),
        node("Exp", "u", "e"),
        node("ReduceMean", "e", "m", axes=[0], keepdims=1),
        *back("m"),
    ]
    arrays = {"last": np.array([1]), "none": np.float32(0.0)}
    return save(path, nodes, [value("x", IMAGE)], [value("y", [])], **arrays)


def distinct(path: Path) -> Path:
    """How many values there are, of many."""
    nodes = [
        *there(),
        node("Mul", "v7 ten", "t"),
        node("Round", "t", "r"),
        node("Unique", "r", "u", sorted=1),
        node("ReduceSum", "u", "m", keepdims=0),
        node("Mul", "v7 m", "w"),
        *back("w"),
    ]
    return save(path, nodes, [value("x", IMAGE)], [value("y", [])], ten=np.float32(10.0))


def until(path: Path) -> Path:
    """A loop that a condition on its state ends."""
    body = h.make_graph(
        [
            node("Mul", "s half", "s_next"),
            node("ReduceMax", "s_next", "most", keepdims=0),
            node("Greater", "most least", "go_on"),
            node("ReduceMean", "s_next", "slice", axes=[0], keepdims=1),
        ],
        "body",
        [value("i", [], T.INT64), value("go", [], T.BOOL), value("s", IMAGE)],
        [value("go_on", [], T.BOOL), value("s_next", IMAGE), value("slice", [1, SIDE])],
    )
    nodes = [
        *there(),
        node("Loop", "- true v7", "w0 all", body=body),
        node("ReduceMean", "all", "m", axes=[0, 1], keepdims=0),
        node("Add", "w0 m", "w"),
        *back("w"),
    ]
    arrays = {"half": np.float32(0.5), "least": np.float32(0.01), "true": np.array(True)}
    return save(path, nodes, [value("x", IMAGE)], [value("y", [])], **arrays)


@pytest.mark.parametrize("make", [nested, compressed, distinct, until], ids=lambda f: f.__name__)
def test_more_of_what_depends_on_data(make: Any, tmp_path: Path) -> None:
    path = make(tmp_path / "m.onnx")
    result = optimized(path, swap="auto", budget="80%")
    check(result, path)
    assert bool(result.plan.bounds) == (make is not nested)
