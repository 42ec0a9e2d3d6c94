"""`torch.nn.functional.grid_sample` in operators that have gradients in ONNX."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import reduce
from operator import and_, mul

import torch
import torch.nn.functional as F
from torch import Tensor

_MODES = ("bilinear", "nearest", "bicubic")
_CUBIC = -0.75
"""Coefficient of the cubic convolution, PyTorch's value."""


def grid_sample(
    x: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:
    """Sample an image at arbitrary positions, with one gather for each neighbour of a position.

    Args:
        x: [samples, channels, *sizes], of two or three sizes.
        grid: [samples, *places, axes]: coordinates from -1 to 1, the last axis of the image first.
        mode: interpolation mode.
        padding_mode: values outside of the image: zeros, the border, or the reflection.
        align_corners: whether -1 and 1 are the centres of the corner elements, not their outer edges.
    """
    if mode not in _MODES:
        return F.grid_sample(x, grid, mode, padding_mode, align_corners)
    align = bool(align_corners)
    sizes = [int(size) for size in x.shape[2:]]
    raw = [_place(grid[..., -1 - axis], size, align=align) for axis, size in enumerate(sizes)]
    rows = x.flatten(2)
    if mode == "bicubic":
        found = _through_cubics(rows, raw, sizes, padding_mode, align=align)
        return found.unflatten(2, list(grid.shape[1:-1]))
    each = zip(raw, sizes, strict=True)
    places = [_inside(place, size, padding_mode, align=align) for place, size in each]
    if mode == "nearest":
        found = _taken(rows, [place.round() for place in places], sizes)
    else:
        found = _between(rows, places, sizes)
    return found.unflatten(2, list(grid.shape[1:-1]))


def _place(coordinate: Tensor, size: int, *, align: bool) -> Tensor:
    """Map a coordinate in [-1, 1] to a position among `size` elements, maybe fractional or outside."""
    if align:
        return (coordinate + 1) / 2 * (size - 1)
    return ((coordinate + 1) * size - 1) / 2


def _inside(place: Tensor, size: int, padding: str, *, align: bool) -> Tensor:
    """Move a position outside of the image inside, as the padding mode requires."""
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
    """Interpolate linearly between the corners around each position."""
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


def _through_cubics(
    rows: Tensor, places: Sequence[Tensor], sizes: Sequence[int], padding: str, *, align: bool
) -> Tensor:
    """Interpolate by a cubic of four neighbours on each axis, each moved inside on its own."""
    floors = [place.detach().floor() for place in places]
    shares = [_cubic(place - floor) for place, floor in zip(places, floors, strict=True)]
    found = None
    for steps in itertools.product(range(4), repeat=len(sizes)):
        each = zip(floors, steps, sizes, strict=True)
        ends = [_inside(f + step - 1, size, padding, align=align) for f, step, size in each]
        share = reduce(mul, (parts[step] for parts, step in zip(shares, steps, strict=True)))
        part = _taken(rows, ends, sizes) * share.flatten(1).unsqueeze(1)
        found = part if found is None else found + part
    assert found is not None
    return found


def _cubic(t: Tensor) -> list[Tensor]:
    """Return weights of the neighbours at -1, 0, 1 and 2 for a position t in [0, 1) (Keys 1981)."""

    def near(d: Tensor) -> Tensor:
        return ((_CUBIC + 2) * d - (_CUBIC + 3)) * d * d + 1

    def far(d: Tensor) -> Tensor:
        return ((_CUBIC * d - 5 * _CUBIC) * d + 8 * _CUBIC) * d - 4 * _CUBIC

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _taken(rows: Tensor, ends: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Gather elements, 0 outside: [samples, channels, n] -> [samples, channels, places]."""
    checks = [(end >= 0) & (end <= size - 1) for end, size in zip(ends, sizes, strict=True)]
    index = torch.zeros_like(ends[0], dtype=torch.int64)
    for end, size in zip(ends, sizes, strict=True):
        index = index * size + end.detach().clamp(0, size - 1).long()
    flat = index.flatten(1).unsqueeze(1).expand(-1, rows.shape[1], -1)
    inside = reduce(and_, checks).flatten(1).unsqueeze(1)
    return rows.gather(2, flat) * inside
