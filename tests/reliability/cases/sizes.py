"""Tensors so large that nobody has the memory, which planning does not need."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import onnx
from onnx import TensorProto as T
from onnx import helper as h

from tests.reliability.case import ANALYZE, OK, OPTIMIZE, USAGE, Case
from tests.reliability.cases.graphs import Model, write
from tests.reliability.graphs import diamond, info, node, proto

_TIB = (1 << 20, 1 << 18)
"""Dims of a tensor of 1 TiB."""


def cases() -> list[Case]:
    """Dims that no machine can hold: counted, planned, and refused only where they would be made."""
    found = [
        Case(
            room="size",
            wrong=wrong,
            arguments=ANALYZE if i % 2 else OPTIMIZE,
            build=partial(write, model),
            words=words,
            alone=True,
        )
        for i, (wrong, model, words) in enumerate(_refused())
    ]
    for wrong, model, budget in _huge():
        # of sizes like these an arena loses what it loses: what is asked is whether they are counted
        optimize = (*OPTIMIZE, "--budget", budget, "--budget-of", "live")
        found += [
            Case(
                room="size",
                wrong=f"{wrong}: {what}",
                arguments=arguments,
                build=partial(write, model),
                exits=exits,
                words=words,
                alone=True,
            )
            for what, arguments, exits, words in (
                ("analysed", ANALYZE, (OK,), ()),
                ("planned", (*optimize, "--dry-run"), (OK,), ()),
                ("written, not run", (*optimize, "--no-verify"), (OK,), ()),
                ("run", optimize, (USAGE,), ("--no-verify",)),
            )
        ]
    return found


def _square(*dims: int | str) -> Model:
    return lambda: proto(diamond(), inputs=[info("x", *dims)], outputs=[info("y", *dims)])


def _refused() -> Iterator[tuple[str, Model, tuple[str, ...]]]:
    yield "a dim of -1", _square(-1, 16), ("x:0", "--shape x=1x16")
    yield "a dim of -(2^62)", _square(-(1 << 62), 16), ("'x'",)
    yield "two negative dims", _square(-4, -4), ("'x'",)
    yield "a dim of 2^62", _square(1 << 62), ("'x'", "bytes")
    yield "a dim of 2^63 - 1", _square((1 << 63) - 1), ("'x'", "bytes")
    yield "dims of 2^31 x 2^31 x 4", _square(1 << 31, 1 << 31, 4), ("'x'", "bytes")
    yield "64 dims of 2^62", _square(*[1 << 62] * 64), ("'x'", "bytes")
    yield "tensors that are too large together", _square(1 << 59), ("together",)
    yield "a product of two legal inputs is too large", _outer, ("'y'",)
    yield "a dim of 0 beside 2^62, and -1", _square(0, 1 << 62, -1), ("x:2",)


def _outer() -> onnx.ModelProto:
    n = 1 << 32
    return proto(
        [node("MatMul", ["x", "w"], ["y"])],
        inputs=[info("x", n, 1), info("w", 1, n)],
        outputs=[info("y", n, n)],
    )


def _unused() -> onnx.ModelProto:
    return proto(diamond(), inputs=[info("x", 16, 16), info("unused", *_TIB)])


def _dead() -> onnx.ModelProto:
    nodes = [*diamond(), node("Expand", ["x", "shape"], ["dead"])]
    shape = h.make_tensor("shape", T.INT64, [3], [1 << 30, 16, 16])
    return proto(nodes, initializers=[shape])


def _filled() -> onnx.ModelProto:
    """A ConstantOfShape that ONNX Runtime's folding would make."""
    zero = h.make_tensor("value", T.FLOAT, [1], [0.5])
    first = node("ConstantOfShape", ["shape"], ["c"], value=zero)
    nodes = [first, node("Add", ["x", "c"], ["s"]), *diamond()]
    nodes[2].input[0] = "s"
    shape = h.make_tensor("shape", T.INT64, [2], list(_TIB))
    return proto(nodes, inputs=[info("x", *_TIB)], outputs=[info("y", *_TIB)], initializers=[shape])


def _huge() -> Iterator[tuple[str, Model, str]]:
    """Each with a budget that can be met."""
    yield "tensors of 1 TiB", _square(*_TIB), "60%"
    yield "tensors of 2^57 bytes", _square(1 << 28, 1 << 27), "60%"
    yield "an unused input of 1 TiB", _unused, "100%"
    yield "a folded constant of 1 TiB", _filled, "80%"
    yield "a dead node of 1 TiB", _dead, "100%"
