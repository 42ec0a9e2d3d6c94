"""Indices that are tensors of rank 0: `x[place]` and `x[place] = row`, with the place a tensor.

PyTorch reads such an index as a number, which a trace does not have. Here it chooses along its axis as a
tensor of rank 1, whose axis is then taken by 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_INTEGERS = frozenset({torch.int8, torch.int16, torch.int32, torch.int64})


def place_in(x: Tensor, index: Any) -> tuple[Any, Any] | None:
    """Split an index at its first traced tensor of rank 0; None where there is none.

    Returns (the index that chooses along its axis alone, the same index with 0 in its place).
    """
    parts = list(index) if isinstance(index, tuple) else [index]
    for at, part in enumerate(parts):
        if _is_place(part):
            ahead = (slice(None),) * _axis(x, parts, at)
            return (*ahead, part.reshape(1).long()), (*parts[:at], 0, *parts[at + 1 :])
    return None


def _is_place(part: Any) -> bool:
    is_traced = isinstance(part, Tensor) and type(part) is not Tensor
    return is_traced and not part.dim() and part.dtype in _INTEGERS


def _axis(x: Tensor, parts: list[Any], at: int) -> int:
    """Return the axis of x that the part of this number chooses from."""
    ahead = parts[:at]
    if any(part is Ellipsis for part in ahead):
        return x.dim() - sum(map(_width, parts[at:]))
    return sum(map(_width, ahead))


def _width(part: Any) -> int:
    """Return the number of axes that a part of an index takes."""
    if part is None or part is Ellipsis or isinstance(part, bool):
        return 0
    is_mask = isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8)
    return part.dim() if is_mask else 1


def narrowed(x: Tensor, dim: int, start: Any, length: int) -> Tensor:
    """Compute `x.narrow(dim, start, length)` with a start that may be a traced tensor."""
    if not _is_place(start):
        return x.narrow(dim, start, length)
    return x.index_select(dim, start.long() + torch.arange(length, device=x.device))
