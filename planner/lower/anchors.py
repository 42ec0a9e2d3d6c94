"""With what a step can be anchored: a reader of its output that costs next to nothing.

An anchor is a node that nobody reads, at the end of the file: ONNX Runtime visits it early, and what it
reads must have run by then (`planner.lower.realize`). It must not be folded, and must run where its
tensor is, or ONNX Runtime would copy the tensor for its sake. `Size` reads the shape alone, but WebGPU
has no kernel for it; there one element is read, by `GatherND`. The rules of each target are its row in
`planner.targets`.
"""

from __future__ import annotations

from planner.graph.model import Tensor
from planner.targets import AnchorRule, Target

SCALAR_TYPES = {"Size": "int64", "OptionalHasElement": "bool"}
"""Type of the result, where it is not the tensor's own."""


def anchor_operator(target: Target, tensor: Tensor, opset: int, *, on_host: bool) -> str | None:
    """The operator that anchors a tensor, or None where the target has none for its type.

    Args:
        tensor: as the original graph has it: element type and rank.
        opset: the model's operator set of the default domain.
        on_host: the value to anchor is a copy on the host.
    """
    rules: tuple[AnchorRule, ...] = target.host_anchors if on_host else target.anchors
    rank = len(tensor.shape)
    return next((r.op_type for r in rules if r.fits(tensor.dtype, rank, opset)), None)
