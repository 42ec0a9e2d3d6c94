"""Dims by their place: `x:0` is axis 0 of the input x.

A dim that a file gives neither a name nor a size has no other name than that. `--shape x=1x3` is short
for `--dim x:0/2=1 --dim x:1/2=3`: behind the slash is the number of axes that x is taken to have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from planner.errors import UsageError
from planner.files.reading import shown
from planner.units import parse_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """An axis of an input.

    Attributes:
        rank: how many axes the input is taken to have; None where nothing is said of it.
    """

    input: str
    axis: int
    rank: int | None = None

    def __str__(self) -> str:
        return f"{self.input}:{self.axis}" + ("" if self.rank is None else f"/{self.rank}")


def position_of(text: str) -> Position | None:
    """`"x:0"` or `"x:0/4"`; None where it is neither."""
    name, colon, place = text.rpartition(":")
    axis, slash, rank = place.partition("/")
    number, most = parse_whole(axis), parse_whole(rank)
    if not colon or not name or number is None or (slash and most is None):
        return None
    return Position(input=name, axis=number, rank=most)


def typed(text: str, given: Mapping[str, int]) -> str:
    """The option that gave the dim `text` its size, among all `given`."""
    place = position_of(text)
    if place is None or place.rank is None:
        return f"--dim {text}={given[text]}"
    places = ((position_of(other), size) for other, size in given.items())
    sizes = [str(n) for p, n in places if p and (p.input, p.rank) == (place.input, place.rank)]
    return f"--shape {place.input}={'x'.join(sizes)}"


def shape_dims(texts: Iterable[str]) -> dict[str, int]:
    """`["x=1x3"]` -> `{"x:0/2": 1, "x:1/2": 3}`.

    Raises:
        UsageError: a text is not NAME=AxBxC, or an input has two shapes.
    """
    shapes: dict[str, list[int]] = {}
    for text in texts:
        name, equals, sizes = text.rpartition("=")
        name = name.strip()
        shape = [size for part in sizes.split("x") if (size := parse_whole(part)) is not None]
        if not equals or not name or len(shape) < sizes.count("x") + 1:
            raise UsageError(
                f"--shape {shown(text)} is not INPUT=AxBxC, the size of every axis of an input"
            )
        if shapes.get(name, shape) != shape:
            first, other = ("x".join(map(str, sizes)) for sizes in (shapes[name], shape))
            raise UsageError(f"--shape {name} is given twice, as {first} and as {other}")
        shapes[name] = shape
    return {
        str(Position(input=name, axis=axis, rank=len(shape))): size
        for name, shape in shapes.items()
        for axis, size in enumerate(shape)
    }
