"""`torch.nn.functional.grid_sample` in operators that have gradients in ONNX."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import reduce
from operator import and_, mul

import torch
import torch.nn.functional as F
from torch import Tensor

_MODES = ("bilinear", "nearest")


def grid_sample(
    x: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:
    """Elements of an image at places between its own: one gather for each corner around a place.

    Bicubic interpolation is left to PyTorch's operator, which ONNX has; that of its gradient it has not.

    Args:
        x: [samples, channels, *sizes], of two or three sizes.
        grid: [samples, *places, axes]: coordinates from -1 to 1, the last axis of the image first.
        mode: of interpolation.
        padding_mode: what is outside: zeros, the border, or the reflection.
        align_corners: -1 and 1 are the centres of the corners, not their outer edges.
    """
    if mode not in _MODES:
        return F.grid_sample(x, grid, mode, padding_mode, align_corners)
    align = bool(align_corners)
    sizes = [int(size) for size in x.shape[2:]]
    places = [
        _inside(_place(grid[..., -1 - axis], size, align=align), size, padding_mode, align=align)
        for axis, size in enumerate(sizes)
    ]
    rows = x.flatten(2)
    if mode == "nearest":
        found = _taken(rows, [place.round() for place in places], sizes)
    else:
        found = _between(rows, places, sizes)
    return found.unflatten(2, list(grid.shape[1:-1]))


def _place(coordinate: Tensor, size: int, *, align: bool) -> Tensor:
    """From [-1, 1] to a place among `size` elements, which need not be whole or inside."""
    if align:
        return (coordinate + 1) / 2 * (size - 1)
    return ((coordinate + 1) * size - 1) / 2


def _inside(place: Tensor, size: int, padding: str, *, align: bool) -> Tensor:
    """The place that stands for one outside, where there is such a place."""
    if padding == "zeros":
        return place
    if padding == "reflection":
        low, span = (0.0, size - 1.0) if align else (-0.5, float(size))
        if not span:
            return torch.zeros_like(place)
        away = (place - low).abs()
        turns = torch.floor(away / span)
        rest = away - turns * span
        is_even = torch.floor(turns / 2) * 2 == turns
        place = torch.where(is_even, rest, span - rest) + low
    return place.clamp(0, size - 1)


def _between(rows: Tensor, places: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """The corners around each place, by how near they are."""
    floors = [place.floor() for place in places]
    shares = [place - floor for place, floor in zip(places, floors, strict=True)]
    found = None
    for corner in itertools.product((0, 1), repeat=len(sizes)):
        share = reduce(mul, (s if up else 1 - s for up, s in zip(corner, shares, strict=True)))
        ends = [floor + up for floor, up in zip(floors, corner, strict=True)]
        part = _taken(rows, ends, sizes) * share.flatten(1).unsqueeze(1)
        found = part if found is None else found + part
    assert found is not None
    return found


def _taken(rows: Tensor, ends: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Elements at whole places, 0 outside: [samples, channels, n] -> [samples, channels, places]."""
    checks = [(end >= 0) & (end <= size - 1) for end, size in zip(ends, sizes, strict=True)]
    index = torch.zeros_like(ends[0], dtype=torch.int64)
    for end, size in zip(ends, sizes, strict=True):
        index = index * size + end.detach().clamp(0, size - 1).long()
    flat = index.flatten(1).unsqueeze(1).expand(-1, rows.shape[1], -1)
    inside = reduce(and_, checks).flatten(1).unsqueeze(1)
    return rows.gather(2, flat) * inside
