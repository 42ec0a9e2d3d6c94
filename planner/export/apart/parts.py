"""Decompositions of our own, for operators where PyTorch has none, or one that nothing lowers.

Each is a function of the operator's arguments, in PyTorch. They run below autograd: gradients are those
of PyTorch's whole operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from planner.export.apart.special import (
    atan2,
    copysign,
    digamma,
    erfc,
    erfcx,
    erfinv,
    fmax,
    fmin,
    hypot,
    lgamma,
    log_ndtr,
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
    """Return the lower of the two middle elements and its position; the first NaN, if any."""
    values, places = kthvalue(x, (int(x.shape[axis]) + 1) // 2, axis, keep)
    if not x.is_floating_point():
        return values, places
    is_nan = torch.isnan(x)
    any_nan, first = is_nan.any(axis, keep), is_nan.to(torch.int32).argmax(axis, keep)
    return torch.where(any_nan, math.nan, values), torch.where(any_nan, first, places)


def nanmedian(x: Tensor, axis: int, keep: bool = False) -> tuple[Tensor, Tensor]:
    """Return the median of the elements that are not NaN, and its position."""
    values, places = torch.sort(x, axis)
    counts = (~torch.isnan(x)).to(torch.int64).sum(axis, keepdim=True)
    middle = (counts - 1).clamp_min(0) // 2
    found = values.gather(axis, middle), places.gather(axis, middle)
    return found if keep else (found[0].squeeze(axis), found[1].squeeze(axis))


def median_of_all(x: Tensor) -> Tensor:
    return median(x.reshape(-1), 0)[0]


def nanmedian_of_all(x: Tensor) -> Tensor:
    return nanmedian(x.reshape(-1), 0)[0]


def mode(x: Tensor, axis: int = -1, keep: bool = False) -> tuple[Tensor, Tensor]:
    """Return the smallest of the most frequent values, and the position of its last occurrence."""
    values, places = torch.sort(x, dim=axis, stable=True)
    values, places = values.movedim(axis, -1), places.movedim(axis, -1)
    counts = (values.unsqueeze(-1) == values.unsqueeze(-2)).to(torch.int64).sum(-1)
    first = counts.argmax(-1, keepdim=True)
    last = first + counts.gather(-1, first) - 1
    found = values.gather(-1, last), places.gather(-1, last)
    if keep:
        return found[0].movedim(-1, axis), found[1].movedim(-1, axis)
    return found[0].squeeze(-1), found[1].squeeze(-1)


def _running(x: Tensor, axis: int, sign: int) -> tuple[Tensor, Tensor]:
    """Return the running maximum (minimum for sign -1) and its last position, or that of the last NaN.

    It takes n² comparisons.
    """
    rows = x.movedim(axis, -1)
    n = int(rows.shape[-1])
    upto = torch.ones(n, n, dtype=torch.bool).tril()

    def last(keys: Tensor, least: float) -> Tensor:
        seen = torch.where(upto, keys.unsqueeze(-2), torch.full((), least, dtype=keys.dtype))
        return torch.minimum(n - 1 - seen.flip(-1).argmax(-1), torch.arange(n))

    if x.dtype.is_floating_point:
        is_nan = torch.isnan(rows)
        places = last(torch.where(is_nan, -math.inf, rows * sign), -math.inf)
        numbers = is_nan.to(torch.int32)
        places = torch.where(numbers.cumsum(-1) > 0, last(numbers, -1), places)
    else:
        places = last(rows * sign, torch.iinfo(x.dtype).min)
    values = rows.gather(-1, places)
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
    """Count the edges below each element: [..., edges], [..., n] -> [..., n]."""
    if sorter is not None:
        edges = edges.gather(-1, sorter)
    edge, at = edges.unsqueeze(-2) if edges.dim() > 1 else edges, x.unsqueeze(-1)
    # Negated, which counts all edges for NaN.
    counted = ~(edge > at) if right or side == "right" else ~(edge >= at)
    return counted.to(torch.int64).sum(-1).to(torch.int32 if out_int32 else torch.int64)


# -- scattering ------------------------------------------------------------------------------------


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
    """Return the flat rank of each element among the mask's True elements."""
    return (mask.reshape(-1).to(torch.int64).cumsum(0) - 1).clamp_min(0)


def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Copy the elements of the source, in order, to the mask's True positions."""
    shape = torch.broadcast_shapes(x.shape, mask.shape)
    mask, flat = mask.expand(shape), source.reshape(-1)
    ranks = _ranks(mask).clamp_max(flat.shape[0] - 1)
    return torch.where(mask, flat.index_select(0, ranks).reshape(shape), x)


def masked_scatter_backward(dy: Tensor, mask: Tensor, shape: list[int]) -> Tensor:
    """Return the gradient of the source of `masked_scatter`."""
    kept = torch.where(mask, dy, torch.zeros((), dtype=dy.dtype)).reshape(-1)
    count = math.prod(shape)
    ranks = _ranks(mask.expand(dy.shape)).clamp_max(count - 1)
    return torch.zeros(count, dtype=dy.dtype).scatter_add(0, ranks, kept).reshape(shape)


# -- pooling over windows that differ ----------------------------------------------------------------


def _largest(x: Tensor, windows: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the largest element of each window, and its position in the flat plane.

    Args:
        x: [..., *sizes].
        windows: positions [..., out, in the window], for each size.
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
    """Return windows that cover a size in equal shares; short windows repeat their last position."""
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
    """Pool as in Graham (2014): windows of one size, whose starts have drawn spacings."""
    rank = len(out)
    windows: list[Tensor] = []
    lead = list(x.shape[: x.dim() - rank])
    for axis, (size, k, o) in enumerate(zip(x.shape[-rank:], kernel, out, strict=True)):
        # PyTorch uses the width's sample first in two dimensions, and last in three.
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
    """Scatter-add each gradient to the position of its element."""
    lead = list(x.shape[:-rank])
    zeros = torch.zeros_like(x).reshape([*lead, -1])
    added = zeros.scatter_add(-1, places.reshape([*lead, -1]), dy.reshape([*lead, -1]))
    return added.reshape(x.shape)


# -- resizing with antialiasing ----------------------------------------------------------------------


def _weights(mode: str, size: int, out: int, align: bool, scale: float | None) -> Tensor:
    """Return each new row's weights of the old rows, [out, size], computed by PyTorch's kernel."""
    function = getattr(aten, f"_upsample_{mode}2d_aa").default
    with _disable_current_modes():
        rows = torch.eye(size).reshape(size, 1, size, 1).repeat(1, 1, 1, 2)
        return function(rows, [out, 2], align, scale, None)[:, 0, :, 0].T.contiguous()


def _resized(mode: str) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """Return an antialiased resize as two matrix products, R @ x @ C^T, and its gradient in x."""

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


def replication_pad(x: Tensor, widths: list[int]) -> Any:
    """Pad or crop by gathering, if a width is negative, which ONNX Runtime does not support."""
    if min(widths) >= 0:
        return NotImplemented
    for back in range(len(widths) // 2):
        (before, after), size = widths[2 * back : 2 * back + 2], int(x.shape[-1 - back])
        x = x.index_select(-1 - back, torch.arange(-before, size + after).clamp(0, size - 1))
    return x


# -- by operator --------------------------------------------------------------------------------


def vector_norm(
    x: Tensor,
    order: float = 2,
    axes: list[int] | None = None,
    keep: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    """Compute the norm over all axes with the axes named; infinite orders by the extreme element.

    torchlib ignores `keep` if no axes are named."""
    each = axes or list(range(x.dim()))
    if math.isinf(order) and dtype in (None, x.dtype) and not x.is_complex():
        size = x.abs()
        return size.amax(each, keep) if order > 0 else size.amin(each, keep)
    if axes or not x.dim():
        return NotImplemented
    return aten.linalg_vector_norm.default(x, order, each, keep, dtype=dtype)


def std(
    x: Tensor,
    axes: list[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Tensor:
    """Compute the deviation from differences scaled by the largest, which keeps squares in range."""
    each = axes or list(range(x.dim()))
    count = math.prod(x.shape[axis] for axis in each)
    apart = x - x.mean(each, keepdim=True)
    most = apart.abs().amax(each, keepdim=True)
    most = torch.where((most == 0) | (most == math.inf), 1.0, most)
    square = (apart / most).square().sum(each, keepdim=True)
    found = most * torch.sqrt(square / (count - (1 if correction is None else correction)))
    return found if keepdim else found.squeeze(each)


def std_mean(
    x: Tensor,
    axes: list[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:
    each = axes or list(range(x.dim()))
    return std(x, each, correction=correction, keepdim=keepdim), x.mean(each, keepdim)


def angle(x: Tensor) -> Any:
    if x.is_complex():
        return NotImplemented
    return torch.where(torch.isnan(x), x, torch.where(x < 0, math.pi, 0.0).to(x.dtype))


def whole(x: Tensor, **_: Any) -> Any:
    """Return integers unchanged; ONNX rounds only floating point."""
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
    aten.angle.default: angle,
    aten.atan2.default: atan2,
    aten.copysign.Scalar: copysign,
    aten.copysign.Tensor: copysign,
    aten.cummax.default: cummax,
    aten.cummin.default: cummin,
    aten.digamma.default: digamma,
    aten.erfc.default: erfc,
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
    aten.linalg_vector_norm.default: vector_norm,
    aten.logaddexp.default: logaddexp,
    aten.logaddexp2.default: logaddexp2,
    aten.logcumsumexp.default: logcumsumexp,
    aten.masked_scatter.default: masked_scatter,
    aten.masked_scatter_backward.default: masked_scatter_backward,
    aten.median.default: median_of_all,
    aten.median.dim: median,
    aten.nanmedian.default: nanmedian_of_all,
    aten.nanmedian.dim: nanmedian,
    aten.mode.default: mode,
    aten.polygamma.default: polygamma,
    aten.put.default: put,
    aten.searchsorted.Tensor: searchsorted,
    aten.signbit.default: signbit,
    aten.std.correction: std,
    aten.std_mean.correction: std_mean,
    aten.special_erfcx.default: erfcx,
    aten.special_log_ndtr.default: log_ndtr,
    **dict.fromkeys(
        (
            aten.replication_pad1d.default,
            aten.replication_pad2d.default,
            aten.replication_pad3d.default,
        ),
        replication_pad,
    ),
    **dict.fromkeys(
        (aten.ceil.default, aten.floor.default, aten.round.default, aten.trunc.default), whole
    ),
}
"""Decompositions by operator; one returns NotImplemented to leave a form whole."""
