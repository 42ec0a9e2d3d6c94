"""Special functions, and others of single elements, made of operators that ONNX has.

Each is a function of an operator's arguments, in PyTorch; `planner.export.parts` says of which.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_SHIFT = 8
"""The series for large arguments are taken this far above."""

_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188)
_ERFINV_MIDDLE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
    -0.00125372503, -0.00417768164, 0.246640727, 1.50140941,
)  # fmt: skip
_ERFINV_TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
    -0.0076224613, 0.00943887047, 1.00167406, 2.83297682,
)  # fmt: skip


def _by_series(x: Tensor, series: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """(x in float64, moved to where it is positive, its series there)."""
    wide = x.to(torch.float64)
    positive = torch.where(wide <= 0, 1 - wide, wide)
    return positive, series(positive)


def lgamma(x: Tensor) -> Tensor:
    """log |Γ(x)|: Stirling's series above 8, the recurrence and the reflection below."""

    def series(p: Tensor) -> Tensor:
        z = p + _SHIFT
        product = p
        for k in range(1, _SHIFT):
            product = product * (p + k)
        tail = sum(c * z ** -(2 * k + 1) for k, c in enumerate(_STIRLING))
        return (
            (z - 0.5) * torch.log(z) - z + 0.5 * math.log(2 * math.pi) + tail - torch.log(product)
        )

    positive, found = _by_series(x, series)
    reflected = math.log(math.pi) - torch.log(torch.sin(math.pi * positive).abs()) - found
    return torch.where(x <= 0, reflected, found).to(x.dtype)


def digamma(x: Tensor) -> Tensor:
    """The derivative of lgamma."""

    def series(p: Tensor) -> Tensor:
        z = p + _SHIFT
        tail = sum(-(2 * k + 1) * c * z ** -(2 * k + 2) for k, c in enumerate(_STIRLING))
        return torch.log(z) - 0.5 / z + tail - sum(1 / (p + k) for k in range(_SHIFT))

    positive, found = _by_series(x, series)
    angle = math.pi * positive
    reflected = found + math.pi * torch.cos(angle) / torch.sin(angle)
    return torch.where(x <= 0, reflected, found).to(x.dtype)


def polygamma(n: int, x: Tensor) -> Any:
    """The n-th derivative of digamma; not above the first for negative arguments."""

    def series(p: Tensor) -> Tensor:
        z = p + _SHIFT
        # the terms of Stirling's series, derived n + 1 times
        tail = sum(
            c * math.factorial(2 * k + n + 1) / math.factorial(2 * k) * z ** -(2 * k + n + 2)
            for k, c in enumerate(_STIRLING)
        )
        far = math.factorial(n - 1) / z**n + math.factorial(n) / 2 / z ** (n + 1) + tail
        near = math.factorial(n) * sum(1 / (p + k) ** (n + 1) for k in range(_SHIFT))
        return (-1) ** (n + 1) * (far + near)

    if n < 1:
        return NotImplemented
    positive, found = _by_series(x, series)
    if n > 1:
        return torch.where(x <= 0, math.nan, found).to(x.dtype)
    reflected = (math.pi / torch.sin(math.pi * positive)) ** 2 - found
    return torch.where(x <= 0, reflected, found).to(x.dtype)


def erfinv(x: Tensor) -> Tensor:
    """Giles (2012), "Approximating the erfinv function": two polynomials, within single precision."""
    w = -torch.log((1 - x) * (1 + x))
    near, far = w - 2.5, torch.sqrt(w.clamp_min(5.0)) - 3
    middle, tail = torch.full_like(x, _ERFINV_MIDDLE[0]), torch.full_like(x, _ERFINV_TAIL[0])
    for a, b in zip(_ERFINV_MIDDLE[1:], _ERFINV_TAIL[1:], strict=True):
        middle, tail = a + middle * near, b + tail * far
    return torch.where(w < 5, middle, tail) * x


def hypot(x: Tensor, y: Tensor) -> Tensor:
    return torch.sqrt(x * x + y * y)


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
    """log(exp x + exp y), for any size of both."""
    apart = torch.where(
        x == y, torch.zeros_like(x + y), x - y
    ).abs()  # infinite ones are equal, too
    return torch.maximum(x, y) + torch.log1p(torch.exp(-apart))


def logaddexp2(x: Tensor, y: Tensor) -> Tensor:
    """The same to the base 2."""
    return logaddexp(x * math.log(2), y * math.log(2)) / math.log(2)


def logcumsumexp(x: Tensor, axis: int) -> Tensor:
    """log of the sums of exp of ever more elements, each less their largest: n² differences."""
    rows = x.movedim(axis, -1).unsqueeze(-2)
    upto = torch.ones(x.shape[axis], x.shape[axis], dtype=torch.bool).tril()
    terms = torch.where(upto, rows, torch.full((), -math.inf, dtype=x.dtype))
    most = terms.amax(-1, keepdim=True)
    most = torch.where(most.abs() == math.inf, torch.zeros_like(most), most)
    found = torch.exp(terms - most).sum(-1).log() + most.squeeze(-1)
    return found.movedim(-1, axis)
