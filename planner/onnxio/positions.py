"""Dims by position: `x:0` is axis 0 of the input x.

A position is the only label of a dim without name and size in the file. `--shape x=1x3` is short for
`--dim x:0/2=1 --dim x:1/2=3`: the number after the slash is the rank that x must have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from planner.errors import UsageError
from planner.files.reading import shown
from planner.units import parse_whole

_MAX_SIZES = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """An axis of an input.

    Attributes:
        rank: the number of axes that the input must have; None for any.
    """

    input: str
    axis: int
    rank: int | None = None

    def __str__(self) -> str:
        return f"{self.input}:{self.axis}" + ("" if self.rank is None else f"/{self.rank}")


def position_of(text: str) -> Position | None:
    """Parse `"x:0"` or `"x:0/4"`; return None for other texts."""
    name, colon, place = text.rpartition(":")
    axis, slash, rank = place.partition("/")
    number, most = parse_whole(axis), parse_whole(rank)
    if not colon or not name or number is None or (slash and most is None):
        return None
    return Position(input=name, axis=number, rank=most)


def typed(text: str, given: Mapping[str, int]) -> str:
    """Return the option, among all `given`, that gave the dim `text` its size."""
    place = position_of(text)
    if place is None or place.rank is None:
        return f"--dim {text}={given[text]}"
    places = ((position_of(other), size) for other, size in given.items())
    sizes = [str(n) for p, n in places if p and (p.input, p.rank) == (place.input, place.rank)]
    return f"--shape {place.input}={'x'.join(sizes)}"


def shape_dims(texts: Iterable[str]) -> dict[str, int]:
    """Parse `["x=1x3"]` into `{"x:0/2": 1, "x:1/2": 3}`.

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


def dims_of(texts: list[str] | None, shapes: list[str] | None = None) -> dict[str, int]:
    """Parse `["batch=32"]` into `{"batch": 32}`, and add the dims of `shapes`.

    Raises:
        UsageError: a text is not NAME=N with N a positive integer, a name is bound twice, or a shape is
            invalid.
    """
    dims: dict[str, int] = {}
    for text in texts or []:
        name, equals, number = text.rpartition("=")
        name, size = name.strip(), parse_whole(number)
        if not equals or not name or not size:
            raise UsageError(f"--dim {shown(text)} is not NAME=N with N a positive integer")
        if dims.get(name, size) != size:
            raise UsageError(f"--dim {name} is given twice, as {dims[name]} and as {size}")
        dims[name] = size
    return dims | shape_dims(shapes or ())


def sizes_of(texts: list[str] | None, shapes: list[str] | None = None) -> dict[str, list[int]]:
    """Parse `["batch=8:32:8", "seq=128"]` into `{"batch": [8, 16, 24, 32], "seq": [128]}`; ends
    included.

    The dims of `shapes` come after them.

    Raises:
        UsageError: a text is not NAME=N, NAME=N,N... or NAME=A:B[:STEP], a name is bound twice, or a
            shape is invalid.
    """
    dims: dict[str, list[int]] = {}
    for text in texts or []:
        name, equals, sizes = text.rpartition("=")
        name = name.strip()
        found = _sizes(sizes)
        if not equals or not name or not found:
            raise UsageError(
                f"--dim {shown(text)} is not NAME=N, NAME=N,N... or NAME=A:B[:STEP], "
                "in positive integers, with A at most B"
            )
        if name in dims:
            raise UsageError(f"--dim {name} is given twice; list its sizes as {name}=A,B")
        dims[name] = found
    return dims | {place: [size] for place, size in shape_dims(shapes or ()).items()}


def sizes_to_look_for(
    texts: list[str] | None, shapes: list[str] | None = None
) -> dict[str, list[int]]:
    """Parse as `sizes_of` does; a name alone gets no sizes.

    Raises:
        UsageError: see `sizes_of`.
    """
    alone = [text.strip() for text in texts or [] if "=" not in text]
    dims = sizes_of([text for text in texts or [] if "=" in text], shapes)
    for name in alone:
        if not name or name in dims:
            raise UsageError(f"--dim {name or repr(name)} is empty, or given twice")
        dims[name] = []
    return dims


def _sizes(text: str) -> list[int]:
    """Parse sizes; return an empty list where the text is not understood."""
    parts = text.replace(",", ":").split(":")
    numbers = [number for part in parts if (number := parse_whole(part)) is not None]
    if len(numbers) < len(parts) or len(parts) > _MAX_SIZES:
        return []
    if min(numbers) < 1 or ("," in text and ":" in text):
        return []
    if ":" not in text:
        return sorted(set(numbers))
    if len(numbers) > 3 or numbers[1] < numbers[0]:
        return []
    first, last, step = numbers if len(numbers) == 3 else (*numbers, 1)
    if (last - first) // step >= _MAX_SIZES:
        return []
    return list(range(first, last + 1, step))
