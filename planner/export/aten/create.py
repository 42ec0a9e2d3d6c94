"""Tensors made from nothing. Most are folded into constants before they reach these rules."""

from __future__ import annotations

from planner.export.aten.registry import Lowering, Result, lowers


@lowers("new_zeros", "empty_like", "empty.memory_format", "new_empty")
def zeros(low: Lowering, *_: object, **__: object) -> Result:
    """Also stands for memory left uninitialized."""
    return low.filled(0)
