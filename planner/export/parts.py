"""Operators taken apart by rules of our own, where PyTorch has none, or one that leads nowhere.

Each is a function of the operator's arguments, in PyTorch. They run below autograd: what has a gradient
has the one that PyTorch gives the whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from planner.export.special import (
    copysign,
    digamma,
    erfinv,
    fmax,
    fmin,
    hypot,
    lgamma,
    logaddexp,
    logaddexp2,
    logcumsumexp,
    polygamma,
    signbit,
)

aten = torch.ops.aten

# -- one of several, by rank or by count ------------------------------------------------------------


def kthvalue(x: Tensor, k: int, axis: int = -1, keep: bool = False) -> tuple[Tensor, Tensor]:
    values, places = torch.sort(x, axis)
    found = values.select(axis, k - 1), places.select(axis, k - 1)
    return (found[0].unsqueeze(axis), found[1].unsqueeze(axis)) if keep else found


def median(x: Tensor, axis: int, keep: bool = False) -> tuple[Tensor, Tensor]:
    """The lower of the two in the middle; NaN is not looked for."""
    return kthvalue(x, (int(x.shape[axis]) + 1) // 2, axis, keep)


def median_of_all(x: Tensor) -> Tensor:
    return median(x.reshape(-1), 0)[0]


def mode(x: Tensor, axis: int = -1, keep: bool = False) -> tuple[Tensor, Tensor]:
    """The smallest of the most frequent values, and where the last of them is."""
    values, places = torch.sort(x, dim=axis, stable=True)
    values, places = values.movedim(axis, -1), places.movedim(axis, -1)
    counts = (values.unsqueeze(-1) == values.unsqueeze(-2)).to(torch.int64).sum(-1)
    first = counts.argmax(-1, keepdim=True)
    last = first + counts.gather(-1, first) - 1
    found = values.gather(-1, last), places.gather(-1, last)
    if keep:
        return found[0].movedim(-1, axis), found[1].movedim(-1, axis)
    return found[0].squeeze(-1), found[1].squeeze(-1)


def stable_sort(
    x: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    """ONNX's TopK, which sorting becomes, keeps equal elements in order in any case."""
    del stable
    return aten.sort.default(x, dim, descending)


def _running(x: Tensor, axis: int, sign: int) -> tuple[Tensor, Tensor]:
    """Of ever more elements the largest, and the last place of it: n² comparisons."""
    rows = x.movedim(axis, -1).unsqueeze(-2) * sign
    n = int(x.shape[axis])
    upto = torch.ones(n, n, dtype=torch.bool).tril()
    lowest = torch.finfo(x.dtype).min if x.dtype.is_floating_point else torch.iinfo(x.dtype).min
    seen = torch.where(upto, rows, torch.full((), lowest, dtype=x.dtype))
    places = n - 1 - seen.flip(-1).argmax(-1)
    values = x.movedim(axis, -1).gather(-1, places)
    return values.movedim(-1, axis), places.movedim(-1, axis)


def cummax(x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    return _running(x, axis, 1)


def cummin(x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    return _running(x, axis, -1)


def searchsorted(
    edges: Tensor,
    x: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """How many edges are below each element: [..., edges], [..., n] -> [..., n]."""
    if sorter is not None:
        edges = edges.gather(-1, sorter)
    below, at = edges.unsqueeze(-2) if edges.dim() > 1 else edges, x.unsqueeze(-1)
    counted = below <= at if right or side == "right" else below < at
    return counted.to(torch.int64).sum(-1).to(torch.int32 if out_int32 else torch.int64)


def least_of_all(x: Tensor, axes: list[int] | None = None, keep: bool = False) -> Any:
    """Without axes; torchlib wants some."""
    return NotImplemented if axes else aten.amin.default(x, list(range(x.dim())), keep)


# -- scattering ------------------------------------------------------------------------------------


def scatter_reduce(
    x: Tensor, axis: int, index: Tensor, source: Tensor, kind: str, *, include_self: bool = True
) -> Any:
    """The mean; ONNX scatters every other kind."""
    if kind != "mean":
        return NotImplemented
    ones, zeros = torch.ones_like(x), torch.zeros_like(x)
    added = torch.ones_like(source)
    counts = (ones if include_self else zeros).scatter_add(axis, index, added)
    total = (x if include_self else zeros).scatter_add(axis, index, source)
    mean = total / counts.clamp_min(1)
    return mean if include_self else torch.where(counts == 0, x, mean)


def index_reduce(
    x: Tensor, axis: int, index: Tensor, source: Tensor, kind: str, *, include_self: bool = True
) -> Tensor:
    thin = [1] * source.dim()
    thin[axis] = -1
    wide = index.reshape(thin).expand(source.shape)
    return x.scatter_reduce(axis, wide, source, kind, include_self=include_self)


def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    flat = x.reshape(-1).index_put((index.reshape(-1),), source.reshape(-1), accumulate)
    return flat.reshape(x.shape)


def _ranks(mask: Tensor) -> Tensor:
    """For each place, flat: of how many earlier ones the mask holds."""
    return (mask.reshape(-1).to(torch.int64).cumsum(0) - 1).clamp_min(0)


def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """The elements of the source, in order, where the mask holds."""
    shape = torch.broadcast_shapes(x.shape, mask.shape)
    mask, flat = mask.expand(shape), source.reshape(-1)
    ranks = _ranks(mask).clamp_max(flat.shape[0] - 1)
    return torch.where(mask, flat.index_select(0, ranks).reshape(shape), x)


def masked_scatter_backward(dy: Tensor, mask: Tensor, shape: list[int]) -> Tensor:
    """Gradient of the source."""
    kept = torch.where(mask, dy, torch.zeros((), dtype=dy.dtype)).reshape(-1)
    count = math.prod(shape)
    ranks = _ranks(mask.expand(dy.shape)).clamp_max(count - 1)
    return torch.zeros(count, dtype=dy.dtype).scatter_add(0, ranks, kept).reshape(shape)


# -- pooling over windows that differ ----------------------------------------------------------------


def _largest(x: Tensor, windows: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The largest of each window, and where it is in the flat plane.

    Args:
        x: [..., *sizes].
        windows: for each size, places [..., out, in the window].
    """
    count = len(windows)
    sizes = [int(size) for size in x.shape[-count:]]
    at: Tensor | None = None
    for axis, (size, window) in enumerate(zip(sizes, windows, strict=True)):
        lead, (out, width) = list(window.shape[:-2]), window.shape[-2:]
        dims = [1] * (2 * count)
        dims[axis], dims[count + axis] = int(out), int(width)
        place = window.reshape([*lead, *dims])
        at = place if at is None else at * size + place
    assert at is not None
    outs = [int(n) for n in at.shape[-2 * count : -count]]
    lead = list(x.shape[:-count])
    places = at.expand([*lead, *at.shape[-2 * count :]]).reshape([*lead, math.prod(outs), -1])
    found = x.reshape([*lead, 1, -1]).expand([*lead, math.prod(outs), -1]).gather(-1, places)
    best = found.argmax(-1, keepdim=True)
    shape = [*lead, *outs]
    return found.gather(-1, best).reshape(shape), places.gather(-1, best).reshape(shape)


def _adaptive(size: int, out: int) -> Tensor:
    """Windows that cover a size in equal shares, the short ones with their last place again."""
    starts = [i * size // out for i in range(out)]
    ends = [-(-(i + 1) * size // out) for i in range(out)]
    width = max(end - start for start, end in zip(starts, ends, strict=True))
    with _disable_current_modes():
        return torch.tensor(
            [[min(s + k, e - 1) for k in range(width)] for s, e in zip(starts, ends, strict=True)]
        )


def adaptive_max_pool(x: Tensor, out: list[int]) -> tuple[Tensor, Tensor]:
    sizes = [int(size) for size in x.shape[-len(out) :]]
    return _largest(x, [_adaptive(size, o) for size, o in zip(sizes, out, strict=True)])


def fractional_max_pool(
    x: Tensor, kernel: list[int], out: list[int], samples: Tensor
) -> tuple[Tensor, Tensor]:
    """Graham (2014): windows of one size, whose starts are as far apart as a drawn number says."""
    rank = len(out)
    windows: list[Tensor] = []
    lead = list(x.shape[: x.dim() - rank])
    for axis, (size, k, o) in enumerate(zip(x.shape[-rank:], kernel, out, strict=True)):
        # PyTorch draws for the width first in two dimensions, and last in three
        u = samples.reshape([*lead, rank])[..., rank - 1 - axis if rank == 2 else axis].unsqueeze(
            -1
        )
        alpha = (int(size) - k) / max(o - 1, 1)
        steps = torch.arange(o, dtype=x.dtype)
        starts = ((steps + u) * alpha).to(torch.int64) - (u * alpha).to(torch.int64)
        starts = torch.where(torch.arange(o) == o - 1, int(size) - k, starts)
        windows.append(starts.unsqueeze(-1) + torch.arange(k))
    return _largest(x, windows)


def _put_back(dy: Tensor, x: Tensor, places: Tensor, rank: int) -> Tensor:
    """Each gradient, added where its element came from."""
    lead = list(x.shape[:-rank])
    zeros = torch.zeros_like(x).reshape([*lead, -1])
    added = zeros.scatter_add(-1, places.reshape([*lead, -1]), dy.reshape([*lead, -1]))
    return added.reshape(x.shape)


# -- resizing with antialiasing ----------------------------------------------------------------------


def _weights(mode: str, size: int, out: int, align: bool, scale: float | None) -> Tensor:
    """What each new row takes of each old one, [out, size], by PyTorch's own kernel."""
    function = getattr(aten, f"_upsample_{mode}2d_aa").default
    with _disable_current_modes():
        rows = torch.eye(size).reshape(size, 1, size, 1).repeat(1, 1, 1, 2)
        return function(rows, [out, 2], align, scale, None)[:, 0, :, 0].T.contiguous()


def _resized(mode: str) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    def forward(
        x: Tensor, out: list[int], align: bool, high: float | None = None, wide: float | None = None
    ) -> Tensor:
        rows = _weights(mode, int(x.shape[2]), int(out[0]), align, high).to(x.dtype)
        columns = _weights(mode, int(x.shape[3]), int(out[1]), align, wide).to(x.dtype)
        return rows @ (x @ columns.T)

    def backward(
        dy: Tensor,
        out: list[int],
        shape: list[int],
        align: bool,
        high: float | None = None,
        wide: float | None = None,
    ) -> Tensor:
        rows = _weights(mode, int(shape[2]), int(out[0]), align, high).to(dy.dtype)
        columns = _weights(mode, int(shape[3]), int(out[1]), align, wide).to(dy.dtype)
        return rows.T @ (dy @ columns)

    return forward, backward


# -- by operator --------------------------------------------------------------------------------


def whole(x: Tensor, **_: Any) -> Any:
    """Rounding of what is whole already; ONNX rounds floating point alone."""
    return NotImplemented if x.is_floating_point() else x.clone()


_BILINEAR, _BICUBIC = _resized("bilinear"), _resized("bicubic")

PARTS: dict[Any, Callable[..., Any]] = {
    aten._upsample_bicubic2d_aa.default: _BICUBIC[0],
    aten._upsample_bicubic2d_aa_backward.default: _BICUBIC[1],
    aten._upsample_bilinear2d_aa.default: _BILINEAR[0],
    aten._upsample_bilinear2d_aa_backward.default: _BILINEAR[1],
    aten.adaptive_max_pool2d.default: adaptive_max_pool,
    aten.adaptive_max_pool2d_backward.default: lambda dy, x, at: _put_back(dy, x, at, 2),
    aten.adaptive_max_pool3d.default: adaptive_max_pool,
    aten.adaptive_max_pool3d_backward.default: lambda dy, x, at: _put_back(dy, x, at, 3),
    aten.amin.default: least_of_all,
    aten.copysign.Scalar: copysign,
    aten.copysign.Tensor: copysign,
    aten.cummax.default: cummax,
    aten.cummin.default: cummin,
    aten.digamma.default: digamma,
    aten.erfinv.default: erfinv,
    aten.fmax.default: fmax,
    aten.fmin.default: fmin,
    aten.fractional_max_pool2d.default: fractional_max_pool,
    aten.fractional_max_pool2d_backward.default: lambda dy, x, k, o, at: _put_back(dy, x, at, 2),
    aten.fractional_max_pool3d.default: fractional_max_pool,
    aten.fractional_max_pool3d_backward.default: lambda dy, x, k, o, at: _put_back(dy, x, at, 3),
    aten.hypot.default: hypot,
    aten.index_reduce.default: index_reduce,
    aten.kthvalue.default: kthvalue,
    aten.lgamma.default: lgamma,
    aten.logaddexp.default: logaddexp,
    aten.logaddexp2.default: logaddexp2,
    aten.logcumsumexp.default: logcumsumexp,
    aten.masked_scatter.default: masked_scatter,
    aten.masked_scatter_backward.default: masked_scatter_backward,
    aten.median.default: median_of_all,
    aten.median.dim: median,
    aten.mode.default: mode,
    aten.polygamma.default: polygamma,
    aten.put.default: put,
    aten.scatter_reduce.two: scatter_reduce,
    aten.searchsorted.Tensor: searchsorted,
    aten.signbit.default: signbit,
    aten.sort.stable: stable_sort,
    **dict.fromkeys(
        (aten.ceil.default, aten.floor.default, aten.round.default, aten.trunc.default), whole
    ),
}
"""By operator, how it is taken apart; NotImplemented leaves a form of it whole."""
