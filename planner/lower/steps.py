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

_COPIES = {
    TO_HOST: (Role.SWAP_OUT, "swap_out"),
    FROM_HOST: (Role.SWAP_IN, "node"),
    SWAP_BEGIN: (Role.SWAP_BEGIN, "swap_begin"),
    SWAP_OUT: (Role.SWAP_OUT, "swap_out"),
    SWAP_OUT_DONE: (Role.SWAP_OUT_DONE, "swap_out_done"),
    SWAP_IN: (Role.SWAP_IN, "node"),
    LOAD_IN: (Role.SWAP_IN, "node"),
    SWAP_IN_DONE: (Role.SWAP_IN_DONE, "done"),
    STORE_TO: (Role.STORE_TO, "store_to"),
    STORE_OUT: (Role.PAGE_OUT, "store"),
}
"""By operator of a copy: the role of its nodes, and what their names end in."""


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


def copying(
    op_type: str,
    stem: str,
    tensor: TensorId,
    reads: dict[str, str],
    *,
    role: Role | None = None,
    copy: int = 0,
) -> PlannedStep:
    """Return a node of a copy to the host or back.

    Args:
        stem: the name of what the node is for, with which its own name begins.
        tensor: the tensor that is copied; for SwapBegin, any that is copied beside the operations.
        role: a role other than the operator's usual one.
        copy: which of the tensor's copies back it is.
    """
    usual, end = _COPIES[op_type]
    return PlannedStep(
        role=role or usual,
        name=f"{stem}__{end}",
        tensor=tensor,
        copy=copy,
        reads=reads,
        op_type=op_type,
    )


def swap_attributes(op_type: str, tensor: Tensor) -> list[ir.Attr]:
    """Return the attributes that state the results of SwapIn, SwapInDone and StoreTo."""
    if op_type not in (SWAP_IN, SWAP_IN_DONE, STORE_TO):
        return []
    dtype = ir.AttrInt64("dtype", int(ir.DataType[tensor.dtype.upper()]))
    return [*([dtype] if op_type != SWAP_IN_DONE else []), ir.AttrInt64s("shape", tensor.shape)]
