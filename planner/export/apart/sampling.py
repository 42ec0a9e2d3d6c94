"""`torch.nn.functional.grid_sample` in operators that have gradients in ONNX."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add, and_, mul

import torch
import torch.nn.functional as F
from torch import Tensor

_MODES = ("bilinear", "nearest", "bicubic")
_CUBIC = -0.75
"""Coefficient of the cubic convolution, PyTorch's value."""


@dataclass(frozen=True, slots=True)
class _End:
    """Neighbours of the positions on one axis of `size` elements: which, and whether they exist."""

    index: Tensor
    is_inside: Tensor
    size: int

    @classmethod
    def of(cls, place: Tensor, size: int) -> _End:
        """Return the neighbours at whole positions, maybe outside."""
        index = place.detach().clamp(0, size - 1).long()
        return cls(index, (place >= 0) & (place <= size - 1), size)


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
        found = _taken(rows, [_End.of(p.round(), s) for p, s in zip(places, sizes, strict=True)])
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
    ends = [
        [_End.of(floor + up, size) for up in (0, 1)]
        for floor, size in zip(floors, sizes, strict=True)
    ]
    return _added(rows, ends, [[1 - share, share] for share in shares])


def _through_cubics(
    rows: Tensor, places: Sequence[Tensor], sizes: Sequence[int], padding: str, *, align: bool
) -> Tensor:
    """Interpolate by a cubic of four neighbours on each axis, each moved inside on its own."""
    floors = [place.detach().floor() for place in places]
    shares = [_cubic(place - floor) for place, floor in zip(places, floors, strict=True)]
    ends = [
        [_End.of(_inside(floor + up, size, padding, align=align), size) for up in (-1, 0, 1, 2)]
        for floor, size in zip(floors, sizes, strict=True)
    ]
    return _added(rows, ends, shares)


def _added(
    rows: Tensor, ends: Sequence[Sequence[_End]], shares: Sequence[Sequence[Tensor]]
) -> Tensor:
    """Add up the neighbours of each position, by the product of their shares on each axis."""
    parts = [
        _taken(rows, at) * reduce(mul, by).flatten(1).unsqueeze(1)
        for at, by in zip(itertools.product(*ends), itertools.product(*shares), strict=True)
    ]
    return reduce(add, parts)


def _cubic(t: Tensor) -> list[Tensor]:
    """Return weights of the neighbours at -1, 0, 1 and 2 for a position t in [0, 1) (Keys 1981)."""

    def near(d: Tensor) -> Tensor:
        return ((_CUBIC + 2) * d - (_CUBIC + 3)) * d * d + 1

    def far(d: Tensor) -> Tensor:
        return ((_CUBIC * d - 5 * _CUBIC) * d + 8 * _CUBIC) * d - 4 * _CUBIC

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _taken(rows: Tensor, ends: Sequence[_End]) -> Tensor:
    """Gather elements, 0 outside: [samples, channels, n] -> [samples, channels, places]."""
    index = reduce(lambda index, end: index * end.size + end.index, ends[1:], ends[0].index)
    flat = index.flatten(1).unsqueeze(1).expand(-1, rows.shape[1], -1)
    inside = reduce(and_, (end.is_inside for end in ends)).flatten(1).unsqueeze(1)
    return rows.gather(2, flat) * inside
