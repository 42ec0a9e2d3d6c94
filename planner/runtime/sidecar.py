"""The sidecar of a model, `<stem>.inputs.json`: how each of its inputs is made.

    {input name: {"dtype", "shape", "kind", ...}}

    const     "value"
    normal    "std", "mean" (default 0)
    randint   "high", "low" (default 0): integers in [low, high)

Values are drawn from numpy's PCG64 seeded with crc32(input name), so that one input can be made
alone.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.errors import UsageError
from planner.reading import MAX_BYTES, shown
from planner.structuring import read_json

Array = npt.NDArray[Any]

_SIGMAS = 10
"""No value of a normal draw is so many standard deviations from the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How one input is made; `fields` are those of its kind."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    kind: str
    fields: Mapping[str, float | bool]

    def draw(self, shape: tuple[int, ...]) -> Array:
        """The input, of `shape`."""
        if self.kind == "const":
            return np.full(shape, self.fields["value"], self.dtype)
        generator = np.random.Generator(np.random.PCG64(zlib.crc32(self.name.encode())))
        if self.kind == "normal":
            sample = generator.standard_normal(shape, dtype=np.float32)
            std, mean = np.float32(self.fields["std"]), np.float32(self.fields["mean"])
            return np.asarray(sample * std + mean, self.dtype)
        low, high = int(self.fields["low"]), int(self.fields["high"])
        return np.asarray(generator.integers(low, high, shape), self.dtype)


def read_recipes(path: Path) -> dict[str, Any]:
    """The recipes of a sidecar by name of the input, each as it stands in the file.

    Raises:
        UsageError: not JSON, or not an object.
    """
    return read_json(path, dict[str, Any], what="a file of input recipes", error=UsageError)


def recipe_of(name: str, entry: Any, path: Path) -> Recipe:
    """The recipe of one input.

    Raises:
        UsageError: a field is missing, of a wrong type, or not within the input's type.
    """
    where = f"{path}: input {name!r}"
    if not isinstance(entry, dict):
        raise UsageError(f"{where}: the recipe is {shown(entry)}, not an object")
    for key in ("dtype", "shape", "kind"):
        if key not in entry:
            raise UsageError(f"{where}: the recipe has no {key}")
    dtype = _dtype(entry["dtype"], where)
    shape = entry["shape"]
    if not isinstance(shape, list) or not all(
        type(dim) is int and 0 <= dim <= MAX_BYTES for dim in shape
    ):
        raise UsageError(f"{where}: shape is {shown(shape)}, not a list of whole numbers")
    kind = entry["kind"]
    if kind == "const":
        fields = {"value": _number(entry, "value", where)}
        low = high = fields["value"]
    elif kind == "normal":
        fields = {"std": _number(entry, "std", where), "mean": _number(entry, "mean", where, 0)}
        if fields["std"] < 0:
            raise UsageError(f"{where}: std is {shown(fields['std'])}, which is below 0")
        low = fields["mean"] - _SIGMAS * fields["std"]
        high = fields["mean"] + _SIGMAS * fields["std"]
        _check_within(low, high, np.dtype(np.float32), where)  # they are drawn as such
    elif kind == "randint":
        fields = {"low": _number(entry, "low", where, 0), "high": _number(entry, "high", where)}
        for key, value in fields.items():
            if type(value) is not int:
                raise UsageError(f"{where}: {key} is {shown(value)}, not a whole number")
        low, high = fields["low"], fields["high"] - 1
        if high < low:
            raise UsageError(f"{where}: there is no integer from {low} up to below {high + 1}")
        _check_within(low, high, np.dtype(np.int64), where)
    else:
        raise UsageError(f"{where} has the unknown kind {shown(kind)}")
    _check_within(low, high, dtype, where)
    return Recipe(name=name, dtype=dtype, shape=tuple(shape), kind=kind, fields=fields)


def _dtype(name: Any, where: str) -> np.dtype[Any]:
    try:
        dtype = np.dtype(name if isinstance(name, str) else repr(name))
    except (TypeError, ValueError, SyntaxError):
        dtype = np.dtype(object)
    if dtype.kind not in "fiubc":
        raise UsageError(f"{where}: dtype {shown(name)} is no type of numbers of numpy's")
    return dtype


def _number(
    entry: Mapping[str, Any], key: str, where: str, default: float | None = None
) -> float | bool:
    value = entry.get(key, default)
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise UsageError(f"{where}: {key} is {shown(value)}, not a finite number")
    return value


def _check_within(low: float, high: float, dtype: np.dtype[Any], where: str) -> None:
    """Whether an array of `dtype` holds values from `low` to `high`."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        fits = int(limits.min) <= low and high <= int(limits.max)
    elif dtype.kind == "b":
        fits = low >= 0 and high <= 1
    else:
        most = float(np.finfo(dtype).max)
        fits = -most <= low and high <= most
    if not fits:
        raise UsageError(f"{where}: values from {shown(low)} to {shown(high)} do not fit {dtype}")
