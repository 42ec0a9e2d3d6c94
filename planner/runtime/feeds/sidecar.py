"""The sidecar of a model, `<stem>.inputs.json`: a recipe for each of its inputs.

    {input name: {"dtype", "shape", "kind", ...}}

    const     "value"
    normal    "std", "mean" (default 0)
    randint   "high", "low" (default 0): integers in [low, high)
    uniform   in [0, 1)
    bernoulli "chance": 1 with that chance, else 0

Values are drawn from numpy's PCG64 seeded with crc32(input name): each input can be made alone.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import ml_dtypes
import msgspec
import numpy as np
import numpy.typing as npt

from planner.errors import UsageError
from planner.files.reading import MAX_BYTES, shown
from planner.files.structuring import Source, read_json, structured
from planner.runtime.arrays import is_narrow

Array = npt.NDArray[Any]

_SIGMAS = 10
"""The bound on a normal draw's distance from the mean, in standard deviations."""


class _Entry(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=str.lower):
    """A recipe as in the file; its `kind` is the name of the class."""

    dtype: str
    shape: tuple[Annotated[int, msgspec.Meta(ge=0, le=MAX_BYTES)], ...]


class Const(_Entry, frozen=True):
    value: bool | int | float


class Normal(_Entry, frozen=True):
    std: Annotated[float, msgspec.Meta(ge=0)]
    mean: float = 0.0


class Randint(_Entry, frozen=True):
    high: int
    low: int = 0


class Uniform(_Entry, frozen=True):
    pass


class Bernoulli(_Entry, frozen=True):
    chance: Annotated[float, msgspec.Meta(ge=0, le=1)]


_Any = Const | Normal | Randint | Uniform | Bernoulli


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The recipe of one input."""

    name: str
    dtype: np.dtype[Any]
    entry: _Any

    def draw(self, shape: tuple[int, ...]) -> Array:
        """Make the input, of shape `shape`."""
        if isinstance(self.entry, Const):
            return np.full(shape, self.entry.value, self.dtype)
        generator = np.random.Generator(np.random.PCG64(zlib.crc32(self.name.encode())))
        if isinstance(self.entry, Normal):
            sample = generator.standard_normal(shape, dtype=np.float32)
            std, mean = np.float32(self.entry.std), np.float32(self.entry.mean)
            return np.asarray(sample * std + mean, self.dtype)
        if isinstance(self.entry, Uniform):
            return np.asarray(generator.random(shape, dtype=np.float32), self.dtype)
        if isinstance(self.entry, Bernoulli):
            sample = generator.random(shape, dtype=np.float32)
            return np.asarray(sample < np.float32(self.entry.chance), self.dtype)
        return np.asarray(generator.integers(self.entry.low, self.entry.high, shape), self.dtype)


def read_recipes(path: Path) -> dict[str, Any]:
    """Read a sidecar's recipes by the input's name, each as in the file.

    Raises:
        UsageError: the file is not JSON, or not an object.
    """
    return read_json(path, dict[str, Any], what="a file of input recipes", error=UsageError)


def recipe_of(name: str, entry: Any, path: Path) -> Recipe:
    """Check the recipe of one input.

    Raises:
        UsageError: a field is missing, of a wrong type, or outside the range of the input's type.
    """
    where = f"{path}: input {name!r}"
    found: _Any = structured(
        entry,
        _Any,
        Source(where=where, what="a recipe", error=UsageError),
        only_known_keys=False,
    )
    dtype = _dtype(found.dtype, where)
    if isinstance(found, Const):
        low = high = found.value
    elif isinstance(found, Normal):
        low, high = found.mean - _SIGMAS * found.std, found.mean + _SIGMAS * found.std
        _check_within(low, high, np.dtype(np.float32), where)  # values are drawn as float32
    elif isinstance(found, Uniform | Bernoulli):
        low, high = 0, 1
    else:
        low, high = found.low, found.high - 1
        if high < low:
            most = shown(found.high)
            raise UsageError(f"{where}: there is no integer from {shown(low)} up to below {most}")
        _check_within(low, high, np.dtype(np.int64), where)
    _check_within(low, high, dtype, where)
    return Recipe(name=name, dtype=dtype, entry=found)


def _dtype(name: str, where: str) -> np.dtype[Any]:
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError, SyntaxError):
        dtype = np.dtype(object)
    if dtype.kind not in "fiubc" and not is_narrow(dtype):
        raise UsageError(f"{where}: dtype {shown(name)} is no type of numbers of numpy's")
    return dtype


def _check_within(low: float, high: float, dtype: np.dtype[Any], where: str) -> None:
    """Raise UsageError unless an array of `dtype` can hold values from `low` to `high`."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        fits = int(limits.min) <= low and high <= int(limits.max)
    elif dtype.kind == "b":
        fits = low >= 0 and high <= 1
    else:
        most = float(ml_dtypes.finfo(dtype).max)
        fits = -most <= low and high <= most
    if not fits:
        raise UsageError(f"{where}: values from {shown(low)} to {shown(high)} do not fit {dtype}")
