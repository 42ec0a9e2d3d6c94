"""Open (symbolic) dimensions of the inputs, named by input and axis."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sympy
import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from planner.errors import UsageError
from planner.export.errors import ExportError

OpenDims = Mapping[str, Mapping[int, str]]
"""Names of open axes by input, as in `{"input_ids": {0: "batch", 1: "sequence"}}`.

Axes of one name have one size.
"""

BATCH = "batch"
"""Name of the first dimension, if that is the only open one."""

_NAME = re.compile(r"[A-Za-z_]\w*")


def open_batch(inputs: Mapping[str, Tensor]) -> OpenDims:
    """Return open dims with a symbolic batch.

    The batch is the first dimension of the first input, and of every other input with the same example
    size.

    Raises:
        UsageError: the first input has no dimension, or its example size is 1, which a tracer takes for a
            constant.
    """
    name, first = next(iter(inputs.items()))
    if not first.dim():
        raise UsageError(f"a symbolic batch: the first input, {name!r}, has no dimensions")
    size = first.shape[0]
    same = {k: {0: BATCH} for k, x in inputs.items() if x.dim() and x.shape[0] == size}
    return checked(same, inputs)


def checked(dims: OpenDims, inputs: Mapping[str, Tensor]) -> OpenDims:
    """Check `dims` against the example inputs; return it with axes counted from the front.

    Raises:
        UsageError: unknown input or axis, invalid name, example of size 1, or one name for two sizes.
    """
    sizes: dict[str, int] = {}
    found: dict[str, dict[int, str]] = {}
    for key, axes in dims.items():
        if key not in inputs:
            known = ", ".join(map(repr, inputs))
            raise UsageError(f"dynamic: there is no input {key!r}; there are {known}")
        shape = inputs[key].shape
        for axis, name in axes.items():
            if not -len(shape) <= axis < len(shape):
                raise UsageError(f"dynamic: the input {key!r} has no axis {axis}: {list(shape)}")
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise UsageError(
                    f"dynamic: {name!r} is no name for axis {axis} of {key!r}; letters, digits and _"
                )
            size = shape[axis]
            if size < 2:
                raise UsageError(
                    f"a symbolic {name}: the example of input {key!r} has a {name} of {size}; "
                    "give one of at least 2"
                )
            if sizes.setdefault(name, size) != size:
                raise UsageError(
                    f"a symbolic {name}: it is {sizes[name]} in one example and {size} in that of "
                    f"{key!r}; one name is one size"
                )
            found.setdefault(key, {})[axis % len(shape)] = name
    return found


def bind_equal(dims: OpenDims, inputs: Mapping[str, Tensor]) -> None:
    """Make the tracer use one symbol for open dimensions of the same name."""
    first: dict[str, torch.SymInt | int] = {}
    for key, axes in dims.items():
        for axis, name in axes.items():
            size = inputs[key].shape[axis]
            torch._check(first.setdefault(name, size) == size)


def names_of(
    dims: OpenDims, shapes: Mapping[str, Sequence[int | torch.SymInt]], line: str = ""
) -> dict[str, str]:
    """Return the name of each symbol of a trace.

    Args:
        shapes: shapes of the inputs.
        line: source line at which a dimension became a constant; "" if unknown.

    Raises:
        ExportError: the trace replaced an open dimension by a constant or by another one.
    """
    names: dict[str, str] = {}
    for key, axes in dims.items():
        for axis, name in axes.items():
            size = shapes[key][axis]
            text = str(size.node.expr) if isinstance(size, torch.SymInt) else str(size)
            if text.isdigit():
                at = f", at {line}" if line else ""
                raise ExportError(
                    f"the {name} of input {key!r} cannot stay symbolic: the module computes with {text} "
                    f"as a constant{at}; name it in every input that has it, or export without a "
                    f"symbolic {name}"
                )
            if names.setdefault(text, name) != name:
                raise ExportError(
                    f"the {name} of input {key!r} cannot stay symbolic beside the {names[text]}: "
                    "the module requires them to be equal; if they are equal by chance, give an "
                    "example with two different sizes"
                )
    return names


def named(dims: Sequence[int | torch.SymInt], names: Mapping[str, str]) -> list[int | str]:
    """Return a shape with open dimensions by name; derived dimensions become expressions of names."""
    return [
        dim
        if isinstance(dim, int)
        else re.sub(r"\w+", lambda found: names.get(found[0], found[0]), str(dim.node.expr))
        for dim in dims
    ]


@dataclass(frozen=True, slots=True)
class Border:
    """A condition on open dimensions that the trace assumes, and sizes by name that violate it."""

    condition: str
    sizes: Mapping[str, int]


def borders_of(
    shapes: ShapeEnv, dims: OpenDims, at: Mapping[str, Sequence[int | torch.SymInt]]
) -> tuple[Border, ...]:
    """Return the conditions on open sizes that the trace assumes and that some sizes violate.

    The conditions come from the module's Python or from an operator. Each is returned once, with
    violating sizes near the example's.

    Args:
        at: shapes of the inputs, with the symbols of the trace.
    """
    names = names_of(dims, at)
    hints = {
        str(size.node.expr): int(size.node.hint)
        for key, axes in dims.items()
        for size in (at[key][axis] for axis in axes)
        if isinstance(size, torch.SymInt)
    }
    found: dict[str, Border] = {}
    for guard in shapes.guards:
        symbols = {symbol for symbol in guard.expr.free_symbols if str(symbol) in names}
        if not symbols or len(symbols) < len(guard.expr.free_symbols):
            continue
        given = {symbol: hints[str(symbol)] for symbol in symbols}
        others = (
            given | {symbol: size}
            for symbol in sorted(symbols, key=str)
            for size in _sizes_near(given[symbol])
        )
        sizes = next((s for s in others if guard.expr.subs([*s.items()]) == sympy.false), None)
        if sizes is not None:
            text = re.sub(r"\w+", lambda found: names.get(found[0], found[0]), str(guard.expr))
            found[text] = Border(text, {names[str(s)]: size for s, size in sizes.items()})
    return tuple(found.values())


def _sizes_near(size: int) -> list[int]:
    """Return sizes of at least 2, the nearest first, followed by some that are further off."""
    near = sorted(range(2, 2 * size + 8), key=lambda other: abs(other - size))
    return [*near[:200], *(size * 2**power for power in range(1, 12))]
