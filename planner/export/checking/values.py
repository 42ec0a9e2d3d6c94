"""New values for the tensors of a step, of the same kind as the example's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from planner.export.write.dtypes import as_real

_NOISE = 0.1
"""Change of a floating-point tensor, relative to its own deviation."""

_MOVE = 0.05
"""Change of a parameter from one step to the next, relative to its own deviation."""

_DRAWN = 65_537
"""Largest number of random numbers drawn for one tensor; a prime, which no row length divides."""

_LEAST = 0.02
"""Least change of a parameter whose elements are all equal."""


class Others:
    """Generator of tensors similar to an example's.

    Rows are shuffled, in one order for all tensors with equally many rows, which keeps lengths and masks
    with their data. Floats get noise within the range of the example's. Integers are taken from the
    example, because they may index or count something.
    """

    def __init__(self, seed: int, *, is_shuffled: bool = True) -> None:
        self._is_shuffled = is_shuffled
        self._generator = torch.Generator().manual_seed(seed)
        self._orders: dict[int, Tensor] = {}

    def tensor(self, given: Tensor) -> Tensor:
        """Return a new tensor of the same type and shape."""
        found = given.detach()
        if _is_ascending(found):  # bin edges or times, which must stay sorted
            return _noisy(found, self._generator).sort()[0]
        if self._is_shuffled and found.dim() and found.shape[0] > 1:
            found = found[self._order(found.shape[0])]
        return _in_reals(found, lambda real: _noisy(real, self._generator))

    def _order(self, rows: int) -> Tensor:
        if rows not in self._orders:
            self._orders[rows] = torch.randperm(rows, generator=self._generator)
        return self._orders[rows]


def _is_ascending(tensor: Tensor) -> bool:
    """Tell whether a tensor is a vector of different floats in ascending order."""
    is_vector = tensor.dim() == 1 and tensor.is_floating_point() and tensor.shape[0] > 2
    return is_vector and bool((tensor[1:] > tensor[:-1]).all())


def _noisy(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Add noise that keeps values in [0, 1] there, and non-negative values non-negative.

    Whole numbers, which may be categories or signs, and non-finite values stay unchanged.
    """
    given = tensor.detach().float()
    is_moved = given.isfinite() & (given != given.round())
    values = given[is_moved]
    if not values.numel():
        return tensor
    noise = noise_like(values, generator)
    all_finite = given[given.isfinite()]
    low, high = float(all_finite.min()), float(all_finite.max())
    if low >= 0 and high <= 1:
        found = (values + _NOISE * noise).clamp(low, high)
    elif low >= 0:
        found = values * torch.exp(_NOISE * noise)
    else:
        spread = float(values.std(correction=0)) or abs(high) or 1.0
        found = values + _NOISE * spread * noise
    return given.masked_scatter(is_moved, found).to(tensor.dtype)


def noise_like(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Return normal numbers in float32; a large tensor repeats a fixed number of them, for speed."""
    count = tensor.numel()
    some = torch.randn(min(count, _DRAWN), generator=generator)
    return some.repeat(-(-count // max(some.numel(), 1)))[:count].reshape(tensor.shape)


def moved(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Return a parameter changed as by one training step."""

    def step(real: Tensor) -> Tensor:
        spread = max(float(real.float().std(correction=0)), _LEAST / _MOVE)
        return real + _MOVE * spread * noise_like(real, generator).to(real.dtype)

    return _in_reals(tensor, step)


def rounded(tensor: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Return a tensor with each element changed by about `share` of itself.

    Whole numbers stay unchanged: they may be categories, or the ends of a range.
    """

    def change(real: Tensor) -> Tensor:
        found = real * (1 + share * noise_like(real, generator).to(real.dtype))
        return torch.where(real == real.round(), real, found)

    return _in_reals(tensor, change)


def resized(tensor: Tensor, axes: Mapping[int, str], sizes: Mapping[str, int]) -> Tensor:
    """Return an example with some open axes resized by repeating its rows from the first."""
    for axis, name in axes.items():
        if name in sizes:
            places = torch.arange(sizes[name]) % tensor.shape[axis]
            tensor = tensor.index_select(axis, places)
    return tensor


def _in_reals(tensor: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a change to a tensor's real numbers, or a complex tensor's parts; return others unchanged."""
    real = as_real(tensor.detach())
    if not real.is_floating_point() or not real.numel():
        return tensor.detach()
    found = change(real)
    return torch.view_as_complex(found.contiguous()) if tensor.is_complex() else found
