"""Special and other elementwise functions, composed of operators that ONNX has.

Each is a function of an operator's arguments, in PyTorch; `planner.export.apart.parts` maps operators to
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_SHIFT = 8
"""Shift of the argument for which the series for large arguments are evaluated."""

_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188)
_ERFINV_MIDDLE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
    -0.00125372503, -0.00417768164, 0.246640727, 1.50140941,
)  # fmt: skip
_ERFINV_TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
    -0.0076224613, 0.00943887047, 1.00167406, 2.83297682,
)  # fmt: skip


def _by_series(x: Tensor, series: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Evaluate a series at x, reflected to be positive if x <= 0.

    Returns (the series' value, π times the distance of x from the nearest integer, whether x is a pole: 0
    or a negative integer), in float64.
    """
    wide = x.to(torch.float64)
    rest = wide - torch.round(wide)
    found = series(torch.where(wide <= 0, 1 - wide, wide))
    return found, math.pi * rest, (wide <= 0) & (rest == 0)


def lgamma(x: Tensor) -> Tensor:
    """Compute log |Γ(x)|: Stirling's series above 8, recurrence and reflection below."""

    def series(p: Tensor) -> Tensor:
        z = p + _SHIFT
        product = p
        for k in range(1, _SHIFT):
            product = product * (p + k)
        tail = sum(c * z ** -(2 * k + 1) for k, c in enumerate(_STIRLING))
        return (
            (z - 0.5) * torch.log(z) - z + 0.5 * math.log(2 * math.pi) + tail - torch.log(product)
        )

    found, angle, is_pole = _by_series(x, series)
    reflected = math.log(math.pi) - torch.log(torch.sin(angle).abs()) - found
    found = torch.where(x <= 0, reflected, found)
    return torch.where(is_pole | (x.abs() == math.inf), math.inf, found).to(x.dtype)


def digamma(x: Tensor) -> Tensor:
    """Compute the derivative of lgamma."""

    def series(p: Tensor) -> Tensor:
        z = p + _SHIFT
        tail = sum(-(2 * k + 1) * c * z ** -(2 * k + 2) for k, c in enumerate(_STIRLING))
        return torch.log(z) - 0.5 / z + tail - sum(1 / (p + k) for k in range(_SHIFT))

    found, angle, is_pole = _by_series(x, series)
    reflected = found - math.pi * torch.cos(angle) / torch.sin(angle)
    found = torch.where(x <= 0, reflected, found)
    found = torch.where(is_pole, math.nan, found)
    return torch.where(x == 0, -1 / x, found.to(x.dtype))


def polygamma(n: int, x: Tensor) -> Any:
    """Compute the n-th derivative of digamma; below 0 by polynomials in the cotangent."""

    def series(p: Tensor) -> Tensor:
        z = p + _SHIFT
        # The terms of Stirling's series, differentiated n + 1 times.
        tail = sum(
            c * math.factorial(2 * k + n + 1) / math.factorial(2 * k) * z ** -(2 * k + n + 2)
            for k, c in enumerate(_STIRLING)
        )
        far = math.factorial(n - 1) / z**n + math.factorial(n) / 2 / z ** (n + 1) + tail
        near = math.factorial(n) * sum(1 / (p + k) ** (n + 1) for k in range(_SHIFT))
        return (-1) ** (n + 1) * (far + near)

    if n < 1:
        return digamma(x)
    found, angle, is_pole = _by_series(x, series)
    cot = torch.cos(angle) / torch.sin(angle)
    terms = [0.0, 1.0]  # cot itself; the derivative of cot^k is -k (cot^(k - 1) + cot^(k + 1))
    for _ in range(n):
        longer = [0.0] * (len(terms) + 1)
        for k, c in enumerate(terms[1:], 1):
            longer[k - 1] -= k * c
            longer[k + 1] -= k * c
        terms = longer
    slope = sum(c * cot**k for k, c in enumerate(terms) if c) * math.pi ** (n + 1)
    reflected = (-1) ** n * found - slope
    found = torch.where(x <= 0, reflected, found)
    return torch.where(is_pole, (-1) ** (n + 1) * math.inf, found).to(x.dtype)


def erfinv(x: Tensor) -> Tensor:
    """Compute erfinv by two float32 polynomials: Giles (2012), "Approximating the erfinv function"."""
    w = -torch.log((1 - x) * (1 + x))
    near, far = w - 2.5, torch.sqrt(w.clamp_min(5.0)) - 3
    middle, tail = torch.full_like(x, _ERFINV_MIDDLE[0]), torch.full_like(x, _ERFINV_TAIL[0])
    for a, b in zip(_ERFINV_MIDDLE[1:], _ERFINV_TAIL[1:], strict=True):
        middle, tail = a + middle * near, b + tail * far
    return torch.where(x.abs() == 1, x * math.inf, torch.where(w < 5, middle, tail) * x)


_ERFCX = (
    -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398,
    1.48851587, -0.82215223, 0.17087277,
)  # fmt: skip


def _tail(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return (t, p) with erfc x = t exp(p - x²) for x >= 0, within 1.2e-7 (Numerical Recipes, 6.2)."""
    t = 1 / (1 + x / 2)
    power = torch.full_like(x, _ERFCX[-1])
    for c in _ERFCX[-2::-1]:
        power = c + power * t
    return t, power


def erfc(x: Tensor) -> Any:
    """Compute erfc by 1 - erf x, or for larger x by `_tail`, which loses no digits."""
    if x.dtype != torch.float32:
        return NotImplemented
    t, power = _tail(x.abs())
    return torch.where(x < 0.5, 1 - torch.erf(x), t * torch.exp(power - x * x))


def erfcx(x: Tensor) -> Any:
    """Compute exp(x²) erfc x."""
    t, power = _tail(x.abs())
    found = t * torch.exp(power)
    return torch.where(x < 0, 2 * torch.exp(x * x) - found, found)


def log_ndtr(x: Tensor) -> Tensor:
    """Compute the logarithm of the normal distribution's cdf."""
    t = x / math.sqrt(2)
    below = torch.log(erfcx(-t.clamp_max(0.0)) / 2) - t * t
    return torch.where(x < -1, below, torch.log1p(-torch.erfc(t) / 2))


def hypot(x: Tensor, y: Tensor) -> Tensor:
    """Compute hypot as the larger operand times √(1 + ratio²), which keeps squares in range."""
    large, small = torch.maximum(x.abs(), y.abs()), torch.minimum(x.abs(), y.abs())
    share = torch.where((large == 0) | (large == math.inf), 0.0, small / large)
    return large * torch.sqrt(1 + share * share)


def atan2(y: Tensor, x: Tensor) -> Tensor:
    """Compute the angle of (x, y) from the ratio of the absolute values, then the quadrant."""
    up, right = y.abs(), x.abs()
    ratio = torch.where(up == right, torch.where(up == 0, 0.0, 1.0).to(up.dtype), up / right)
    angle = torch.atan(torch.where(torch.isnan(up + right), math.nan, ratio))
    return copysign(torch.where(signbit(x), math.pi - angle, angle), y)


def signbit(x: Tensor) -> Tensor:
    return (x < 0) | ((x == 0) & (1 / x < 0)) if x.is_floating_point() else x < 0


def copysign(x: Tensor, y: Any) -> Tensor:
    sign = torch.as_tensor(y, dtype=x.dtype)
    return torch.where(signbit(sign), -x.abs(), x.abs())


def fmax(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(torch.isnan(x), y, torch.where(torch.isnan(y), x, torch.maximum(x, y)))


def fmin(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(torch.isnan(x), y, torch.where(torch.isnan(y), x, torch.minimum(x, y)))


def logaddexp(x: Tensor, y: Tensor) -> Tensor:
    """Compute log(exp x + exp y) without overflow."""
    apart = torch.where(x == y, torch.zeros_like(x + y), x - y).abs()  # equal infinities as well
    return torch.maximum(x, y) + torch.log1p(torch.exp(-apart))


def logaddexp2(x: Tensor, y: Tensor) -> Tensor:
    """Compute logaddexp to the base 2."""
    return logaddexp(x * math.log(2), y * math.log(2)) / math.log(2)


def logcumsumexp(x: Tensor, axis: int) -> Tensor:
    """Compute the running logsumexp, with each sum scaled by its largest term: n² differences."""
    rows = x.movedim(axis, -1).unsqueeze(-2)
    upto = torch.ones(x.shape[axis], x.shape[axis], dtype=torch.bool).tril()
    terms = torch.where(upto, rows, torch.full((), -math.inf, dtype=x.dtype))
    most = terms.amax(-1, keepdim=True)
    most = torch.where(most.abs() == math.inf, torch.zeros_like(most), most)
    found = torch.exp(terms - most).sum(-1).log() + most.squeeze(-1)
    return found.movedim(-1, axis)
