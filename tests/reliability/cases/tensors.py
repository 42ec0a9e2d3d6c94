"""Types, dims, data and texts of a model's tensors."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from tests.reliability.case import ANALYZE, OK, OPTIMIZE, Build, Case
from tests.reliability.cases.graphs import Model, with_bytes, write
from tests.reliability.graphs import SIDE, diamond, info, node, proto


def cases() -> list[Case]:
    """Tensors that cannot be sized, or whose data is not what their type says."""
    found = [
        Case(
            room="tensor",
            wrong=wrong,
            arguments=ANALYZE if i % 2 else OPTIMIZE,
            build=partial(write, model),
            words=words,
        )
        for i, (wrong, model, words) in enumerate(_refused())
    ]
    found += [
        Case(room="tensor", wrong=wrong, arguments=ANALYZE, build=build, words=("UTF-8",))
        for wrong, build in _not_text()
    ]
    found += [
        Case(
            room="tensor",
            wrong="an attribute of a custom kind that is not UTF-8, which is legal",
            arguments=(*OPTIMIZE, "--dry-run"),
            build=partial(write, _bytes_attribute),
            exits=(OK,),
        )
    ]
    return found


def weighted(weight: onnx.TensorProto) -> Model:
    """A model that multiplies by an initializer."""
    return lambda: proto([node("Mul", ["x", weight.name], ["y"])], initializers=[weight])


def constant(value: onnx.TensorProto) -> Model:
    """A model with a Constant node."""
    nodes = [node("Constant", [], ["c"], value=value), node("Mul", ["x", "c"], ["y"])]
    return lambda: proto(nodes)


def of_type(code: int) -> Model:
    """A model whose input and output have an element type by number."""
    both = [info("x", SIDE, SIDE)], [info("y", SIDE, SIDE)]
    for value in (both[0][0], both[1][0]):
        value.type.tensor_type.elem_type = code
    return lambda: proto(diamond(), inputs=both[0], outputs=both[1])


def _attribute(change: str) -> onnx.ModelProto:
    model = proto([node("Transpose", ["x"], ["y"], perm=[1, 0])])
    attribute = model.graph.node[0].attribute[0]
    if change == "no type":
        attribute.ClearField("type")
    elif change == "twice":
        model.graph.node[0].attribute.append(attribute)
    elif change == "another type":
        attribute.type = onnx.AttributeProto.FLOAT
    elif change == "sparse":
        values = numpy_helper.from_array(np.ones(2, np.float32), "v")
        indices = numpy_helper.from_array(np.array([1, 5], np.int64), "i")
        made = h.make_node("Constant", [], ["c"], name="c")
        made.attribute.append(
            h.make_attribute("sparse_value", h.make_sparse_tensor(values, indices, [SIDE, SIDE]))
        )
        model.graph.node.insert(0, made)
    elif change == "a reference":
        attribute.ref_attr_name = "perm"
        attribute.ClearField("ints")
    else:
        attribute.ints[:] = [5, -9]
    return model


def _value_info(code: int, *dims: int) -> onnx.ModelProto:
    model = proto(diamond())
    model.graph.value_info.append(info("a0", *dims))
    model.graph.value_info[0].type.tensor_type.elem_type = code
    return model


def _bytes_attribute() -> onnx.ModelProto:
    nodes = diamond()
    nodes[0].attribute.append(h.make_attribute("mode", b"\xff\xfe"))
    del nodes[0].attribute[:]
    return proto(nodes)


def _segmented() -> onnx.TensorProto:
    weight = T(name="w", data_type=T.FLOAT, dims=[2], raw_data=bytes(8))
    weight.segment.begin, weight.segment.end = 0, 1
    return weight


def _refused() -> Iterator[tuple[str, Model, tuple[str, ...]]]:
    for code in (99, -1, 2**31 - 1):
        yield f"an input of element type {code}", partial(_made, of_type(code)), ("'x'", str(code))
    yield "an input of element type 0", of_type(0), ("'x'",)
    yield "a value_info of element type 77", partial(_value_info, 77, 4), ("'a0'", "77")
    yield "a value_info with the dim -4", partial(_value_info, 1, -4), ("'a0'", "-4")
    yield "a value_info of another shape", partial(_value_info, 1, 3, 3), ("'a0'",)
    for wrong, weight in {
        "too little": T(name="w", data_type=T.FLOAT, dims=[SIDE, SIDE], raw_data=bytes(8)),
        "too much": T(name="w", data_type=T.FLOAT, dims=[SIDE], raw_data=bytes(4 * SIDE + 1)),
        "no": T(name="w", data_type=T.FLOAT, dims=[SIDE]),
    }.items():
        yield f"an initializer with {wrong} data", weighted(weight), ("'w'",)
        yield f"a Constant with {wrong} data", constant(weight), ("value",)
    for wrong, weight in {
        "too few values": T(name="w", data_type=T.FLOAT, dims=[SIDE], float_data=[1.0]),
        "values in another field": T(name="w", data_type=T.FLOAT, dims=[1], int64_data=[1]),
        "no type": T(name="w", dims=[2], raw_data=bytes(8)),
        "an unknown type": T(name="w", data_type=99, dims=[2], raw_data=bytes(8)),
        "a negative dim": T(name="w", data_type=T.FLOAT, dims=[-2], raw_data=bytes(8)),
        "two negative dims": T(name="w", data_type=T.FLOAT, dims=[-2, -1], raw_data=bytes(8)),
        "2^62 x 2^62 elements and none": T(name="w", data_type=T.FLOAT, dims=[1 << 62, 1 << 62]),
        "segments": _segmented(),
    }.items():
        yield f"an initializer with {wrong}", weighted(weight), ("'w'",)
    text = T(name="w", data_type=T.STRING, dims=[1], string_data=[b"one"])
    yield "an initializer with a text for a number", weighted(text), ("(w)", "tensor(string)")
    for change in ("no type", "twice", "another type", "a reference", "axes out of range"):
        words = ("perm",) if change in ("no type", "twice") else ()
        yield f"an attribute: {change}", partial(_attribute, change), words
    yield "a Constant with a sparse tensor", partial(_attribute, "sparse"), ("sparse",)


def _made(model: Model) -> onnx.ModelProto:
    return model()


def _not_text() -> Iterator[tuple[str, Build]]:
    bad = b"\xff\xfe\xfd\xfc"
    named = [node("Tanh", ["x"], ["abcd"]), node("Neg", ["abcd"], ["y"], name="node")]
    yield "a tensor's name", with_bytes(lambda: proto(named), "abcd", bad)
    yield "a node's name", with_bytes(lambda: proto(named), "node", bad)
    yield "an operator's name", with_bytes(lambda: proto(named), "Tanh", bad)
    yield "a graph's name", with_bytes(lambda: proto(named), "case", bad)
    extra = proto(diamond())
    extra.metadata_props.add(key="keys", value="vals")
    extra.producer_name = "prod"
    extra.graph.doc_string = "docs"
    yield "a key of the metadata", with_bytes(lambda: extra, "keys", bad)
    yield "a value of the metadata", with_bytes(lambda: extra, "vals", bad)
    yield "the producer's name", with_bytes(lambda: extra, "prod", bad)
    yield "a description", with_bytes(lambda: extra, "docs", bad)
    symbolic = proto(diamond(), inputs=[info("x", "dims", SIDE)], outputs=[info("y", "dims", SIDE)])
    yield "a symbolic dim", with_bytes(lambda: symbolic, "dims", bad)
    flipped = proto([node("Transpose", ["x"], ["y"], perm=[1, 0])])
    yield "an attribute's name", with_bytes(lambda: flipped, "perm", bad)
    listed = proto(diamond())
    listed.graph.node[0].attribute.append(h.make_attribute("list", ["strs"]))
    yield "a text in an attribute's list", with_bytes(lambda: listed, "strs", bad)
