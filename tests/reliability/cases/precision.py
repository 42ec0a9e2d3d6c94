"""Precision: ways to store tensors that are none, and models in which nothing can be stored so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from onnx import TensorProto as T
from onnx import helper as h

from tests.reliability.case import OK, USAGE, Case
from tests.reliability.graphs import SIDE, info, node, proto, save
from tests.reliability.kit import take


def cases() -> list[Case]:
    """Each is refused by name, or is legal."""
    return list(_casts())


def _casts() -> Iterator[Case]:
    optimize = ("optimize", "model.onnx", "-q", "--dry-run", "--time-limit", "3")
    for wrong, build, more in (
        ("--cast-saved int8", _model, ("--budget", "60%", "--cast-saved", "int8")),
        (
            "--cast-saved bf16 of a model in which nothing is saved for a backward pass",
            _model,
            ("--budget", "60%", "--cast-saved", "bf16"),
        ),
        (
            "--cast-saved bf16 where all that is saved are indices and masks",
            _indices,
            ("--budget", "60%", "--cast-saved", "bf16"),
        ),
        (
            "--cast-saved fp16 with everything left out",
            _saving,
            ("--budget", "60%", "--cast-saved", "fp16", "--exclude", "*"),
        ),
        (
            "--cast-saved bf16 with a slowdown and no budget",
            _saving,
            ("--max-slowdown", "5%", "--cast-saved", "bf16"),
        ),
        (
            "--cast-saved bf16 on WebGPU, which has no such cast",
            _saving,
            ("--budget", "60%", "--device", "webgpu", "--cast-saved", "bf16"),
        ),
        (
            "--cast-saved bf16 of operator set 12",
            _old,
            ("--budget", "60%", "--cast-saved", "bf16"),
        ),
    ):
        yield Case(
            room="precision",
            wrong=wrong,
            arguments=(*optimize, *more),
            build=build,
            exits=(USAGE,),
            words=("--cast-saved",),
        )
    yield Case(
        room="precision",
        wrong="--cast-saved bf16, which is legal",
        arguments=(*optimize, "--budget", "95%", "--cast-saved", "bf16"),
        build=_saving,
        exits=(OK,),
    )


def _model(folder: Path) -> None:
    take("model.onnx", into=folder)


def _saving(folder: Path, *, opset: int = 18) -> None:
    """A loss, and a backward pass that reads what was made on the way to it."""
    nodes = [node("Tanh", ["x"], ["a0"])]
    nodes += [node("Tanh", [f"a{i}"], [f"a{i + 1}"]) for i in range(5)]
    nodes.append(node("ReduceMean", ["a5"], ["loss"], keepdims=0))
    nodes.append(node("Mul", ["a5", "a5"], ["b5"]))
    nodes += [node("Mul", [f"b{i + 1}", f"a{i}"], [f"b{i}"]) for i in reversed(range(1, 5))]
    nodes.append(node("Mul", ["b1", "a0"], ["x_grad"]))
    outputs = [info("loss"), info("x_grad", SIDE, SIDE)]
    save(proto(nodes, outputs=outputs, opsets=(("", opset),)), folder / "model.onnx")


def _old(folder: Path) -> None:
    _saving(folder, opset=12)


def _indices(folder: Path) -> None:
    nodes = [
        node("ArgMax", ["x"], ["at"], axis=1, keepdims=1),
        node("Greater", ["x", "half"], ["mask"]),
        node("Cast", ["at"], ["number"], to=T.FLOAT),
        node("Cast", ["mask"], ["on"], to=T.FLOAT),
        node("Add", ["number", "on"], ["sum"]),
        node("ReduceMean", ["sum"], ["loss"], keepdims=0),
        node("GatherElements", ["x", "at"], ["picked"], axis=1),
        node("Where", ["mask", "x", "picked"], ["x_grad"]),
    ]
    outputs = [info("loss"), info("x_grad", SIDE, SIDE)]
    half = h.make_tensor("half", T.FLOAT, [], [0.5])
    save(proto(nodes, outputs=outputs, initializers=[half]), folder / "model.onnx")
