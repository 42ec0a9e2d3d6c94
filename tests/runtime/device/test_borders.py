"""A copy at each border between the CPU and the device, as ONNX Runtime's own inserter places them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx_ir as ir
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.runtime.device.borders import FROM_HOST, TO_HOST, Sides, with_borders
from tests.runtime.device.support import (
    COPIES,
    copies,
    listing,
    mixed_model,
    no_host,
    reads,
    second_of_add,
    size_makes_host,
    without,
)
from tests.runtime.support import constant, model_of, op, tensor


def test_a_value_made_on_the_device_is_copied_once_for_all_readers_on_the_host() -> None:
    x = tensor("x", 4)
    a = op("a", "Relu", x, shape=(4,))
    b, c = (op(name, "Neg", a.outputs[0], shape=(4,)) for name in "bc")
    model = model_of([x], [b.outputs[0], c.outputs[0]], [a, b, c])
    found = with_borders(model, {"a": True, "b": False, "c": False}, no_host, no_host)
    assert copies(found) == [(TO_HOST, "a:out", "a:out__on_host")]
    assert reads(found, "b") == reads(found, "c") == ["a:out__on_host"]


def test_a_value_made_on_the_host_is_copied_once_for_all_readers_on_the_device() -> None:
    x = tensor("x", 4)
    a = op("a", "Relu", x, shape=(4,))
    nodes = [op(name, "Neg", a.outputs[0], shape=(4,)) for name in "bcd"]
    model = model_of([x], [n.outputs[0] for n in nodes], [a, *nodes])
    found = with_borders(model, {"a": False, "b": False, "c": True, "d": True}, no_host, no_host)
    assert copies(found) == [(FROM_HOST, "a:out", "a:out__on_device")]
    assert reads(found, "b") == ["a:out"]
    assert reads(found, "c") == reads(found, "d") == ["a:out__on_device"]
    assert [n.name for n in found.graph] == ["a", "b", "a:out__on_device", "c", "d"]


def test_a_graph_input_is_copied_only_where_both_sides_read_it() -> None:
    x, y, z = (tensor(name, 4) for name in "xyz")
    a = op("a", "Add", x, y, shape=(4,))
    b = op("b", "Add", x, z, shape=(4,))
    model = model_of([x, y, z], [a.outputs[0], b.outputs[0]], [a, b])
    found = with_borders(model, {"a": True, "b": False}, no_host, no_host)
    assert copies(found) == [(FROM_HOST, "x", "x__on_device")]
    assert reads(found, "a") == ["x__on_device", "y"]
    assert reads(found, "b") == ["x", "z"]


def test_an_initializer_and_a_constant_are_never_copied() -> None:
    x, w = tensor("x", 4), constant("w", np.ones(4, np.float32))
    k = ir.node("Constant", [], {"value": ir.tensor(np.ones(4, np.float32))}, name="k")
    k.outputs[0].name = "k:out"
    nodes = [
        op(f"{side}{v.name}", "Add", x, v, shape=(4,)) for side in "dh" for v in (w, k.outputs[0])
    ]
    model = model_of([x], [n.outputs[0] for n in nodes], [k, *nodes], [w])
    placement = {str(n.name): str(n.name).startswith("d") for n in nodes} | {"k": False}
    found = with_borders(model, placement, no_host, no_host)
    assert [source for _, source, _ in copies(found)] == ["x"]


def test_a_graph_output_made_on_the_device_keeps_its_name_there() -> None:
    x = tensor("x", 4)
    a = op("a", "Relu", x, shape=(4,))
    b = op("b", "Neg", a.outputs[0], shape=(4,))
    model = model_of([x], [a.outputs[0], b.outputs[0]], [a, b])
    assert not copies(with_borders(model, {"a": True, "b": True}, no_host, no_host))
    found = with_borders(model, {"a": True, "b": False}, no_host, no_host)
    assert [v.name for v in found.graph.outputs] == ["a:out", "b:out"]
    assert found.graph.outputs[0].producer().op_type == "Relu"  # type: ignore[union-attr]
    assert reads(found, "b") == ["a:out__on_host"]


def test_an_input_that_a_device_kernel_reads_in_host_memory_is_a_read_on_the_host() -> None:
    x, y = tensor("x", 4), tensor("y", 4)
    a = op("a", "Relu", x, shape=(4,))
    b = op("b", "Add", y, a.outputs[0], shape=(4,))
    model = model_of([x, y], [b.outputs[0]], [a, b])
    assert not copies(with_borders(model, {"a": False, "b": True}, second_of_add, no_host))
    found = with_borders(model, {"a": True, "b": True}, second_of_add, no_host)
    assert copies(found) == [(TO_HOST, "a:out", "a:out__on_host")]
    assert reads(found, "b") == ["y", "a:out__on_host"]


def test_an_output_that_a_device_kernel_leaves_in_host_memory_is_made_on_the_host() -> None:
    x = tensor("x", 4)
    a = op("a", "Neg", x, shape=(4,))
    b = op("b", "Relu", a.outputs[0], shape=(4,))
    c = op("c", "Abs", a.outputs[0], shape=(4,))
    model = model_of([x], [b.outputs[0], c.outputs[0]], [a, b, c])
    found = with_borders(model, {"a": True, "b": True, "c": False}, no_host, size_makes_host)
    assert copies(found) == [(FROM_HOST, "a:out", "a:out__on_device")]
    assert reads(found, "c") == ["a:out"]


def test_copies_of_the_file_are_borders_already() -> None:
    x = tensor("x", 4)
    a = op("a", "Relu", x, shape=(4,))
    out = op("out", TO_HOST, a.outputs[0], shape=(4,))
    back = op("back", FROM_HOST, out.outputs[0], shape=(4,))
    host = op("host", "Neg", out.outputs[0], shape=(4,))
    device = op("device", "Neg", back.outputs[0], shape=(4,))
    model = model_of([x], [host.outputs[0], device.outputs[0]], [a, out, back, host, device])
    placement = {"a": True, "out": True, "back": True, "host": False, "device": True}
    assert listing(with_borders(model, placement, no_host, no_host)) == listing(model)


def test_names_are_unique_and_types_and_shapes_are_the_values() -> None:
    x, taken = tensor("x", 4, 2), tensor("a:out__on_host", 4, 2)
    a = op("a", "Relu", x, shape=(4, 2))
    b = op("b", "Add", a.outputs[0], taken, shape=(4, 2))
    model = model_of([x, taken], [b.outputs[0]], [a, b])
    found = with_borders(model, {"a": True, "b": False}, no_host, no_host)
    ((_, _, name),) = copies(found)
    assert name == "a:out__on_host_2"
    (copy,) = (n for n in found.graph if n.op_type == TO_HOST)
    assert copy.outputs[0].shape == [4, 2]
    assert copy.outputs[0].dtype == ir.DataType.FLOAT
    assert not copies(model)  # the model itself is left alone


@settings(max_examples=75, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), nodes=st.integers(1, 14), halves=st.booleans())
def test_every_read_is_on_its_side_and_nothing_else_changes(
    seed: int, nodes: int, halves: bool
) -> None:
    model, placement = mixed_model(seed, nodes)
    host_inputs = second_of_add if halves else no_host
    host_outputs = size_makes_host if halves else no_host
    before = listing(model)
    found = with_borders(model, placement, host_inputs, host_outputs)
    assert listing(model) == before
    added = {str(n.name) for n in found.graph} - set(placement)
    sides = Sides(found, placement | dict.fromkeys(added, True), host_inputs, host_outputs)
    sides_of_input: dict[str, set[bool]] = {}
    done: set[str] = {
        str(v.name) for v in (*found.graph.inputs, *found.graph.initializers.values())
    }
    for node in found.graph:
        for index, value in enumerate(node.inputs):
            assert value is not None
            assert str(value.name) in done  # sorted
            if value.is_initializer():
                continue
            side = sides.reads_device(node, index)
            if (home := sides.home(value)) is None:
                sides_of_input.setdefault(str(value.name), set()).add(side)
            else:
                assert side == home, f"{node.name} reads {value.name} on the other side"
        done.update(str(v.name) for v in node.outputs)
    for name, read in sides_of_input.items():
        if read == {True, False}:  # then only a copy reads it on the device's behalf
            raise AssertionError(f"graph input {name} is read on both sides")
    twice = Counter((op_, source) for op_, source, made in copies(found) if made in added)
    assert max(twice.values(), default=1) == 1
    assert listing(without(found, set(placement))) == before
    assert {n.op_type for n in found.graph if n.name in added} <= COPIES
