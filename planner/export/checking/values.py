"""Other values for the tensors of a step, of the kind that the example has."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from planner.export.write.dtypes import as_real

_NOISE = 0.1
"""Size of the change of a floating-point tensor, by its own deviation."""

_MOVE = 0.05
"""The same for a parameter, from one step to the next."""

_DRAWN = 65_537
"""So many numbers are drawn for one tensor at most; a prime, which no row's length divides."""

_LEAST = 0.02
"""The least change of a parameter whose elements are all alike."""


class Others:
    """Tensors like those of an example: rows in another order, the same one in all that have as many, so
    that lengths and masks stay with what they are of; floats with noise, in the range of the example's.

    Integers are no others than the example's: what they index, or count, is there.
    """

    def __init__(self, seed: int, *, is_shuffled: bool = True) -> None:
        self._is_shuffled = is_shuffled
        self._generator = torch.Generator().manual_seed(seed)
        self._orders: dict[int, Tensor] = {}

    def tensor(self, given: Tensor) -> Tensor:
        """A tensor of the same type and shape."""
        found = given.detach()
        if _is_ascending(found):  # edges of bins, times: their order is what they mean
            return _noisy(found, self._generator).sort()[0]
        if self._is_shuffled and found.dim() and found.shape[0] > 1:
            found = found[self._order(found.shape[0])]
        return _in_reals(found, lambda real: _noisy(real, self._generator))

    def _order(self, rows: int) -> Tensor:
        if rows not in self._orders:
            self._orders[rows] = torch.randperm(rows, generator=self._generator)
        return self._orders[rows]


def _is_ascending(tensor: Tensor) -> bool:
    """Whether it is a vector of different floats in ascending order."""
    is_vector = tensor.dim() == 1 and tensor.is_floating_point() and tensor.shape[0] > 2
    return is_vector and bool((tensor[1:] > tensor[:-1]).all())


def _noisy(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """What is in [0, 1] stays there, and what is not negative stays so. Whole numbers, which may be
    categories or signs, and what is not finite, stay as they are."""
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
    """Normal numbers, float32; over and over the same ones in a large tensor, which are quick to draw."""
    count = tensor.numel()
    some = torch.randn(min(count, _DRAWN), generator=generator)
    return some.repeat(-(-count // max(some.numel(), 1)))[:count].reshape(tensor.shape)


def moved(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """A parameter as some step might leave it."""

    def step(real: Tensor) -> Tensor:
        spread = max(float(real.float().std(correction=0)), _LEAST / _MOVE)
        return real + _MOVE * spread * noise_like(real, generator).to(real.dtype)

    return _in_reals(tensor, step)


def rounded(tensor: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """A tensor whose elements have changed by about a share of each. Whole numbers stay: they may be
    categories, or the ends of a range."""

    def change(real: Tensor) -> Tensor:
        found = real * (1 + share * noise_like(real, generator).to(real.dtype))
        return torch.where(real == real.round(), real, found)

    return _in_reals(tensor, change)


def resized(tensor: Tensor, axes: Mapping[int, str], sizes: Mapping[str, int]) -> Tensor:
    """An example with other sizes of some of its open axes: its rows again, from the first."""
    for axis, name in axes.items():
        if name in sizes:
            places = torch.arange(sizes[name]) % tensor.shape[axis]
            tensor = tensor.index_select(axis, places)
    return tensor


def _in_reals(tensor: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """A tensor whose real numbers are changed, those of complex ones too; all else stays."""
    real = as_real(tensor.detach())
    if not real.is_floating_point() or not real.numel():
        return tensor.detach()
    found = change(real)
    return torch.view_as_complex(found.contiguous()) if tensor.is_complex() else found
