"""Assignments through a mask, `x[:, mask] = value` and `x[i, mask] = value`, as one `torch.where`.

They apply if the value does not depend on the number of True elements. Their gradients have shapes that a
trace knows.

x[:, mask] = row           one value, or one for all positions of the mask
x[3, mask] = row           the same in one row; the index may be a tensor of rank 0, or [1]
x[i[:, None], mask] = v    in several rows: all of them at all positions
x[i, mask] = v             i of [n], and a mask with n True elements: the nth position in row i[n]

In the last form, a mask with another number of True elements writes NaN (PyTorch raises, or takes a
single position for all rows).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from planner.export.apart.indexing import place_in


def assigned(x: Tensor, index: Any, value: Any) -> None:
    """Perform `x[index] = value` by `torch.where` for these forms, and by PyTorch for others."""
    if (split := place_in(x, index)) is not None:
        chosen, rest = split
        row = x[chosen].clone()
        assigned(row, rest, value)
        x[chosen] = row
        return
    parts = index if isinstance(index, tuple) else (index,)
    masks = [p for p in parts if isinstance(p, Tensor) and p.dtype == torch.bool]
    rows = [p for p in parts if _is_row(p)]
    is_plain = all(isinstance(p, slice) and p == slice(None) for p in _others(parts, masks, rows))
    if len(masks) == 1 and len(rows) < 2 and is_plain and (rows or isinstance(value, Tensor)):
        wanted = value if isinstance(value, Tensor) else torch.full((), value, dtype=x.dtype)
        found = _chosen(x, parts, wanted)
        if found is not None:
            x.copy_(torch.where(*found, x))
            return
    x[index] = value


def _others(parts: tuple[Any, ...], *known: list[Any]) -> list[Any]:
    return [p for p in parts if all(p is not one for some in known for one in some)]


def _is_row(part: Any) -> bool:
    """Tell whether a part is an integer, or an integer tensor of rank 0, [n] or [n, 1]."""
    if isinstance(part, Tensor):
        return part.dtype in (torch.int32, torch.int64) and (
            part.dim() < 2 or (part.dim() == 2 and part.shape[1] == 1)
        )
    return isinstance(part, int) and not isinstance(part, bool)


def _chosen(x: Tensor, parts: tuple[Any, ...], value: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return (mask of x's elements to write, values), both broadcastable to x; None for other forms."""
    spans = _spans(parts)
    first, last = spans[0][1], spans[-1][1] + spans[-1][2]
    is_together = last - first == sum(width for _, _, width in spans)
    masked = mask, at, width = next(span for span in spans if not _is_row(span[0]))
    rows = [(torch.as_tensor(part), axis) for part, axis, _ in spans if _is_row(part)]
    pairs = [row for row, _ in rows if row.dim() == 1 and row.shape[0] != 1]
    count = pairs[0].shape[0] if pairs else 0
    ranks = (mask.reshape(-1).cumsum(0) - 1).clamp(0, count - 1) if count else None
    if rows and value.numel() == 1:
        wanted = value.reshape(())
    elif not is_together:
        return None
    else:
        common = max([1, *(row.dim() for row, _ in rows)])
        wanted = _spread(x, value, (first, last), common)
        place = value.dim() - (x.dim() - last) - 1
        if wanted is None and ranks is not None and place >= 0 and value.shape[place] == count:
            wanted = _each(value, place, ranks, (first, last), masked)
    if wanted is None:
        return None
    if ranks is not None and wanted.is_floating_point():
        wanted = torch.where(mask.sum() == count, wanted, torch.nan)
    hit = _along(x, mask, at, width)
    for row, axis in rows:
        hit = hit & _rows(x, row, axis, ranks, masked)
    return hit, wanted


def _spans(parts: tuple[Any, ...]) -> list[tuple[Any, int, int]]:
    """Return (mask or index, its first axis, its number of axes), in order."""
    found: list[tuple[Any, int, int]] = []
    axis = 0
    for part in parts:
        width = part.dim() if isinstance(part, Tensor) and part.dtype == torch.bool else 1
        if not isinstance(part, slice):
            found.append((part, axis, width))
        axis += width
    return found


def _along(x: Tensor, part: Tensor, axis: int, width: int) -> Tensor:
    """Reshape a tensor of some axes of x to broadcast along the others."""
    return part.reshape(*[1] * axis, *part.shape, *[1] * (x.dim() - axis - width))


def _rows(
    x: Tensor, row: Tensor, axis: int, ranks: Tensor | None, masked: tuple[Tensor, int, int]
) -> Tensor:
    """Return a mask of the rows of x to write along the axis.

    These are all of `row`, or for each position of the mask its own row.
    """
    size = x.shape[axis]
    row = torch.where(row < 0, row + size, row)
    places = _along(x, torch.arange(size), axis, 1)
    if ranks is None:
        return _along(x, (torch.arange(size) == row.reshape(-1, 1)).any(0), axis, 1)
    mask, at, width = masked
    return places == _along(x, row[ranks].reshape(mask.shape), at, width)


def _spread(x: Tensor, value: Tensor, span: tuple[int, int], common: int) -> Tensor | None:
    """Return a value that is equal at all positions, broadcastable to x; None for other values.

    Args:
        span: the indexed axes of x, whose positions take `common` axes of the value.
    """
    behind = x.dim() - span[1]
    start = max(value.dim() - behind - common, 0)
    held = value.shape[start : max(value.dim() - behind, 0)]
    if any(size != 1 for size in held):
        return None
    ones = [1] * (span[1] - span[0])
    ahead, rest = value.shape[:start], value.shape[start + len(held) :]
    return value.reshape(*ahead, *ones, *rest) if held else value


def _each(
    value: Tensor, place: int, ranks: Tensor, span: tuple[int, int], masked: tuple[Tensor, int, int]
) -> Tensor:
    """Return values with one entry per position of the mask on axis `place`, broadcastable to x."""
    mask, at, width = masked
    found = value.index_select(place, ranks)
    ahead, behind = [1] * (at - span[0]), [1] * (span[1] - at - width)
    shape = [*value.shape[:place], *ahead, *mask.shape, *behind, *value.shape[place + 1 :]]
    return found.reshape(shape)
