"""Models with functions of their own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import onnx
from onnx import helper as h

from tests.reliability.case import ANALYZE, OK, OPTIMIZE, Case
from tests.reliability.cases.graphs import Model, write
from tests.reliability.graphs import node, proto

_MY = "my"
_OPSETS = (("", 18), (_MY, 1))


def cases() -> list[Case]:
    """Functions that cannot be inlined, or should not be."""
    found = [
        Case(room="function", wrong=wrong, arguments=ANALYZE, build=partial(write, m), words=words)
        for wrong, m, words in _refused()
    ]
    found += [
        Case(
            room="function",
            wrong=wrong,
            arguments=(*OPTIMIZE, "--budget", "100%"),
            build=partial(write, model),
            exits=(OK,),
        )
        for wrong, model in _legal()
    ]
    return found


def function(
    name: str, nodes: list[onnx.NodeProto], *, version: int = 18, **options: Any
) -> onnx.FunctionProto:
    """A function `a` -> `r` of the domain `my`."""
    opsets = [h.make_opsetid("", version), h.make_opsetid(_MY, 1)]
    inputs = options.pop("inputs", ["a"])
    outputs = options.pop("outputs", ["r"])
    return h.make_function(_MY, name, inputs, outputs, nodes, opsets, **options)


def call(name: str, inputs: list[str], outputs: list[str]) -> onnx.NodeProto:
    """A node that calls a function of the domain `my`."""
    return node(name, inputs, outputs, domain=_MY)


def _of(*functions: onnx.FunctionProto, node_: onnx.NodeProto | None = None) -> Model:
    used = node_ or call("F", ["x"], ["y"])
    return lambda: proto([used], opsets=_OPSETS, functions=functions)


def _bomb(levels: int, each: int) -> Model:
    """Functions that call each other `each` times, `levels` deep."""
    made = [function("F0", [node("Neg", ["a"], ["r"])])]
    for level in range(1, levels):
        names = ["a", *(f"v{i}" for i in range(each - 1)), "r"]
        calls = [call(f"F{level - 1}", [a], [b]) for a, b in itertools.pairwise(names)]
        made.append(function(f"F{level}", calls))
    return _of(*made, node_=call(f"F{levels - 1}", ["x"], ["y"]))


def _changed(change: Callable[[onnx.FunctionProto], object]) -> Model:
    made = function("F", [node("Neg", ["a"], ["r"])])
    change(made)
    return _of(made)


def _refused() -> Iterator[tuple[str, Model, tuple[str, ...]]]:
    neg = function("F", [node("Neg", ["a"], ["r"])])
    yield "a function calls itself", _of(function("F", [call("F", ["a"], ["r"])])), ("circle",)
    ring = (function("F", [call("G", ["a"], ["r"])]), function("G", [call("F", ["a"], ["r"])]))
    yield "two functions call each other", _of(*ring), ("circle", "my::F", "my::G")
    yield "a call with too many inputs", _of(neg, node_=call("F", ["x", "x"], ["y"])), ("inputs",)
    yield "a call with too many outputs", _of(neg, node_=call("F", ["x"], ["y", "z"])), ("outputs",)
    inner = function("G", [call("F", ["a", "a", "a"], ["r"])])
    nested = _of(neg, inner, node_=call("G", ["x"], ["y"]))
    yield "a call within a function with too many inputs", nested, ("inputs",)
    yield "two functions of one name", _of(neg, neg), ("twice",)
    ghost = function("F", [node("Add", ["a", "ghost"], ["r"])])
    yield "a function reads what nothing produces", _of(ghost), ("ghost",)
    late = function("F", [node("Neg", ["b"], ["r"]), node("Neg", ["a"], ["b"])])
    yield "a function's nodes are in no order", _of(late), ("'b'",)
    missing = function("F", [node("Neg", ["a"], ["q"])])
    yield "a function's output is produced by no node", _of(missing), ("'r'",)
    double = function("F", [node("Neg", ["a"], ["r"]), node("Abs", ["a"], ["r"])])
    yield "a function defines a value twice", _of(double), ("'r'",)
    yield (
        "a function has two inputs of one name",
        _changed(lambda f: f.input.append("a")),
        ("inputs",),
    )
    unknown = function("F", [node("Frobnicate", ["a"], ["r"])])
    yield "a function with an operator that ONNX has not", _of(unknown), ("Frobnicate",)
    foreign = function("F", [node("Magic", ["a"], ["r"], domain="com.example")])
    yield "a function of a domain that is not imported", _of(foreign), ("com.example",)
    old = function("F", [node("Neg", ["a"], ["r"])], version=13)
    yield "a function of another operator set version", _of(old), ("version 13",)
    yield "a function without nodes", _changed(lambda f: f.ClearField("node")), ("'r'",)
    empty = function("F", [h.make_node("Neg", ["a"], []), node("Neg", ["a"], ["r"])])
    yield "a function with a node without outputs", _of(empty), ("no outputs",)
    pair = [node("Neg", ["a"], ["r"]), node("Abs", ["a"], ["q"])]
    two = function("F", pair, outputs=["r", "q"])
    yield "a call with too few outputs", _of(two), ("outputs",)
    on = function("F", [node("Neg", ["a"], ["r"])], outputs=["r", "a"])
    handed = _of(on, node_=call("F", ["x"], ["z", "y"]))
    yield "a function that hands its input on", handed, ("'a'",)
    yield "functions that make 2^39 nodes", _bomb(40, 2), ("nodes",)
    yield "functions that make 10^12 nodes", _bomb(7, 100), ("nodes",)


def _legal() -> Iterator[tuple[str, Model]]:
    yield "a function, called once", _of(function("F", [node("Neg", ["a"], ["r"])]))
    yield "functions 60 deep", _bomb(60, 1)
    yield (
        "a function with an input left out",
        _of(function("F", [node("Clip", ["a", "lo"], ["r"])], inputs=["a", "lo"])),
    )
    yield (
        "a function that nobody calls",
        lambda: proto(
            [node("Neg", ["x"], ["y"])],
            opsets=_OPSETS,
            functions=[function("F", [node("Neg", ["a"], ["r"])])],
        ),
    )
