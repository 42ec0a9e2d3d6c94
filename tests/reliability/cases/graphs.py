"""Graphs that are none, or that planner does not support."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from tests.reliability.case import ANALYZE, INFEASIBLE, MODEL, OK, OPTIMIZE, Case
from tests.reliability.graphs import SIDE, diamond, info, node, proto, save

Model = Callable[[], onnx.ModelProto]


def cases() -> list[Case]:
    """The model is well-formed as a file, and no graph that can be planned."""
    found = [
        Case(
            room="graph",
            wrong=wrong,
            arguments=OPTIMIZE if i % 2 else ANALYZE,
            build=partial(write, model),
            words=words,
        )
        for i, (wrong, model, words) in enumerate(_refused())
    ]
    found += [
        Case(
            room="graph",
            wrong=wrong,
            arguments=arguments,
            build=partial(write, model),
            exits=exits,
            alone="3,000" in wrong,
        )
        for wrong, model, arguments, exits in _odd()
    ]
    return found


def write(model: Model, folder: Path) -> None:
    """`model()` as `model.onnx`."""
    save(model(), folder / "model.onnx")


def with_bytes(model: Model, old: str, new: bytes) -> Callable[[Path], None]:
    """`model.onnx` with the text `old` replaced by bytes that protocol buffers' writer refuses."""
    assert len(old) == len(new)

    def build(folder: Path) -> None:
        data = model().SerializeToString()
        assert old.encode() in data
        (folder / "model.onnx").write_bytes(data.replace(old.encode(), new))

    return build


def _changed(change: Callable[[onnx.ModelProto], object]) -> Model:
    def model() -> onnx.ModelProto:
        made = proto(diamond())
        change(made)
        return made

    return model


def _sparse_initializer() -> onnx.ModelProto:
    values = numpy_helper.from_array(np.ones(2, np.float32), "w")
    indices = numpy_helper.from_array(np.array([1, 5], np.int64), "w_indices")
    model = proto([node("Neg", ["x"], ["y"])])
    model.graph.sparse_initializer.append(h.make_sparse_tensor(values, indices, [SIDE, SIDE]))
    return model


def _sequence() -> onnx.ModelProto:
    kind = h.make_sequence_type_proto(h.make_tensor_type_proto(T.FLOAT, [SIDE, SIDE]))
    at = h.make_tensor("i", T.INT64, [], [0])
    nodes = [node("SequenceAt", ["x", "i"], ["y"])]
    return proto(nodes, inputs=[h.make_value_info("x", kind)], initializers=[at])


def _optional_input() -> onnx.ModelProto:
    kind = h.make_optional_type_proto(h.make_tensor_type_proto(T.FLOAT, [SIDE, SIDE]))
    nodes = [node("OptionalGetElement", ["x"], ["y"])]
    return proto(nodes, inputs=[h.make_value_info("x", kind)])


def _twice(what: str) -> onnx.ModelProto:
    if what == "initializer":
        weight = numpy_helper.from_array(np.ones((SIDE, SIDE), np.float32), "w")
        return proto([node("Mul", ["x", "w"], ["y"])], initializers=[weight, weight])
    pair = [info(what, SIDE, SIDE)] * 2
    return proto(diamond(), **{"inputs" if what == "x" else "outputs": pair})


def _refused() -> Iterator[tuple[str, Model, tuple[str, ...]]]:
    def of(*nodes: onnx.NodeProto, **options: object) -> Model:
        return lambda: proto(nodes, **options)  # pyright: ignore[reportArgumentType]

    neg = node("Neg", ["x"], ["y"])
    yield "an operator that ONNX has not", of(node("Frobnicate", ["x"], ["y"])), ("Frobnicate",)
    yield "an operator newer than the operator set", of(node("Gelu", ["x"], ["y"])), ("Gelu",)
    other = node("Magic", ["x"], ["y"], domain="com.example")
    yield "an operator of a domain that is not imported", of(other), ("com.example",)
    both = (("", 18), ("com.example", 1))
    yield "a custom operator without its library", of(other, opsets=both), ("Magic",)
    yield "a name with a line feed and an escape", of(node("Fr\nob\x1b[31m", ["x"], ["y"])), ()
    yield "an operator type without a name", of(node("", ["x"], ["y"])), ()
    yield "a domain of spaces", of(node("Neg", ["x"], ["y"], domain="  ")), ()
    yield "a cycle", of(node("Add", ["x", "b"], ["a"]), node("Neg", ["a"], ["b"]), neg), ("cycle",)
    yield "a node reads its own output", of(node("Add", ["x", "y"], ["y"])), ("cycle",)
    yield "nodes in no order", lambda: proto(reversed(diamond())), ("not sorted",)
    yield (
        "a value that nothing produces is read",
        of(node("Add", ["x", "ghost"], ["y"])),
        ("ghost",),
    )
    yield "an output that nothing produces", of(node("Neg", ["x"], ["z"])), ("'y'",)
    twice = [
        node("Neg", ["x"], ["a"]),
        node("Abs", ["x"], ["a"], name="b"),
        node("Neg", ["a"], ["y"]),
    ]
    yield "two nodes make one value", lambda: proto(twice), ("'a'",)
    yield "a node makes a graph input", of(node("Neg", ["x"], ["x"]), neg), ("'x'",)
    yield (
        "a node makes one value twice",
        of(node("Split", ["x"], ["y", "y"], num_outputs=2)),
        ("'y'",),
    )
    yield "two graph inputs of one name", partial(_twice, "x"), ("'x'", "twice")
    yield "two graph outputs of one name", partial(_twice, "y"), ("'y'", "twice")
    yield "two initializers of one name", partial(_twice, "initializer"), ("'w'", "twice")
    yield "a graph input without a name", of(neg, inputs=[info("x", 4), info("", 4)]), ("name",)
    yield "a graph output without a name", of(neg, outputs=[info("y", SIDE, SIDE), info("", 4)]), ()
    unnamed = h.make_tensor("", T.FLOAT, [1], [1.0])
    yield "an initializer without a name", of(neg, initializers=[unnamed]), ("name",)
    yield "a sparse initializer", _sparse_initializer, ("sparse", "'w'")
    yield "a sequence as graph input", _sequence, ("'x'",)
    yield "no nodes", _changed(lambda m: m.graph.ClearField("node")), ("no nodes",)
    yield "no outputs", _changed(lambda m: m.graph.ClearField("output")), ("no graph outputs",)
    yield "no graph", _changed(lambda m: m.ClearField("graph")), ()
    yield "no operator sets", _changed(lambda m: m.ClearField("opset_import")), ()
    yield "no IR version", _changed(lambda m: m.ClearField("ir_version")), ()
    yield "an IR version from the future", _changed(lambda m: setattr(m, "ir_version", 9999)), ()
    yield "an operator set from the future", of(neg, opsets=(("", 9999),)), ()
    yield "an operator set of version 0", of(neg, opsets=(("", 0),)), ()
    yield "an operator set of version -1", of(neg, opsets=(("", -1),)), ()
    yield (
        "one operator set in two versions",
        of(neg, opsets=(("", 18), ("", 13))),
        ("two versions",),
    )
    yield "ai.onnx beside the empty domain", of(neg, opsets=(("", 18), ("ai.onnx", 13))), ()
    yield "a node without outputs", of(h.make_node("Neg", ["x"], []), neg), ("no outputs",)
    yield "a node whose outputs are all unnamed", of(h.make_node("Neg", ["x"], [""]), neg), ()
    yield "a node with too few inputs", of(node("Add", ["x"], ["y"])), ()
    yield "a node with too many inputs", of(node("Neg", ["x", "x", "x"], ["y"])), ()
    yield "a node with too many outputs", of(node("Neg", ["x"], ["y", "z"])), ()
    yield "a required input left out", of(node("Add", ["x", ""], ["y"])), ()
    symbolic = {"inputs": [info("x", "batch", SIDE)], "outputs": [info("y", "batch", SIDE)]}
    yield "a symbolic dim that is not bound", of(neg, **symbolic), ("--dim batch=1",)
    yield "a dim of neither value nor name", of(neg, inputs=[info("x", None, 4)]), ("x:0",)
    no_shape = onnx.ValueInfoProto(name="x")
    no_shape.type.tensor_type.elem_type = T.FLOAT
    yield "an input without a shape", of(neg, inputs=[no_shape]), ("'x'", "shape")
    yield "an input without a type", of(neg, inputs=[onnx.ValueInfoProto(name="x")]), ("'x'",)
    yield "an output of another shape", of(neg, outputs=[info("y", SIDE, 3)]), ("'y'",)
    yield "an output of another rank", of(neg, outputs=[info("y", SIDE, SIDE, 1)]), ("'y'",)
    yield "an output of another type", of(neg, outputs=[info("y", SIDE, SIDE, dtype=T.INT32)]), ()
    unfit = {"inputs": [info("x", SIDE, SIDE), info("w", 3, SIDE)]}
    yield "factors that do not fit", of(node("MatMul", ["x", "w"], ["y"]), **unfit), ()
    same = diamond()
    same[0].name = same[1].name = "same"
    yield "two nodes of one name", lambda: proto(same), ("same",)
    clash = h.make_tensor("x", T.FLOAT, [4], [0.0] * 4)
    yield "an initializer unlike its graph input", of(neg, initializers=[clash]), ("'x'",)


def _constants() -> onnx.ModelProto:
    value = numpy_helper.from_array(np.ones((SIDE, SIDE), np.float32))
    nodes = [node("Constant", [], ["c"], value=value), node("Neg", ["c"], ["y"])]
    model = proto(nodes)
    del model.graph.input[:]
    return model


def _only_initializer() -> onnx.ModelProto:
    weight = numpy_helper.from_array(np.ones((SIDE, SIDE), np.float32), "w")
    return proto(
        [node("Neg", ["x"], ["dead"])], outputs=[info("w", SIDE, SIDE)], initializers=[weight]
    )


def _nameless() -> onnx.ModelProto:
    nodes = diamond()
    for n in nodes:
        n.name = ""
    return proto(nodes)


def _zero_size() -> onnx.ModelProto:
    shape = [info("x", 0, SIDE)], [info("y", 0, SIDE)]
    return proto(diamond(), inputs=shape[0], outputs=shape[1])


def _input_as_output() -> onnx.ModelProto:
    return proto(diamond(), outputs=[info("y", SIDE, SIDE), info("x", SIDE, SIDE)])


def _dead() -> onnx.ModelProto:
    return proto([*diamond(), node("Exp", ["x"], ["dead"])])


def _many_outputs() -> onnx.ModelProto:
    """A Split into 3,000 parts, each of which is read twice."""
    count = 3000
    parts = [f"s{i}" for i in range(count)]
    nodes = [
        node("Split", ["x"], parts, axis=0, num_outputs=count),
        *(node("Tanh", [p], [f"t{i}"]) for i, p in enumerate(parts)),
        node("Concat", [f"t{i}" for i in range(count)], ["u"], axis=0),
        node("Concat", parts, ["v"], axis=0),
        node("Mul", ["u", "v"], ["y"]),
    ]
    return proto(nodes, inputs=[info("x", count, 4)], outputs=[info("y", count, 4)])


def _odd() -> Iterator[tuple[str, Model, tuple[str, ...], tuple[int, ...]]]:
    """Odd, and legal: planned, or refused for the budget."""
    dry = (*OPTIMIZE, "--dry-run")
    yield "a graph of constants alone, analysed", _constants, ANALYZE, (MODEL,)
    yield "a graph of constants alone, optimized", _constants, OPTIMIZE, (MODEL,)
    yield "the only output is an initializer", _only_initializer, dry, (OK, MODEL, INFEASIBLE)
    yield "no node has a name", _nameless, dry, (OK,)
    yield "every tensor is empty", _zero_size, dry, (OK, INFEASIBLE)
    yield "every tensor is empty, analysed", _zero_size, ANALYZE, (OK,)
    yield "an optional as graph input, analysed", _optional_input, ANALYZE, (OK,)
    yield "a graph input is an output too", _input_as_output, dry, (OK,)
    yield "a node that nothing reads", _dead, dry, (OK,)
    yield "a Split into 3,000 parts", _many_outputs, dry, (OK, INFEASIBLE)
