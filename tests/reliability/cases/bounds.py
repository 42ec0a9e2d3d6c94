"""Sizes that depend on data, and graphs within nodes: bounds that are none, bodies that cannot be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from tests.reliability.case import (
    ANALYZE,
    INFEASIBLE,
    MODEL,
    OK,
    OPTIMIZE,
    USAGE,
    VERIFICATION,
    Case,
)
from tests.reliability.cases.functions import call, function
from tests.reliability.cases.plans import change_plan
from tests.reliability.graphs import SIDE, info, node, proto, save

Model = Callable[[], onnx.ModelProto]


def cases() -> list[Case]:
    """Each is refused by name, or is legal."""
    return [*_of_options(), *_of_bodies(), *_of_plans()]


def _of_options() -> Iterator[Case]:
    for value, words in (
        ("", ()),
        ("at", ()),
        ("=4", ()),
        ("at=", ()),
        ("at=many", ("'many'",)),
        ("at=-1", ()),
        ("at=4x", ()),
        ("at=1x-4", ()),
        ("at=1e9", ()),
        ("at=" + "9" * 30, ()),
        ("at=9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9x9", ("at",)),
        ("at=1.5", ()),
        ("at=0B", ()),
        ("ghost=4", ("ghost", "no tensor")),
        ("x=4", ("known",)),
        ("at=3x64", ("shape",)),
        ("at=1x2x3", ("shape",)),
        ("flag\n=4", ()),
    ):
        yield Case(
            room="bounds",
            wrong=f"--bound {value!r}",
            arguments=(*ANALYZE, f"--bound={value}"),
            build=partial(_write, _counted),
            exits=(USAGE,),
            words=words,
        )
    yield Case(
        room="bounds",
        wrong="a name bound twice",
        arguments=(*ANALYZE, "--bound", "at=64", "--bound", "at=65"),
        build=partial(_write, _counted),
        exits=(USAGE,),
        words=("twice",),
    )
    yield Case(
        room="bounds",
        wrong="a tensor that is larger than its bound",
        arguments=(*OPTIMIZE[:3], "1MB", *OPTIMIZE[4:], "--bound", "at=1"),
        build=partial(_write, _counted),
        exits=(OK, VERIFICATION),
    )
    yield Case(
        room="bounds",
        wrong="sizes that depend on data, with no bound, which is legal",
        arguments=OPTIMIZE,
        build=partial(_write, _counted),
        exits=(OK, INFEASIBLE),
    )

    yield Case(
        room="bounds",
        wrong="a shape that depends on values, and no run shows it",
        arguments=ANALYZE,
        build=partial(_write, _unrunnable),
        words=("'at'", "NonZero", "--bound"),
    )


def _of_bodies() -> Iterator[Case]:
    branch = _graph([node("Neg", ["x"], ["b"])])
    for wrong, model, exits, words in (
        ("an If, which is legal", _choice(branch, branch), (OK, INFEASIBLE), ()),
        ("a Loop, which is legal", _loop, (OK, INFEASIBLE), ()),
        (
            "a branch reads what nothing makes",
            _choice(branch, _graph([node("Neg", ["ghost"], ["b"])])),
            (MODEL,),
            ("ghost", "choose"),
        ),
        (
            "a branch defines a value twice",
            _choice(
                branch, _graph([node("Neg", ["x"], ["b"]), node("Abs", ["x"], ["b"], name="n")])
            ),
            (MODEL,),
            ("'b'", "twice"),
        ),
        (
            "a branch reads what its own node makes",
            _choice(branch, _graph([node("Neg", ["y"], ["b"])])),
            (MODEL,),
            ("cycle",),
        ),
        ("a branch without outputs", _choice(branch, h.make_graph([], "e", [], [])), (MODEL,), ()),
        (
            "an If with one branch",
            lambda: proto([_if(then_branch=branch)], inputs=_INPUTS),
            (MODEL,),
            (),
        ),
        ("branches of two types", _choice(branch, _other_type()), (MODEL,), ()),
        (
            "an operator that ONNX has not, in a branch",
            _choice(branch, _graph([node("Frobnicate", ["x"], ["b"])])),
            (MODEL,),
            ("Frobnicate",),
        ),
        ("a function that calls itself in a branch", _recursive, (MODEL,), ("circle",)),
        ("an initializer too short, in a branch", _short, (MODEL,), ("'w'",)),
        ("a function with an If, which is legal", _within, (OK, INFEASIBLE), ()),
        ("a body of a Loop without a condition", _no_condition, (MODEL,), ()),
    ):
        for arguments in (ANALYZE, OPTIMIZE):
            yield Case(
                room="bounds",
                wrong=f"{wrong}, {arguments[0]}",
                arguments=arguments,
                build=partial(_write, model),
                exits=exits,
                words=words,
            )


def _of_plans() -> Iterator[Case]:
    one = {"name": "a0", "shape": [4], "bytes": None, "shown": False}
    for wrong, bounds in (
        ("bounds are a text", "a0=4"),
        ("bounds are a map", {"a0": 4}),
        ("a bound is a number", [4]),
        ("a bound has no name", [{"shape": [4]}]),
        ("a bound's shape has a negative dim", [{**one, "shape": [-1]}]),
        ("a bound's shape has a dim of 10^30", [{**one, "shape": [10**30]}]),
        ("a bound is of no tensor", [{**one, "name": "ghost"}]),
        ("a bound is of a known shape", [one]),
        ("a bound says nothing", [{"name": "a0"}]),
    ):
        yield Case(
            room="bounds",
            wrong=f"the plan's {wrong}",
            arguments=("apply", "model.onnx", "plan.json", "-o", "out.onnx", "-q"),
            build=partial(change_plan, "plan.json", _set(bounds)),
            exits=(MODEL, USAGE),
        )


def _set(bounds: object) -> Any:
    return lambda plan: plan.update(bounds=bounds)


def _write(model: Model, folder: Path) -> None:
    save(model(), folder / "model.onnx")


_INPUTS = [info("x", SIDE, SIDE), info("c", dtype=T.BOOL)]


def _graph(nodes: list[onnx.NodeProto]) -> onnx.GraphProto:
    return h.make_graph(nodes, "branch", [], [info("b", SIDE, SIDE)])


def _if(**branches: onnx.GraphProto) -> onnx.NodeProto:
    return node("If", ["c"], ["y"], name="choose", **branches)


def _choice(then: onnx.GraphProto, other: onnx.GraphProto) -> Model:
    return lambda: proto([_if(then_branch=then, else_branch=other)], inputs=_INPUTS)


def _other_type() -> onnx.GraphProto:
    cast = node("Cast", ["x"], ["b"], to=T.INT64)
    return h.make_graph([cast], "branch", [], [info("b", SIDE, SIDE, dtype=T.INT64)])


def _short() -> onnx.ModelProto:
    weight = numpy_helper.from_array(np.ones(SIDE, np.float32), "w")
    weight.raw_data = weight.raw_data[:-4]
    branch = h.make_graph(
        [node("Mul", ["x", "w"], ["b"])], "e", [], [info("b", SIDE, SIDE)], [weight]
    )
    return _choice(branch, branch)()


def _recursive() -> onnx.ModelProto:
    inner = h.make_graph([call("F", ["a"], ["b"])], "branch", [], [info("b", SIDE, SIDE)])
    made = function(
        "F", [*_condition(), node("If", ["c"], ["r"], then_branch=inner, else_branch=inner)]
    )
    return _calling(made)


def _within() -> onnx.ModelProto:
    inner = h.make_graph([node("Neg", ["a"], ["b"])], "branch", [], [info("b", SIDE, SIDE)])
    made = function(
        "F", [*_condition(), node("If", ["c"], ["r"], then_branch=inner, else_branch=inner)]
    )
    return _calling(made)


def _condition() -> list[onnx.NodeProto]:
    return [
        node("ReduceSum", ["a"], ["s"], keepdims=0),
        node("Cast", ["s"], ["c"], to=T.BOOL),
    ]


def _calling(made: onnx.FunctionProto) -> onnx.ModelProto:
    model = proto([call("F", ["x"], ["y"])], opsets=(("", 18), (made.domain, 1)))
    model.functions.append(made)
    return model


def _loop() -> onnx.ModelProto:
    body = h.make_graph(
        [node("Identity", ["c"], ["d"]), node("Neg", ["v"], ["w"])],
        "body",
        [info("i", dtype=T.INT64), info("c", dtype=T.BOOL), info("v", SIDE, SIDE)],
        [info("d", dtype=T.BOOL), info("w", SIDE, SIDE)],
    )
    times = h.make_tensor("times", T.INT64, [], [3])
    return proto([node("Loop", ["times", "", "x"], ["y"], body=body)], initializers=[times])


def _no_condition() -> onnx.ModelProto:
    body = h.make_graph(
        [node("Neg", ["v"], ["w"])],
        "body",
        [info("i", dtype=T.INT64), info("c", dtype=T.BOOL), info("v", SIDE, SIDE)],
        [info("w", SIDE, SIDE)],
    )
    times = h.make_tensor("times", T.INT64, [], [3])
    return proto([node("Loop", ["times", "", "x"], ["y"], body=body)], initializers=[times])


def _unrunnable() -> onnx.ModelProto:
    """A run of it fails: it reads rows that are not there."""
    nodes = [
        node("Gather", ["x", "far"], ["z"]),
        node("NonZero", ["z"], ["at"]),
        node("Cast", ["at"], ["y"], to=T.FLOAT),
    ]
    far = numpy_helper.from_array(np.array([SIDE + 1], np.int64), "far")
    return proto(nodes, outputs=[info("y", 2, None)], initializers=[far])


def _counted() -> onnx.ModelProto:
    """The indices of what is positive, in an output of open length, beside a chain."""
    nodes = [
        node("Sin", ["x"], ["a"]),
        node("Greater", ["a", "zero"], ["is"]),
        node("NonZero", ["is"], ["at"]),
        node("Cast", ["at"], ["at_f"], to=T.FLOAT),
        node("ReduceSum", ["at_f"], ["s"], keepdims=0),
        node("Exp", ["a"], ["e"]),
        node("Mul", ["e", "s"], ["m"]),
        node("Mul", ["m", "a"], ["y"]),
    ]
    zero = h.make_tensor("zero", T.FLOAT, [], [0.0])
    return proto(nodes, initializers=[zero])
