"""Random programs of operations that IEEE 754 or the language defines: the bits of NumPy, in each type,
with infinities, NaNs, subnormals and the largest and least numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import pytest

from tests.fuse.graphs import Array, pointwise, same_bits
from tests.fuse.test_operators import DTYPES
from tests.fuse.test_pointwise import SHAPES

FLOATS = ("float", "double")
SPACE = (7, 5, 33)


def maximum(a: Array, b: Array) -> Array:
    """The second of equal ones, as of 0 and -0; a NaN where either is one."""
    return np.where(a > b, a, np.where(b >= a, b, a + b))


def minimum(a: Array, b: Array) -> Array:
    return np.where(a < b, a, np.where(b <= a, b, a + b))


def relu(a: Array) -> Array:
    return np.where(a < 0, a.dtype.type(0), a)


BINARY: Mapping[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "maximum": maximum,
    "minimum": minimum,
}
UNARY: Mapping[str, Callable[[Array], Array]] = {"neg": np.negative, "abs": np.abs, "relu": relu}
COMPARED: Mapping[str, Callable[[Array, Array], Array]] = {
    "equal": np.equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}
BOOLS = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor, "equal": np.equal}
CASTS = {
    "float": ("double", "bool"),
    "double": ("float", "bool"),
    "int32": ("float", "double", "int64", "bool"),
    "int64": ("float", "double", "int32", "bool"),
    "bool": tuple(DTYPES),
}
"""By type: the types to which a cast of every value is defined."""


class Value(NamedTuple):
    name: str
    dtype: str
    array: Array
    is_row: bool


def special(dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Ordinary values, one in four of them special."""
    kind = np.dtype(DTYPES[dtype])
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in FLOATS:
        limits = np.finfo(kind)
        edges = [0.0, -0.0, np.inf, -np.inf, np.nan, limits.max, limits.min, limits.tiny]
        edges += [limits.smallest_subnormal, 1.0]
        found = rng.standard_normal(shape)
    else:
        edges = [0, -1, np.iinfo(kind).max, np.iinfo(kind).min]
        found = rng.integers(-50, 50, shape)
    chosen = np.array(edges, dtype=kind)[rng.integers(0, len(edges), shape)]
    return np.where(rng.integers(0, 4, shape) == 0, chosen, found.astype(kind))


class Drawn:
    """A random program over (7, 5, 33), with rows of its last axis, and what NumPy makes of it."""

    def __init__(self, seed: int, dtype: str) -> None:
        self.rng = np.random.default_rng(seed)
        self.lines, self.feeds = ["axes 1"], dict[str, Array]()
        self.known: list[Value] = []
        for i, place in enumerate([0, *self.rng.integers(0, len(SHAPES), 3)]):
            x = special("bool" if i == 3 else dtype, SHAPES[place], self.rng)
            is_row = x.ndim == 0 or x.shape[-1] == 1
            kind = "bool" if i == 3 else dtype
            self.lines.append(f"x{i} = input {kind}{' row' if is_row else ''}")
            self.feeds[f"x{i}"] = x
            self.known.append(Value(f"x{i}", kind, x, is_row))
        self.made: list[Value] = []
        while len(self.made) < 16:
            self._step()
        self.outputs = self.made[-4:]
        self.lines += [f"output {v.name}{' keep' if v.is_row else ''}" for v in self.outputs]

    def _step(self) -> None:
        a = self._one()
        draw = int(self.rng.integers(0, 6))
        if draw == 0:
            self._cast(a)
        elif draw == 1 and not a.is_row and a.dtype != "bool":
            self._reduced(a)
        elif draw == 2:
            self._selected(a)
        elif draw == 3:
            self._unary(a)
        elif draw == 4 and a.dtype != "bool":
            self._binary(a, COMPARED, "bool")
        else:
            floats = {"div": np.divide} if a.dtype in FLOATS else {}
            self._binary(a, BOOLS if a.dtype == "bool" else {**BINARY, **floats}, a.dtype)

    def _one(self, dtype: str = "") -> Value:
        found = [v for v in self.known if v.dtype == (dtype or v.dtype)]
        return found[self.rng.integers(0, len(found))]

    def _put(self, step: str, dtype: str, array: Array, *read: Value) -> None:
        made = Value(f"t{len(self.made)}", dtype, array, all(v.is_row for v in read))
        assert array.dtype == np.dtype(DTYPES[dtype]), step
        self.lines.append(f"{made.name} = {step}")
        self.known.append(made)
        self.made.append(made)

    def _cast(self, a: Value) -> None:
        to = str(self.rng.choice(CASTS[a.dtype]))
        self._put(f"cast {to} {a.name}", to, a.array.astype(DTYPES[to]), a)

    def _reduced(self, a: Value) -> None:
        """The largest or least of a row, and 0: of 0 and -0, either may be found."""
        name = str(self.rng.choice(["max", "min"]))
        full = np.broadcast_to(a.array, SPACE)
        found = (np.max if name == "max" else np.min)(full, axis=-1, keepdims=True)
        row = f"r{len(self.made)}"
        zero = f"z{len(self.made)}"
        self.lines += [f"{zero} = constant {a.dtype} 0", f"{row} = {name} {a.name}"]
        made = found + found.dtype.type(0)
        self._put(f"add {row} {zero}", a.dtype, made, a._replace(is_row=True))

    def _selected(self, a: Value) -> None:
        chosen, b = self._one("bool"), self._one(a.dtype)
        yes = a.array if a.dtype == "bool" else a.array + a.array.dtype.type(0)  # -0 becomes 0
        made = np.where(chosen.array, yes, b.array)
        self._put(f"where {chosen.name} {a.name} {b.name}", a.dtype, made, chosen, a, b)

    def _unary(self, a: Value) -> None:
        of = {"not": np.logical_not} if a.dtype == "bool" else dict(UNARY)
        if a.dtype in FLOATS:
            of["sqrt"] = np.sqrt
        name = str(self.rng.choice(list(of)))
        self._put(f"{name} {a.name}", a.dtype, of[name](a.array), a)

    def _binary(
        self, a: Value, of: Mapping[str, Callable[[Array, Array], Array]], dtype: str
    ) -> None:
        """With another value, or with a constant on either side."""
        name = str(self.rng.choice(list(of)))
        if self.rng.integers(0, 4):
            b = self._one(a.dtype)
        else:
            x = special(a.dtype, (), self.rng)
            b = Value(f"c{len(self.made)}", a.dtype, x, True)
            text = repr(x.item()) if a.dtype in FLOATS else str(int(x))
            self.lines.append(f"{b.name} = constant {a.dtype} {text}")
            if self.rng.integers(0, 2):
                self._put(f"{name} {b.name} {a.name}", dtype, of[name](b.array, a.array), a)
                return
        self._put(f"{name} {a.name} {b.name}", dtype, of[name](a.array, b.array), a, b)


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("dtype", ["float", "double", "int32", "int64"])
def test_random_programs_have_the_bits_of_numpy(dtype: str, seed: int):
    with np.errstate(all="ignore"):
        drawn = Drawn(seed, dtype)
    found = pointwise("\n".join(drawn.lines), drawn.feeds)
    for wanted, value in zip(drawn.outputs, found, strict=True):
        shape = (7, 5, 1) if wanted.is_row else SPACE
        assert same_bits(value, np.broadcast_to(wanted.array, shape)), wanted.name
