"""Steps: nodes of the rewritten graph before they are written, and those of copies to the host and
back.

A copy out that the schedule waits for runs beside the operations, and so does the copy back
(`planner.native` has the operators):

    SwapBegin() -> r           the first node of all
    SwapOut(x, r) -> t         at its place: it returns at once
    SwapOutDone(t, x) -> u     where the schedule waits: it reads x, which ONNX Runtime keeps until then
    SwapIn(u) -> y             at its place: y has its buffer, and its bytes are under way
    LoadIn(h, r) -> y          the same, for a value that lives on the host
    SwapInDone(y) -> z         right before the first reader: z is y, complete
    StoreTo() -> h             an output of the graph on the host, still empty
    StoreOut(x, r, h) -> t     like SwapOut, to h; SwapOutDone follows

Other copies are one node each way, on the stream of the operations.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from planner.graph.model import OpId, Role, Tensor, TensorId
from planner.graph.rules import (
    FROM_HOST,
    LOAD_IN,
    STORE_OUT,
    STORE_TO,
    SWAP_BEGIN,
    SWAP_IN,
    SWAP_IN_DONE,
    SWAP_OUT,
    SWAP_OUT_DONE,
    TO_HOST,
)


@dataclass(slots=True, kw_only=True)
class PlannedStep:
    """One node of the rewritten graph, in planned order.

    Attributes:
        op: its original operation, or the one that it copies; None for added nodes.
        copy: 0 for the original, i for its i-th recompute (or i-th instance of a view).
        reads: value name per distinct original input name of `op`, where it differs; for added
            nodes, {"": the value read}, followed by others.
        writes: value name per original output name (or {"": name} for added nodes); an output
            that nobody reads and that may be left out maps to "".
        number: makes the `__planner` attribute unique; 0 for original nodes.
        op_type: operator of an added node.
        on_cpu: whether it is an added node that runs on the CPU, on a target with a memory of its own.
    """

    role: Role
    name: str
    op: OpId | None = None
    tensor: TensorId | None = None
    copy: int = 0
    reads: dict[str, str] = field(default_factory=dict)
    writes: dict[str, str] = field(default_factory=dict)
    number: int = 0
    op_type: str = ""
    on_cpu: bool = False


def to_host(name: str, tensor: TensorId, source: str) -> PlannedStep:
    """Return a copy out on the stream of the operations."""
    return _copy(Role.SWAP_OUT, TO_HOST, f"{name}__swap_out", tensor, {"": source})


def from_host(output: str, tensor: TensorId, source: str, count: int) -> PlannedStep:
    """Return the `count`-th copy back on the stream of the operations; its output is `output`."""
    step = _copy(Role.SWAP_IN, FROM_HOST, f"{output}__node", tensor, {"": source})
    step.copy = count
    return step


def begin(tensor: TensorId, reads: str | None) -> PlannedStep:
    """Return the node that names a run.

    Args:
        tensor: any tensor that is copied beside the operations.
        reads: a value on the device, where a node without one might be placed on the CPU.
    """
    of = {"": reads} if reads else {}
    return _copy(Role.SWAP_BEGIN, SWAP_BEGIN, "planner__swap_begin", tensor, of)


def out(name: str, tensor: TensorId, source: str, run: str) -> PlannedStep:
    """Return the node that begins a copy out beside the operations."""
    reads = {"": source, "run": run}
    return _copy(Role.SWAP_OUT, SWAP_OUT, f"{name}__swap_out", tensor, reads)


def out_done(name: str, tensor: TensorId, token: str, source: str) -> PlannedStep:
    """Return the node that waits for a copy out."""
    reads = {"": token, "of": source}
    return _copy(Role.SWAP_OUT_DONE, SWAP_OUT_DONE, f"{name}__swap_out_done", tensor, reads)


def back(output: str, tensor: TensorId, token: str, count: int) -> PlannedStep:
    """Return the node that begins the `count`-th copy back, which will be `output`."""
    step = _copy(Role.SWAP_IN, SWAP_IN, f"{output}__node", tensor, {"": token})
    step.copy = count
    return step


def load(role: Role, output: str, tensor: TensorId, host: str, run: str) -> PlannedStep:
    """Return the node that begins a copy in of a value that lives on the host, which will be
    `output`."""
    reads = {"": host, "run": run}
    return _copy(role, LOAD_IN, f"{output}__node", tensor, reads)


def store_to(name: str, tensor: TensorId) -> PlannedStep:
    """Return the node that makes an output of that name, which will live on the host."""
    step = _copy(Role.STORE_TO, STORE_TO, f"{name}__store_to", tensor, {})
    step.writes = {"": name}
    return step


def store(name: str, tensor: TensorId, source: str, run: str) -> PlannedStep:
    """Return the node that begins a copy out to the output of that name."""
    reads = {"": source, "run": run, "to": name}
    return _copy(Role.PAGE_OUT, STORE_OUT, f"{name}__store", tensor, reads)


def back_done(output: str, tensor: TensorId, coming: str) -> PlannedStep:
    """Return the node that waits for a copy back."""
    return _copy(Role.SWAP_IN_DONE, SWAP_IN_DONE, f"{output}__done", tensor, {"": coming})


def _copy(
    role: Role, op_type: str, name: str, tensor: TensorId, reads: dict[str, str]
) -> PlannedStep:
    return PlannedStep(role=role, op_type=op_type, name=name, tensor=tensor, reads=reads)


def swap_attributes(op_type: str, tensor: Tensor) -> list[ir.Attr]:
    """Return the attributes that state the results of SwapIn, SwapInDone and StoreTo."""
    if op_type not in (SWAP_IN, SWAP_IN_DONE, STORE_TO):
        return []
    dtype = ir.AttrInt64("dtype", int(ir.DataType[tensor.dtype.upper()]))
    return [*([dtype] if op_type != SWAP_IN_DONE else []), ir.AttrInt64s("shape", tensor.shape)]
