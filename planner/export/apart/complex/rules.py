"""Rules of operators on complex numbers as pairs of real ones."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.complex_tensor import ComplexTensor
from torch.utils._pytree import tree_map

from planner.export.apart.complex import fourier

_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}
_PARTWISE = frozenset(
    {
        "_unsafe_view", "alias", "as_strided", "cat", "clone", "constant_pad_nd", "copy",
        "cumsum", "detach", "diagonal", "diagonal_backward", "diagonal_scatter", "empty_like",
        "expand", "flip", "gather", "index", "index_add", "index_copy", "index_put",
        "index_select", "lift_fresh_copy", "mean", "narrow", "neg", "new_empty",
        "new_empty_strided", "new_zeros", "permute", "repeat", "reshape", "roll", "scatter",
        "scatter_add", "select", "select_backward", "select_scatter", "slice", "slice_backward",
        "slice_scatter", "split", "split_with_sizes", "squeeze", "stack", "sum", "t", "transpose",
        "tril", "triu", "unbind", "unfold", "unfold_backward", "unsqueeze", "view", "where",
        "zeros_like",
    }
)  # fmt: skip
"""Operators that act on both parts alike."""


def called(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Apply an operator to tensors whose real and imaginary parts are separate."""
    name = target._schema.name.removeprefix("aten::")
    if name in _RULES:
        return _RULES[name](*args, **kwargs)
    dtype = kwargs.get("dtype")
    options = {**kwargs, "dtype": _REAL[dtype]} if dtype in _REAL else dict(kwargs)
    if name in _PARTWISE:
        real, imaginary = (
            target(*tree_map(part, list(args), is_leaf=_is_pair), **tree_map(part, options))
            for part in (_re, _im)
        )
        several = isinstance(real, list | tuple)
        if several:
            return [ComplexTensor(*pair) for pair in zip(real, imaginary, strict=True)]
        return ComplexTensor(real, imaginary)
    if name in _MAKERS:
        # Fill values are split as well.
        real, imaginary = (
            target(*(part(a) if isinstance(a, complex) else a for a in args), **options)
            for part in (_re, _im)
        )
        return ComplexTensor(real, imaginary if name in _FILLED else torch.zeros_like(real))
    if not any(_is_pair(arg) for arg in args):
        args = [_widened(args[0]), *args[1:]]
    return target(*args, **kwargs)


_FILLED = frozenset({"full", "scalar_tensor", "new_full"})
_MAKERS = _FILLED | {"ones", "zeros", "empty", "new_ones"}
"""Operators that create a tensor of a given type."""


def _is_pair(value: Any) -> bool:
    return isinstance(value, ComplexTensor)


def _re(value: Any) -> Any:
    if isinstance(value, ComplexTensor):
        return value.re
    return value.real if isinstance(value, complex) else value


def _im(value: Any) -> Any:
    if isinstance(value, ComplexTensor):
        return value.im
    if isinstance(value, complex):
        return value.imag
    return (
        torch.zeros_like(value)
        if isinstance(value, Tensor) and value.is_floating_point()
        else value
    )


def _widened(value: Any) -> ComplexTensor:
    real = value if isinstance(value, Tensor) else torch.tensor(value)
    return ComplexTensor(real, torch.zeros_like(real))


def _added(x: Any, y: Any, alpha: Any = 1, sign: int = 1) -> ComplexTensor:
    """Compute x ± alpha y, where either may be real, or a number."""
    factor = sign * alpha
    real, imaginary = _re(x) + _re(y) * factor, torch.zeros(())
    for side, times in ((x, 1), (y, factor)):
        if isinstance(side, ComplexTensor | complex):
            imaginary = imaginary + _im(side) * times
    shape = torch.broadcast_shapes(real.shape, imaginary.shape)
    return ComplexTensor(real.expand(shape), imaginary.to(real.dtype).expand(shape))


def _polar(size: Tensor, angle: Tensor) -> ComplexTensor:
    return ComplexTensor(size * angle.cos(), size * angle.sin())


def _divided(x: Any, y: Any, **options: Any) -> Any:
    if isinstance(x, ComplexTensor) and not _is_pair(y) and not isinstance(y, complex):
        return ComplexTensor(x.re / y, x.im / y)
    return torch.ops.aten.div(x if _is_pair(x) else _widened(x), y, **options)


def _multiplied(x: Any, y: Any) -> ComplexTensor:
    """Multiply, leaving out the real products that are certainly 0."""
    a, b = (isinstance(side, ComplexTensor | complex) for side in (x, y))
    if a and b:
        return ComplexTensor(_re(x) * _re(y) - _im(x) * _im(y), _re(x) * _im(y) + _im(x) * _re(y))
    return ComplexTensor(_re(x) * _re(y), _im(x) * y if a else x * _im(y))


def _conjugate(x: Any) -> ComplexTensor:
    if isinstance(x, complex):
        return ComplexTensor(torch.tensor(x.real), torch.tensor(-x.imag))
    return ComplexTensor(x.re, -x.im)


def _size(x: ComplexTensor) -> Tensor:
    return torch.sqrt(x.re * x.re + x.im * x.im)


def _direction(x: ComplexTensor) -> ComplexTensor:
    """Compute x / |x|, with 0 for 0."""
    size = _size(x)
    share = torch.where(size == 0, 0.0, 1 / torch.where(size == 0, 1.0, size))
    return ComplexTensor(x.re * share, x.im * share)


def _scale(parts: Sequence[Tensor], norm: int, n: int) -> list[Tensor]:
    """Scale by PyTorch's normalization code: 0 for none, 1 for 1/√n, 2 for 1/n."""
    factor = {0: 1.0, 1: 1 / math.sqrt(n), 2: 1 / n}[norm]
    return list(parts) if factor == 1 else [part * factor for part in parts]


def _count(x: Tensor, axes: Sequence[int]) -> int:
    return math.prod(int(x.shape[axis]) for axis in axes)


def _c2c(x: Any, axes: Sequence[int], norm: int, forward: bool) -> ComplexTensor:
    x = x if _is_pair(x) else _widened(x)
    parts = x.re, x.im
    for axis in axes:
        parts = fourier.transform(*parts, axis, forward=forward)
    return ComplexTensor(*_scale(parts, norm, _count(x.re, axes)))


def _r2c(x: Tensor, axes: Sequence[int], norm: int, onesided: bool) -> ComplexTensor:
    *others, last = axes
    parts = fourier.halved(x, last) if onesided else fourier.transform(x, None, last, forward=True)
    for axis in others:
        parts = fourier.transform(*parts, axis, forward=True)
    return ComplexTensor(*_scale(parts, norm, _count(x, axes)))


def _c2r(x: ComplexTensor, axes: Sequence[int], norm: int, length: int) -> Tensor:
    *others, last = axes
    parts = x.re, x.im
    for axis in others:
        parts = fourier.transform(*parts, axis, forward=False)
    found = fourier.from_half(*parts, last, int(length))
    return _scale([found], norm, _count(found, axes))[0]


def _view_as_complex(x: Tensor) -> ComplexTensor:
    return ComplexTensor(*x.unbind(-1))


def _to_copy(x: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    if _is_pair(x) and dtype is not None and not dtype.is_complex:
        return x.re.to(dtype)
    real = _REAL.get(dtype or x.dtype, dtype)
    if _is_pair(x):
        return ComplexTensor(x.re.to(real), x.im.to(real))
    return _widened(x.to(real))


_RULES: dict[str, Callable[..., Any]] = {
    "_fft_c2c": _c2c,
    "_fft_c2r": _c2r,
    "_fft_r2c": _r2c,
    "_to_copy": _to_copy,
    "abs": _size,
    "_conj": _conjugate,
    "_conj_physical": _conjugate,
    "add": _added,
    "complex": ComplexTensor,
    "conj_physical": _conjugate,
    "div": _divided,
    "mul": _multiplied,
    "polar": _polar,
    "sgn": _direction,
    "sub": functools.partial(_added, sign=-1),
    "view_as_complex": _view_as_complex,
    "view_as_real": lambda x: torch.stack([x.re, x.im], -1),
}
"""Rules by operator, without overload, for tensors whose parts are separate."""
