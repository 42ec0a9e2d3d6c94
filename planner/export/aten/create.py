"""Creation of tensors. Most are folded into constants before they reach these rules."""

from __future__ import annotations

from planner.export.aten.registry import Lowering, Result, lowers


@lowers("new_zeros", "empty_like", "empty.memory_format", "new_empty")
def zeros(low: Lowering, *_: object, **__: object) -> Result:
    """Lower to zeros, also in place of uninitialized memory."""
    return low.filled(0)
