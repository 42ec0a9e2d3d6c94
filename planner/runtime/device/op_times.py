"""Measure the time of each node of a model on a CUDA device, and of issuing a node and of a copy.

A kernel is issued and runs later: a profile's node events show the time to issue it. With
`CUDA_LAUNCH_BLOCKING=1` (CUDA C++ Programming Guide, environment variables) each launch waits for its
kernel: an event lasts as long as the kernel and a fixed wait. A chain of additions to one number
shows that wait, since its nodes take no time on the device. Without the variable, a step of the same
chain takes the time of issuing its nodes, which is the least time of any node of a step:

    time of a node = issue + max(0, its event - an event of the chain)     a kernel
                   = issue * its event / an event of the chain             a node that launches none
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

if TYPE_CHECKING:
    # each process on a device imports this module, and few build a model or read times
    import onnx

    from planner.cost.measured import MeasuredTimes

_Node = tuple[str, list[str], list[str], str]

SHORT, LONG = 64, 512
"""Nodes of two chains: the difference of their steps is that of their nodes."""
SMALL_BYTES, LARGE_BYTES = 1 << 20, 1 << 26


def kernel_us(event_us: Mapping[str, float], chain_us: float, issue_us: float) -> dict[str, float]:
    """Return the microseconds of nodes, from events of launches that wait.

    Args:
        event_us: the least event of each node.
        chain_us: the event of a node that takes no time on the device.
        issue_us: the time to issue a node.
    """
    return {
        name: issue_us + us - chain_us if us >= chain_us else issue_us * us / chain_us
        for name, us in event_us.items()
    }


def chain(nodes: int) -> onnx.ModelProto:
    """Build a chain of `nodes` additions to one number, each reading the previous sum."""
    made = [("Add", [f"v{i}" if i else "x", "x"], [f"v{i + 1}"], f"add{i}") for i in range(nodes)]
    return _model(made, {"x": 1}, f"v{nodes}")


def copied(size_bytes: int, *, back: bool) -> onnx.ModelProto:
    """Build a model that copies an input on the device to the host and, with `back`, back."""
    nodes = [("MemcpyToHost", ["x"], ["host"], "out")]
    if back:
        nodes.append(("MemcpyFromHost", ["host"], ["device"], "in"))
    nodes.append(("Size", ["device" if back else "host"], ["size"], "size"))
    return _model(nodes, {"x": size_bytes // 4}, "size")


def fed(size_bytes: int) -> onnx.ModelProto:
    """Build a model that copies an input on the host to the device."""
    nodes = [
        ("MemcpyFromHost", ["x"], ["device"], "in"),
        ("Size", ["device"], ["size"], "size"),
    ]
    return _model(nodes, {"x": size_bytes // 4}, "size")


def slope(short: tuple[float, float], long: tuple[float, float]) -> float:
    """Return the slope between two points (amount, time), at least 0."""
    return max(0.0, (long[1] - short[1]) / (long[0] - short[0]))


def times_of(answer: Mapping[str, Any], issued: Mapping[str, Any]) -> MeasuredTimes:
    """Combine the answers of a worker that waits for launches and of one that does not.

    Args:
        answer: `event_us` of the model and `chain_us`; `runs`.
        issued: seconds of steps of the chains, and of the copies: `chain`, `out`, `both` and `fed`, for a
            small and a large amount each.

    Returns:
        Times whose `pin_us` is what a step takes for each additional node without time on the device.
    """
    from planner.cost.measured import MeasuredTimes

    issue_us = 1e6 * slope((SHORT, issued["chain"][0]), (LONG, issued["chain"][1]))
    out_s, both_s, fed_s = (
        slope((SMALL_BYTES, issued[kind][0]), (LARGE_BYTES, issued[kind][1]))
        for kind in ("out", "both", "fed")
    )
    in_s = max(both_s - out_s, both_s / 8)  # noise can make the difference vanish
    return MeasuredTimes(
        kernel_us=kernel_us(answer["event_us"], answer["chain_us"], issue_us),
        runs=answer["runs"],
        pin_us=issue_us,
        copy_out_bytes_per_s=1 / max(out_s, 1e-15),
        copy_in_bytes_per_s=1 / max(in_s, 1e-15),
        pageable_bytes_per_s=1 / max(fed_s, 1e-15),
    )


def write(model: onnx.ModelProto, folder: Path, name: str) -> Path:
    """Write a small model to a file."""
    path = folder / f"{name}.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def floats(model: onnx.ModelProto) -> dict[str, npt.NDArray[Any]]:
    """Return an array of ones for a small model's input."""
    import numpy as np

    size = model.graph.input[0].type.tensor_type.shape.dim[0].dim_value
    return {"x": np.ones(size, np.float32)}


def _model(nodes: list[_Node], inputs: Mapping[str, int], output: str) -> onnx.ModelProto:
    from onnx import TensorProto, helper

    kind = TensorProto.INT64 if output == "size" else TensorProto.FLOAT
    shape = [] if output == "size" else [1]
    graph = helper.make_graph(
        [helper.make_node(*node) for node in nodes],
        "times",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [s]) for n, s in inputs.items()],
        [helper.make_tensor_value_info(output, kind, shape)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
