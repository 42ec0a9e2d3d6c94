"""Micro-batches of what no run fits into memory for: told from the operators, or refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import NodeProto
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from tests.reliability.case import MODEL, OK, Case
from tests.reliability.graphs import SIDE, info, node, proto, save

_HUGE = 1 << 20
"""A weight of so many rows and columns takes 4 TiB."""

_DRY = ("optimize", "model.onnx", "--budget", "100%", "--time-limit", "3", "-q", "--dry-run")
_TWO = ("--dim", "batch=8", "--micro-batch", "2")


def cases() -> list[Case]:
    """4 TiB of weights in each."""
    return [
        Case(
            room="huge",
            wrong="micro-batches through an operator that does not tell how samples add up",
            arguments=(*_DRY, *_TWO),
            build=lambda folder: _build(folder, node("CumSum", ["x", "one"], ["y"])),
            exits=(MODEL,),
            words=("'y'", "CumSum", "larger machine"),
        ),
        Case(
            room="huge",
            wrong="micro-batches told from the operators, which is legal",
            arguments=(*_DRY, *_TWO),
            build=lambda folder: _build(folder, node("Tanh", ["x"], ["y"])),
            exits=(OK,),
        ),
    ]


def _build(folder: Path, made: NodeProto) -> None:
    """A total over samples of what a node makes, times the largest of all weights."""
    nodes = [
        made,
        node("ReduceMax", ["w"], ["most"], keepdims=0),
        node("Mul", ["y", "most"], ["scaled"]),
        node("ReduceSum", ["scaled"], ["total"], keepdims=0),
    ]
    model = proto(
        nodes,
        inputs=[info("x", "batch", SIDE), info("w", _HUGE, _HUGE)],
        outputs=[h.make_tensor_value_info("total", T.FLOAT, [])],
        initializers=[nh.from_array(np.ones((), np.int64), "one")],
    )
    save(model, folder / "model.onnx")
