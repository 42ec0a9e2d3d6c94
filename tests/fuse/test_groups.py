"""Groups of random graphs: the fused model against the one that it was made of, on ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from planner.fuse.again import with_again
from planner.fuse.groups import groups_of
from planner.fuse.program import outside
from planner.fuse.rewrite import Fused, ground_of, with_fusion
from planner.graph.model import TrainingGraph
from planner.graph.schedule import default_order
from planner.targets.cpu import FUSED
from planner.targets.target import FusedKernels
from tests.fuse.graphs import Array, same_bits, session
from tests.graphs import graph_of

COLUMNS = 16
FULL = (6, COLUMNS)
UNARY = {True: ["Neg", "Abs", "Relu"], False: ["Neg", "Abs", "Relu", "Tanh", "Erf", "Sigmoid"]}


def reduced(op_type: str, values: list[str], axes: tuple[int, ...], opset: int) -> onnx.NodeProto:
    """A reduction over axes, which were attributes before opset 18, and of sums before 13."""
    source, name = values
    if opset >= (13 if op_type == "ReduceSum" else 18):
        return h.make_node(op_type, [source, "last"], [name], name=name, keepdims=1)
    return h.make_node(op_type, [source], [name], name=name, axes=axes, keepdims=1)


def drawn(
    seed: int, *, exact: bool, full: tuple[int, ...] = FULL, axes: int = 1, opset: int = 18
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A random graph of element operations, sums over rows, products, views, and shared values."""
    rng = np.random.default_rng(seed)
    nodes: list[onnx.NodeProto] = []
    row, last = (*full[:-axes], *(1,) * axes), tuple(range(-axes, 0))
    shapes: dict[str, tuple[int, ...]] = {"x": full, "y": full, "r": row, "v": (COLUMNS,)}
    fixed = {
        "half": np.array(0.5, "f4"),
        "one": np.array([1.0], "f4"),
        "last": np.array(last, "i8"),
    }
    fixed["w"] = rng.standard_normal((COLUMNS, COLUMNS)).astype("f4") / 4
    shapes |= {"half": (), "one": (1,)}
    for i in range(30):
        names, name = list(shapes), f"t{i}"
        a, b = (names[j] for j in rng.integers(0, len(names), 2))
        shape = np.broadcast_shapes(shapes[a], shapes[b])
        kind = rng.integers(0, 8)
        if kind == 0 and shapes[a] == full:
            nodes.append(h.make_node("MatMul", [a, "w"], [name], name=name))
            shape = full
        elif kind == 1 and shapes[a] == full:
            op_type = str(rng.choice(["ReduceMean", "ReduceMax", "ReduceSum"]))
            nodes.append(reduced(op_type, [a, name], last, opset))
            shape = row
        elif kind == 2:
            op_type = str(rng.choice(UNARY[exact]))
            nodes.append(h.make_node(op_type, [a], [name], name=name))
            shape = shapes[a]
        elif kind == 3:
            nodes.append(h.make_node("Less", [a, b], [f"{name}b"], name=f"{name}b"))
            nodes.append(h.make_node("Where", [f"{name}b", a, b], [name], name=name))
        else:
            op_type = str(rng.choice(["Add", "Sub", "Mul", "Max", "Min"]))
            nodes.append(h.make_node(op_type, [a, b], [name], name=name))
        shapes[name] = shape
    feeds = {n: rng.standard_normal(shapes[n]).astype("f4") for n in ("x", "y", "r", "v")}
    made = [f"t{i}" for i in range(30) if shapes[f"t{i}"] == full] or ["t29"]
    outputs = {made[-1], made[len(made) // 2], "t29"}
    info = [h.make_tensor_value_info(n, T.FLOAT, shapes[n]) for n in shapes if n.startswith("t")]
    graph = h.make_graph(
        nodes,
        "drawn",
        [h.make_tensor_value_info(n, T.FLOAT, x.shape) for n, x in feeds.items()],
        [v for v in info if v.name in outputs],
        [onnx.numpy_helper.from_array(x, n) for n, x in fixed.items()],
        value_info=[v for v in info if v.name not in outputs],
    )
    return h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=7), feeds


def model_of_infos(
    nodes: list[onnx.NodeProto],
    shapes: Mapping[str, Sequence[int]],
    fixed: Mapping[str, Array],
    *,
    dtype: int = T.FLOAT,
    outputs: Sequence[str] = (),
) -> onnx.ModelProto:
    """A model whose inputs no node makes, and whose output is the last value, or `outputs`."""
    made = {name for node in nodes for name in node.output}
    outputs = outputs or [list(shapes)[-1]]
    info = {name: h.make_tensor_value_info(name, dtype, shape) for name, shape in shapes.items()}
    graph = h.make_graph(
        nodes,
        "made",
        [info[name] for name in info if name not in made],
        [info[name] for name in outputs],
        [onnx.numpy_helper.from_array(value, name) for name, value in fixed.items()],
        value_info=[info[name] for name in info if name in made and name not in outputs],
    )
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)


def fuse(
    proto: onnx.ModelProto, *, exact: bool, kernels: FusedKernels = FUSED
) -> tuple[TrainingGraph, Fused | None]:
    model, graph = graph_of(proto)
    return graph, with_fusion(model, graph, default_order(graph), only_exact=exact, kernels=kernels)


@pytest.mark.parametrize("seed", range(40))
def test_an_exactly_fused_model_gives_the_same_bits(seed: int):
    proto, feeds = drawn(seed, exact=True)
    _, made = fuse(proto, exact=True)
    assert made is not None and made.members
    one, other = (session(p).run(None, feeds) for p in (proto, ir.to_proto(made.model)))
    assert all(map(same_bits, one, other))


@pytest.mark.parametrize("seed", range(40))
def test_any_fused_model_is_within_rounding(seed: int):
    proto, feeds = drawn(seed, exact=False)
    _, made = fuse(proto, exact=False)
    if made is None:
        pytest.skip("no two operations of this graph go together")
    assert_near(proto, ir.to_proto(made.model), feeds)


def assert_near(proto: onnx.ModelProto, fused: onnx.ModelProto, feeds: dict[str, Array]) -> None:
    one, other = (session(p).run(None, feeds) for p in (proto, fused))
    for a, b in zip(one, other, strict=True):
        assert np.array_equal(np.isnan(a), np.isnan(b))
        scale = float(np.abs(np.nan_to_num(a)).max(initial=1.0))
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3 * scale)


@pytest.mark.parametrize("opset", [12, 13, 18])
@pytest.mark.parametrize("axes", [1, 2])
def test_rows_of_two_axes_and_axes_as_attributes_are_fused(axes: int, opset: int):
    reductions = 0
    for seed in range(12):
        proto, feeds = drawn(seed, exact=False, full=(3, 4, COLUMNS), axes=axes, opset=opset)
        _, made = fuse(proto, exact=False)
        if made is None:
            continue
        programs = [node.attributes.get_string("program", "") for node in made.model.graph]
        reductions += sum(text.startswith(f"axes {axes}\n") for text in programs)
        assert_near(proto, ir.to_proto(made.model), feeds)
    assert reductions > 5


@pytest.mark.parametrize("seed", range(10))
def test_what_a_body_reads_is_an_output_of_its_group(seed: int):
    proto, feeds = drawn(seed, exact=True)
    read = [name for node in proto.graph.node for name in node.output if name in ("t7", "t12")]
    bodies = [
        h.make_graph(
            [h.make_node(op_type, read, ["made"])],
            op_type,
            [],
            [h.make_tensor_value_info("made", T.FLOAT, None)],
        )
        for op_type in ("Add", "Mul")
    ]
    node = h.make_node(
        "If", ["asked"], ["out"], name="if", then_branch=bodies[0], else_branch=bodies[1]
    )
    proto.graph.node.append(node)
    proto.graph.input.append(h.make_tensor_value_info("asked", T.BOOL, []))
    proto.graph.output.append(h.make_tensor_value_info("out", T.FLOAT, None))
    _, made = fuse(proto, exact=True)
    assert made is not None
    for asked in (True, False):
        given = {**feeds, "asked": np.array(asked)}
        one, other = (session(p).run(None, given) for p in (proto, ir.to_proto(made.model)))
        assert all(map(same_bits, one, other))


@pytest.mark.parametrize(
    ("op_type", "more", "is_fused"),
    [
        *(
            ("Pow", [exponent], exponent in (2.0, 3.0))
            for exponent in (-1.0, 0.5, 1.0, 2.0, 3.0, 4.0)
        ),
        ("Pow", ["y"], False),
        ("Sum", [], False),
        ("Sum", ["y", "y"], True),
        ("Sum", ["y", 1.0, 2.0], True),
        ("Max", [], False),
        ("Max", ["y"], False),
        ("Max", [0.0], False),
        ("Max", [0.5], True),
        ("Min", ["y", "x"], False),
    ],
)
def test_what_an_operator_does_depends_on_its_inputs(
    op_type: str, more: list[str | float], is_fused: bool
):
    fixed = {f"c{i}": np.array(v, "f4") for i, v in enumerate(more) if isinstance(v, float)}
    inputs = ["a", *(v if isinstance(v, str) else f"c{i}" for i, v in enumerate(more))]
    info = {name: h.make_tensor_value_info(name, T.FLOAT, FULL) for name in "xyabz"}
    graph = h.make_graph(
        [
            h.make_node("Abs", ["x"], ["a"], name="a"),
            h.make_node(op_type, inputs, ["b"], name="b"),
            h.make_node("Add", ["b", "x"], ["z"], name="z"),
        ],
        "one",
        [info["x"], info["y"]],
        [info["z"]],
        [onnx.numpy_helper.from_array(value, name) for name, value in fixed.items()],
        value_info=[info["a"], info["b"]],
    )
    proto = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)
    _, made = fuse(proto, exact=True)
    kinds = {"Abs", op_type, "Add"} if made is None else {n.op_type for n in made.model.graph}
    assert (op_type not in kinds) == is_fused
    if made is not None:
        rng = np.random.default_rng(0)
        feeds = {name: rng.standard_normal(FULL).astype("f4") for name in "xy"}
        wanted = session(proto).run(None, feeds)[0]
        assert same_bits(wanted, session(ir.to_proto(made.model)).run(None, feeds)[0])


@pytest.mark.parametrize("power", [(), (1,), (1, 1)])
@pytest.mark.parametrize("base", [(), (1,), (7, 1), (7, 1, 1), (1, 7), (7,)])
def test_an_exactly_fused_power_has_the_bits_of_onnxruntime(
    base: tuple[int, ...], power: tuple[int, ...]
):
    """Which of both it takes for a scalar depends on the axes of one element."""
    shape = np.broadcast_shapes(base, power)
    proto = model_of_infos(
        [
            h.make_node("Abs", ["x"], ["a"], name="a"),
            h.make_node("Pow", ["a", "c"], ["b"], name="b"),
            h.make_node("Neg", ["b"], ["z"], name="z"),
        ],
        {"x": base, "a": base, "b": shape, "z": shape},
        {"c": np.full(power, 3.0)},
        dtype=T.DOUBLE,
    )
    _, made = fuse(proto, exact=True)
    if made is None:
        return
    one, other = (session(p) for p in (proto, ir.to_proto(made.model)))
    for seed in range(40):
        feeds = {"x": np.asarray(np.random.default_rng(seed).standard_normal(base))}
        assert same_bits(one.run(None, feeds)[0], other.run(None, feeds)[0])


def test_a_power_of_rows_is_fused_where_its_exponent_is_the_scalar():
    """(7, 1) by (1, 1) is the one case that its last axis does not tell."""
    shapes = {"x": (7, 1), "a": (7, 1), "b": (7, 1)}
    nodes = [h.make_node("Abs", ["x"], ["a"], name="a")]
    nodes.append(h.make_node("Pow", ["a", "c"], ["b"], name="b"))
    found: list[bool] = []
    for power in ((1, 1), (1,)):
        proto = model_of_infos(nodes, shapes, {"c": np.full(power, 3.0)}, dtype=T.DOUBLE)
        found.append(fuse(proto, exact=True)[1] is not None)
    assert found == [True, False]


@pytest.mark.parametrize("seed", range(25))
def test_groups_have_no_path_out_and_back_and_do_all_that_is_needed(seed: int):
    proto, _ = drawn(seed, exact=False)
    model, graph = graph_of(proto)
    ground = ground_of(model, graph, only_exact=False, kernels=FUSED)
    groups = groups_of(ground)
    behind: dict[int, set[int]] = {op.id: set() for op in graph.operations}
    for op in reversed(graph.operations):
        for tensor in op.outputs:
            for reader in graph.tensors[tensor].consumers:
                behind[op.id] |= {reader, *behind[reader]}
    for group in groups:
        mine = set(group.operations)
        out = {o for op in mine for o in behind[op]} - mine
        assert not any(behind[o] & mine for o in out), "a path leads out and back in"
    fused = {op for group in groups for op in group.operations}
    after = with_again(ground, groups)
    needed = {t for group in after for t in outside(ground, group)}
    made = {graph.operations[op].outputs[0] for group in after for op in group.operations}
    for op in fused:
        tensor = ground.made(op)
        is_read = tensor.is_output or any(c not in fused for c in tensor.consumers)
        assert tensor.id in made or not (is_read or tensor.id in needed)


def test_a_value_that_its_readers_can_work_out_again_is_not_stored():
    """A GELU and its gradient, with a product between: x alone is stored."""
    text = h.make_graph(
        [
            h.make_node("Erf", ["x"], ["e"], name="e"),
            h.make_node("Add", ["e", "one"], ["v"], name="v"),
            h.make_node("Mul", ["x", "v"], ["y"], name="y"),
            h.make_node("MatMul", ["y", "w"], ["z"], name="z"),
            h.make_node("Mul", ["z", "v"], ["g"], name="g"),
            h.make_node("Mul", ["g", "x"], ["out"], name="out"),
        ],
        "gelu",
        [h.make_tensor_value_info("x", T.FLOAT, FULL)],
        [h.make_tensor_value_info("out", T.FLOAT, FULL)],
        [
            onnx.numpy_helper.from_array(np.array(1, "f4"), "one"),
            onnx.numpy_helper.from_array(np.eye(COLUMNS, dtype="f4"), "w"),
        ],
    )
    proto = h.make_model(text, opset_imports=[h.make_opsetid("", 18)], ir_version=9)
    _, made = fuse(proto, exact=False)
    assert made is not None
    found = [set(m) for m in made.members.values()]
    assert found == [{"e", "v", "y"}, {"e", "v", "g", "out"}]
    names = {v.name for node in made.model.graph for v in node.outputs}
    assert names == {"y", "z", "out"}
    x = np.random.default_rng(0).standard_normal(FULL).astype("f4")
    one, other = (session(p).run(None, {"x": x}) for p in (proto, ir.to_proto(made.model)))
    np.testing.assert_allclose(one[0], other[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("inputs", [["a"], ["c", "d", "a"]])
def test_a_sum_that_no_program_has_stays(inputs: list[str]):
    """Of one input, which no operation computes, or of two constants first."""
    shapes = {name: FULL for name in ("x", "a", "b", "z")}
    nodes = [
        h.make_node("Abs", ["x"], ["a"], name="a"),
        h.make_node("Sum", inputs, ["b"], name="b"),
        h.make_node("Neg", ["b"], ["z"], name="z"),
    ]
    fixed = {"c": np.array(0.5, "f4"), "d": np.array(0.25, "f4")}
    proto = model_of_infos(nodes, shapes, fixed, outputs=["b", "z"])
    _, made = fuse(proto, exact=True)
    fused = proto if made is None else ir.to_proto(made.model)
    x = np.random.default_rng(0).standard_normal(FULL).astype("f4")
    one, other = (session(p).run(None, {"x": x}) for p in (proto, fused))
    assert all(map(same_bits, one, other))


def test_a_group_that_only_a_constant_would_broadcast_recomputes_nothing():
    """b1 and b2 become one group, which works v out again; the reader of b1 then works that out, too.
    What is left of the group, b2, has inputs of (16,) and a constant of (1, 1)."""
    wide = (1, COLUMNS)
    shapes = {"x": wide, "m": wide, "v": wide, "a": wide, "n": (COLUMNS,), "b2": wide, "b1": wide}
    shapes |= dict.fromkeys(("k", "c1", "c2", "out"), wide) | dict.fromkeys(("y", "z"), (1000,))
    nodes = [
        h.make_node(op_type, inputs, [made], name=made)
        for op_type, inputs, made in (
            ("Add", ["q", "c"], "v"),
            ("Add", ["v", "x"], "a"),
            ("Reshape", ["a", "dims"], "n"),
            ("Mul", ["v", "n"], "b2"),
            ("Add", ["b2", "m"], "b1"),
            ("MatMul", ["b2", "w"], "k"),
            ("Add", ["b1", "k"], "c1"),
            ("Mul", ["c1", "b2"], "c2"),
            ("Add", ["c2", "m"], "out"),
            ("Neg", ["y"], "z"),  # no group holds more than the largest operation
        )
    ]
    rng = np.random.default_rng(0)
    fixed = {"q": rng.standard_normal(COLUMNS).astype("f4"), "c": np.full((1, 1), 0.5, "f4")}
    fixed |= {"w": np.eye(COLUMNS, dtype="f4"), "dims": np.array([COLUMNS], "i8")}
    proto = model_of_infos(nodes, shapes, fixed, outputs=["out", "z"])
    _, made = fuse(proto, exact=True)
    assert made is not None
    feeds = {n: rng.standard_normal(shapes[n]).astype("f4") for n in ("x", "m", "y")}
    one, other = (session(p).run(None, feeds) for p in (proto, ir.to_proto(made.model)))
    assert all(map(same_bits, one, other))


def test_the_fused_model_keeps_the_order_of_the_file():
    """It is a base order beside the given one: the order of the file that a plan may need."""
    wide = (COLUMNS, COLUMNS)
    shapes = dict.fromkeys(("x", "a", "b", "c", "d", "e", "out"), wide)
    nodes = [
        h.make_node(op_type, inputs, [made], name=made)
        for op_type, inputs, made in (
            ("MatMul", ["x", "x"], "a"),
            ("Neg", ["a"], "b"),
            ("Abs", ["b"], "c"),
            ("Transpose", ["x"], "d"),
            ("MatMul", ["d", "x"], "e"),
            ("MatMul", ["e", "c"], "out"),
        )
    ]
    model, graph = graph_of(model_of_infos(nodes, shapes, {}))
    given = tuple(graph.operations[i].id for i in (3, 4, 0, 1, 2, 5))
    made = with_fusion(model, graph, given, only_exact=True, kernels=FUSED)
    assert made is not None
    assert made.order == ("d", "e", "a", "b__fused", "out")
    assert [node.name for node in made.model.graph] == ["a", "b__fused", "d", "e", "out"]


def test_a_graph_without_element_operations_is_left_alone():
    graph = h.make_graph(
        [h.make_node("MatMul", ["x", "x"], ["out"], name="m")],
        "product",
        [h.make_tensor_value_info("x", T.FLOAT, (4, 4))],
        [h.make_tensor_value_info("out", T.FLOAT, (4, 4))],
    )
    proto = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)
    assert fuse(proto, exact=False)[1] is None
