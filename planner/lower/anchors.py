"""With what a step can be anchored: a reader of its output that costs next to nothing.

An anchor is a node that nobody reads, at the end of the file: ONNX Runtime visits it early, and what it
reads must have run by then (`planner.lower.realize`). It must not be folded, and must run where its
tensor is, or ONNX Runtime would copy the tensor for its sake. `Size` reads the shape alone, but WebGPU
has no kernel for it; there one element is read, by `GatherND`. The rules of each target are its row in
`planner.targets`.
"""

from __future__ import annotations

from planner.graph.model import Tensor
from planner.graph.rules import SWAP_TOKENS
from planner.targets import AnchorRule, Target

_SCALARS = {"Size": "int64", "OptionalHasElement": "bool", "SequenceLength": "int64"}
"""Element type of a result that is a scalar, whatever is anchored."""


def own_type(op_type: str, tensor: Tensor) -> tuple[str, tuple[int, ...]] | None:
    """Element type and shape of what an added node makes; None where they are those of what it reads."""
    if op_type in _SCALARS:
        return _SCALARS[op_type], ()
    if op_type in SWAP_TOKENS:
        return "uint8", (1,)
    return (tensor.dtype, (1,)) if op_type == "GatherND" else None


def anchor_operator(target: Target, tensor: Tensor, opset: int, *, on_host: bool) -> str | None:
    """The operator that anchors a tensor, or None where the target has none for its type.

    Args:
        tensor: as the original graph has it: element type and rank.
        opset: the model's operator set of the default domain.
        on_host: the value to anchor is a copy on the host.
    """
    if tensor.dtype == "sequence":
        return "SequenceLength"
    rules: tuple[AnchorRule, ...] = target.host_anchors if on_host else target.anchors
    rank = len(tensor.shape)
    return next((r.op_type for r in rules if r.fits(tensor.dtype, rank, opset)), None)
