"""Micro-batches of models that have none, and in numbers that do not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from onnx import NodeProto
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from tests.reliability.case import MODEL, OK, USAGE, Case
from tests.reliability.graphs import SIDE, info, node, proto, save
from tests.reliability.kit import take

Build = Callable[[Path], object]

_DRY = ("optimize", "model.onnx", "--budget", "100%", "--time-limit", "3", "-q", "--dry-run")
_EIGHT = ("--dim", "batch=8")
_BUDGETLESS = ("optimize", "model.onnx", "--max-slowdown", "5%", "-q", "--dry-run", *_EIGHT)


def cases() -> list[Case]:
    """Refused before anything is planned, by the option, the input or the node that stands in the way."""
    found = [
        Case(
            room="micro-batch",
            wrong=f"--micro-batch {text if len(text) < 40 else 'a number of 5,000 digits'}",
            arguments=(*_DRY, *_EIGHT, f"--micro-batch={text}"),
            build=_sum,
            exits=(USAGE,),
            words=("--micro-batch",),
        )
        for text in ("", "0", "-2", "1.5", "half", "AUTO", "２", "9" * 5000, "3", "16", "999999999")
    ]
    found += [
        Case(
            room="micro-batch",
            wrong=wrong,
            arguments=(*_DRY, *dims, "--micro-batch", "2"),
            build=build,
            exits=(code,),
            words=words,
        )
        for wrong, build, dims, code, words in _models()
    ]
    found += [
        Case(
            room="micro-batch",
            wrong="auto with no budget",
            arguments=(*_BUDGETLESS, "--micro-batch", "auto"),
            build=_sum,
            exits=(USAGE,),
            words=("--budget",),
        ),
        Case(
            room="micro-batch",
            wrong="times of another batch",
            arguments=(*_DRY, *_EIGHT, "--micro-batch", "2", "--profile", "model.onnx"),
            build=_sum,
            exits=(USAGE,),
            words=("--profile",),
        ),
    ]
    found += [
        Case(
            room="micro-batch",
            wrong=f"--micro-batch {text}, which is legal",
            arguments=(*_DRY, *_EIGHT, "--micro-batch", text),
            build=_sum,
            exits=(OK,),
        )
        for text in ("1", "8", "auto")
    ]
    return found


def _models() -> Iterator[tuple[str, Build, tuple[str, ...], int, tuple[str, ...]]]:
    """(what is wrong, what makes it, dims, exit code, words)."""
    yield "the batch is fixed", _fixed, (), MODEL, ("--dynamic-batch",)
    yield (
        "the dims of two inputs may be the batch",
        _two,
        ("--dim", "a=4", "--dim", "c=4"),
        USAGE,
        ("a, c",),
    )
    yield "nothing is summed", _of(node("Tanh", ["x"], ["y"])), _EIGHT, MODEL, ("batch",)
    for wrong, build, name in (
        (
            "a mean over the batch is subtracted",
            _of(*_mean(), node("Sub", ["x", "m"], ["y"])),
            "'y'",
        ),
        ("a softmax over the batch", _of(node("Softmax", ["x"], ["y"], axis=0)), "'y'"),
        ("a maximum over the batch", _of(node("ReduceMax", ["x"], ["y"], keepdims=0)), "'y'"),
        ("pairs of samples", _of(_t(), node("MatMul", ["x", "x_t"], ["y"])), "'y'"),
        ("running sums over the batch", _of(node("CumSum", ["x", "zero"], ["y"])), "'y'"),
        (
            "batch normalization in training mode",
            _of(
                node(
                    "BatchNormalization",
                    ["x", "ones", "ones", "ones", "ones"],
                    ["y", "mean", "var"],
                    training_mode=1,
                )
            ),
            "'y'",
        ),
    ):
        yield wrong, build, _EIGHT, MODEL, (name,)


def _t() -> NodeProto:
    return node("Transpose", ["x"], ["x_t"])


def _mean() -> list[NodeProto]:
    return [node("ReduceMean", ["x"], ["m"], keepdims=0, noop_with_empty_axes=0)]


def _of(*nodes: NodeProto) -> Build:
    """A function that writes a model of these nodes, from `x` [batch, SIDE] to a total of `y`."""

    def build(folder: Path) -> None:
        import numpy as np

        ones = nh.from_array(np.ones(SIDE, np.float32), "ones")
        zero = nh.from_array(np.zeros((), np.int64), "zero")
        is_summed = nodes[-1].op_type == "Tanh"
        last = [] if is_summed else [node("ReduceSum", ["y"], ["total"], keepdims=0)]
        out = (
            info("y", "batch", SIDE)
            if is_summed
            else h.make_tensor_value_info("total", T.FLOAT, [])
        )
        model = proto(
            [*nodes, *last],
            inputs=[info("x", "batch", SIDE)],
            outputs=[out],
            initializers=[ones, zero],
        )
        save(model, folder / "model.onnx")

    return build


def _sum(folder: Path) -> None:
    _of(node("Tanh", ["x"], ["a"]), node("Exp", ["a"], ["y"]))(folder)


def _two(folder: Path) -> None:
    nodes = [node("ReduceSum", [n], [f"{n}_sum"], keepdims=0) for n in ("x", "z")]
    nodes.append(node("Add", ["x_sum", "z_sum"], ["y"]))
    inputs = [info("x", "a", SIDE), info("z", "c", SIDE)]
    out = h.make_tensor_value_info("y", T.FLOAT, [])
    save(proto(nodes, inputs=inputs, outputs=[out]), folder / "model.onnx")


def _fixed(folder: Path) -> None:
    take("model.onnx", into=folder)
