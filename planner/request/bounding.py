"""Upper bounds of sizes that a model leaves open: `--bound NAME=...`.

    NAME=AxBxC   the shape of a tensor is at most this, dim by dim
    NAME=N       a tensor has at most N elements; one of its dims is open
    NAME=64MB    a tensor, or the bodies of a node (If, Loop, Scan), take at most this many bytes

Sizes that follow from a tensor's shape are bounded with it. Without a bound, one run of the model shows
the sizes, and the plan states this as an assumption.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from planner.errors import UsageError
from planner.files.reading import MAX_BYTES, shown
from planner.units import parse_bytes, parse_whole

Given = str | int | tuple[int, ...]
"""A bound as the Python functions take it: "64MB", a number of elements, or a shape."""

_FORMS = "NAME=N (elements), NAME=AxBxC (a shape) or NAME=64MB (bytes)"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpperBound:
    """Upper bound on the size of a tensor, or on the memory of a node's bodies.

    Attributes:
        shape, elements, size_bytes: one of the three is given.
    """

    name: str
    shape: tuple[int, ...] | None = None
    elements: int | None = None
    size_bytes: int | None = None

    def shape_of(
        self, dims: tuple[int | None, ...] | None, bits: int, what: str
    ) -> tuple[int, ...]:
        """Return the largest shape that a tensor may have.

        Args:
            dims: its known dims; None for an open dim, or for an unknown rank.
            bits: size of one element.
            what: the tensor's name in messages.

        Raises:
            UsageError: the bound does not determine it.
        """
        if self.shape is not None:
            if dims is not None and (
                len(dims) != len(self.shape)
                or any(d not in (None, b) for d, b in zip(dims, self.shape, strict=True))
            ):
                has = "x".join("?" if d is None else str(d) for d in dims) or "a scalar's"
                raise UsageError(
                    f"--bound {self.name}: {what} has the shape {has}, open where it is ?"
                )
            return self.shape
        count = self.elements
        if count is None:
            assert self.size_bytes is not None
            count = self.size_bytes * 8 // bits
        if dims is None:
            raise UsageError(
                f"--bound {self.name}: not even the rank of {what} is known; give a shape, as "
                f"--bound '{self.name}=AxBxC'"
            )
        if dims.count(None) != 1:
            has = "x".join("?" if d is None else str(d) for d in dims)
            raise UsageError(
                f"--bound {self.name}: {what} has the shape {has}, with {dims.count(None)} open dims; "
                f"give a shape, as --bound '{self.name}=AxBxC'"
            )
        known = math.prod(d for d in dims if d is not None)
        return tuple(count // max(1, known) if d is None else d for d in dims)


def bound_texts(texts: Iterable[str]) -> dict[str, Given]:
    """`["idx=512", "h=8x64", "loop=64MB"]` by name, as the Python functions take them.

    Raises:
        UsageError: a text is no bound, or a name is bound twice.
    """
    found: dict[str, Given] = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        name, value = name.strip(), value.strip()
        if not equals or not name or not value:
            raise UsageError(f"--bound {shown(text)} is not {_FORMS}")
        if found.get(name, value) != value:
            raise UsageError(f"--bound {name} is given twice, as {found[name]} and as {value}")
        found[name] = value
    bounds_of(found)
    return found


def bounds_of(given: Mapping[str, Given]) -> tuple[UpperBound, ...]:
    """Bounds, by name as the Python functions take them.

    Raises:
        UsageError: one is no bound.
    """
    return tuple(_bound(name, value) for name, value in given.items())


def _bound(name: str, value: Given) -> UpperBound:
    if isinstance(value, tuple | list):
        dims = [d if type(d) is int else -1 for d in value]
        return UpperBound(name=name, shape=_checked(name, dims))
    if isinstance(value, int) and not isinstance(value, bool):
        return UpperBound(name=name, elements=_count(name, value))
    text = str(value)
    whole = parse_whole(text)
    if whole is not None:
        return UpperBound(name=name, elements=_count(name, whole))
    parts = [parse_whole(part) for part in text.split("x")]
    if len(parts) > 1 and all(part is not None for part in parts):
        return UpperBound(name=name, shape=_checked(name, [p for p in parts if p is not None]))
    if text[:1].isdigit():
        return UpperBound(
            name=name, size_bytes=_count(name, parse_bytes(text, what=f"--bound {name}:"))
        )
    raise UsageError(f"--bound {name}={shown(text)} is not {_FORMS}")


def _checked(name: str, dims: list[int]) -> tuple[int, ...]:
    if min(dims, default=0) < 0:
        raise UsageError(f"--bound {name}: a dim is 0 or more")
    _count(name, math.prod(dims))
    return tuple(dims)


def _count(name: str, number: int) -> int:
    if not 0 <= number <= MAX_BYTES:
        raise UsageError(f"--bound {name}: {shown(str(number))} is not between 0 and {MAX_BYTES}")
    return number
