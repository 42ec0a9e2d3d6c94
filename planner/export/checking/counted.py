"""Counters that a step keeps in Python: in its module, the module's objects, and its functions.

A trace has numbers and lengths of lists as constants. If one grows from step to step, the result may
depend on its size (`if self.calls < 100`) in a way that the first steps do not show; the comparison moves
it ahead.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from planner.export.trace.step import TrainingStep

AHEAD = (100, 5039, 5040, 999_999, 1_000_000)
"""Numbers of steps to move ahead: beyond a warm-up, and at or just before multiples of small periods."""

_LONGEST = 100
"""Largest length that a list is extended by: its entries may be large, or summed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Number:
    """A number in a table, under a key."""

    name: str
    table: Any
    key: Any

    def read(self) -> float:
        found = self.table[self.key] if self.key in self.table else 0  # noqa: SIM401 (or a cell)
        return found if isinstance(found, int | float) else 0

    def write(self, value: float) -> None:
        self.table[self.key] = value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Length:
    """The length of a list."""

    name: str
    held: list[Any]

    def read(self) -> float:
        return len(self.held)

    def write(self, value: float) -> None:
        del self.held[int(value) :]
        self.held.extend(self.held[-1:] * min(_LONGEST, int(value) - len(self.held)))


class _Cell:
    """A closure variable with the interface of a table."""

    def __init__(self, cell: types.CellType) -> None:
        self._cell = cell

    def __contains__(self, key: object) -> bool:
        return True

    def __getitem__(self, key: object) -> Any:
        return self._cell.cell_contents

    def __setitem__(self, key: object, value: object) -> None:
        self._cell.cell_contents = value


Place = _Number | _Length


@dataclass(frozen=True, slots=True)
class Grown:
    """A number with its old value and its growth since."""

    place: Place
    was: float
    by: float

    def move(self, times: float) -> None:
        """Set the number to its value after `times` the growth; integers stay integers."""
        found = self.was + times * self.by
        is_whole = isinstance(self.place.read(), int)
        self.place.write(round(found) if is_whole else found)


class Counted:
    """Numbers that a step may count, with their current values."""

    def __init__(self, step: TrainingStep) -> None:
        self._was = [(place, place.read()) for place in _places(step)]

    def grown(self) -> list[Grown]:
        """Return the numbers that have grown since."""
        now = ((place, was, place.read()) for place, was in self._was)
        return [Grown(place, was, found - was) for place, was, found in now if found > was]

    def put_back(self) -> None:
        """Restore the numbers."""
        for place, was in self._was:
            if place.read() != was:
                place.write(was)


@contextlib.contextmanager
def counts_put_back(step: TrainingStep) -> Iterator[Counted]:
    """Restore all counters of the step at the end of the block, including those outside of the module."""
    counted = Counted(step)
    try:
        yield counted
    finally:
        counted.put_back()


def _places(step: TrainingStep) -> Iterator[Place]:
    for name, part in step.named_modules():
        prefix = name.removeprefix("module").removeprefix(".")
        yield from _of_table(f"{prefix}." if prefix else "", part.__dict__, deep=True)
    loss = step.loss
    if isinstance(loss, types.MethodType) and not isinstance(loss.__self__, nn.Module):
        yield from _of_table("", vars(loss.__self__), deep=True)
    for function in (loss, *{getattr(type(part), "forward", None) for part in step.modules()}):
        code = getattr(function, "__func__", function)
        if isinstance(code, types.FunctionType):
            yield from _of_function(code)


def _of_function(function: types.FunctionType) -> Iterator[Place]:
    """Yield the numbers in globals that a function names, and in variables of its enclosing functions."""
    read = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    for name, value in read.items():
        yield from _of_value(name, function.__globals__, name, value, deep=True)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        yield from _of_value(name, _Cell(cell), name, value, deep=True)


def _of_table(prefix: str, table: dict[Any, Any], *, deep: bool) -> Iterator[Place]:
    for key, value in list(table.items()):
        yield from _of_value(f"{prefix}{key}", table, key, value, deep=deep)


def _of_value(name: str, table: Any, key: Any, value: Any, *, deep: bool) -> Iterator[Place]:
    """Yield a number, a list's length, or the numbers within a dict or an object."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield _Number(name=name, table=table, key=key)
    elif isinstance(value, list):
        yield _Length(name=f"len({name})", held=value)
    elif deep and isinstance(value, dict):
        yield from _of_table(f"{name}.", value, deep=False)
    elif deep and _has_state(value):
        yield from _of_table(f"{name}.", value.__dict__, deep=False)


def _has_state(value: object) -> bool:
    """Tell whether a value is an object of a user-defined class with attributes."""
    apart = (nn.Module, Tensor, type, types.ModuleType, types.FunctionType)
    return isinstance(getattr(value, "__dict__", None), dict) and not isinstance(value, apart)
