"""Discrete Fourier transforms as products of real matrices.

ONNX's DFT has no kernel on most providers, and no other operator replaces it. A product with the
transform's matrix is exact to rounding and runs everywhere. A composite length is factored (Cooley and
Tukey 1965), which takes n times the sum of n's factors in place of n² operations; a prime length is one
product.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

_WHOLE = 64
"""Length up to which one product costs less than products of its factors and the copies between them."""

Pair = tuple[Tensor, Tensor]
"""Real and imaginary parts, of one shape."""


def transform(re: Tensor, im: Tensor | None, axis: int, *, forward: bool) -> Pair:
    """Compute the sum over t of x[t] exp(∓2πi kt/n) along an axis, without scaling.

    Args:
        im: imaginary part; None if it is zero.
        forward: whether the exponent is negative.
    """
    moved = re.movedim(axis, -1), None if im is None else im.movedim(axis, -1)
    found_re, found_im = _along_last(*moved, -1 if forward else 1)
    return found_re.movedim(-1, axis), found_im.movedim(-1, axis)


def halved(x: Tensor, axis: int) -> Pair:
    """Return the first n // 2 + 1 elements of a real signal's transform; the others mirror them."""
    n = int(x.shape[axis])
    kept = n // 2 + 1
    if n > _WHOLE and _factor(n) > 1:
        re, im = transform(x, None, axis, forward=True)
        return re.narrow(axis, 0, kept), im.narrow(axis, 0, kept)
    moved = x.movedim(axis, -1)
    cos, sin = _matrices(n, n, n, x.dtype)
    re, im = moved @ cos[:, :kept], -(moved @ sin[:, :kept])
    return re.movedim(-1, axis), im.movedim(-1, axis)


def from_half(re: Tensor, im: Tensor, axis: int, n: int) -> Tensor:
    """Return n times the real signal of length n whose transform starts with n // 2 + 1 elements."""
    kept = n // 2 + 1
    re, im = (_cut(part.movedim(axis, -1), kept) for part in (re, im))
    mirrored = slice(1, n - n // 2)  # excludes the first and, for an even n, the middle one
    if n > _WHOLE and _factor(n) > 1:
        full_re = torch.cat([re, re[..., mirrored].flip(-1)], -1)
        full_im = torch.cat([im, -im[..., mirrored].flip(-1)], -1)
        return _along_last(full_re, full_im, 1)[0].movedim(-1, axis)
    cos, sin = _matrices(n, n, n, re.dtype)
    twice = torch.ones(kept, 1, dtype=re.dtype)
    twice[mirrored] = 2
    return (re @ (cos[:kept] * twice) - im @ (sin[:kept] * twice)).movedim(-1, axis)


def _cut(part: Tensor, length: int) -> Tensor:
    """Cut or zero-pad the last axis to a length."""
    missing = length - int(part.shape[-1])
    return part[..., :length] if missing <= 0 else torch.nn.functional.pad(part, (0, missing))


def _along_last(re: Tensor, im: Tensor | None, sign: int) -> Pair:
    n = int(re.shape[-1])
    rows = _factor(n) if n > _WHOLE else 1
    if rows == 1:
        cos, sin = _matrices(n, n, n, re.dtype)
        return _times(re, im, cos, sin * sign)
    # t = t1 columns + t2 and k = k1 + rows k2: sum over t1, rotate by t2 k1 / n, then sum over t2.
    columns = n // rows
    shape = [rows, columns]
    parts = [None if p is None else p.unflatten(-1, shape).transpose(-1, -2) for p in (re, im)]
    assert parts[0] is not None
    re, im = _along_last(parts[0], parts[1], sign)
    cos, sin = _matrices(columns, rows, n, re.dtype)
    sin = sin * sign
    re, im = re * cos - im * sin, re * sin + im * cos
    re, im = _along_last(re.transpose(-1, -2), im.transpose(-1, -2), sign)
    return re.transpose(-1, -2).flatten(-2), im.transpose(-1, -2).flatten(-2)


def _times(re: Tensor, im: Tensor | None, cos: Tensor, sin: Tensor) -> Pair:
    if im is None:
        return re @ cos, re @ sin
    return re @ cos - im @ sin, re @ sin + im @ cos


@cache
def _matrices(rows: int, columns: int, n: int, dtype: torch.dtype) -> Pair:
    """Return (cos, sin) of 2π jk / n, [rows, columns], each rounded once."""
    turns = np.outer(np.arange(rows), np.arange(columns)) % n
    angles = 2 * math.pi / n * turns
    return tuple(torch.from_numpy(f(angles)).to(dtype) for f in (np.cos, np.sin))  # pyright: ignore[reportReturnType]


def _factor(n: int) -> int:
    """Return the largest factor of n up to its square root."""
    return next(k for k in range(math.isqrt(n), 0, -1) if n % k == 0)
