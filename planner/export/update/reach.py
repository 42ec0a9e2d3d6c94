"""What a function reaches: tensors and numbers by the place that holds them, kept and put back.

Places are found from the function's variables on: through closures, globals that it names, attributes,
lists and dicts. `ema.shadow["0.weight"]` is one. What a loop assigns to a place is seen there, and
whatever a trial run changes is put back.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

_MOST_ELEMENTS = 10_000
"""Longer lists and dicts are data, which no loop's state is in."""

_LIBRARIES = frozenset({"torch", "numpy", "planner"})
"""Their functions' globals are not a loop's."""

Path = tuple[Any, ...]
"""Of a place: the name of a root, then attributes, keys and indices. Tensors that are keys stand for
themselves."""


@dataclass(frozen=True, slots=True)
class ValuePlace:
    """Where a value is: in `holder`, a dict or list, under `key`; or in a closure's cell."""

    path: Path
    holder: Any
    key: Any

    @property
    def value(self) -> Any:
        holder = self.holder
        return holder.cell_contents if isinstance(holder, CellType) else holder[self.key]

    def put(self, value: Any) -> None:
        if isinstance(self.holder, CellType):
            self.holder.cell_contents = value
        else:
            self.holder[self.key] = value


class Reach:
    """The places that are reached from some roots.

    Args:
        roots: by name; "" adds nothing to the names of what is in it.
    """

    def __init__(self, roots: Sequence[tuple[str, Any]]) -> None:
        self._roots = list(roots)
        self._kept: dict[int, tuple[Any, Any]] = {}
        self._variables: dict[tuple[int, Any], tuple[ValuePlace, Any]] = {}

    def add_root(self, name: str, value: Any) -> None:
        """Another root; what is in it is kept from now on."""
        if all(root is not value for _, root in self._roots):
            self._roots.append((name, value))
            self.keep()

    def keep(self) -> None:
        """Remember what all containers and variables hold that were not known before."""
        for path, value in self._walk():
            if isinstance(value, dict | list):
                self._kept.setdefault(id(value), (value, value.copy()))
            if isinstance(value, FunctionType):
                for place in _places_in(path, value):
                    where = id(place.holder), place.key
                    self._variables.setdefault(where, (place, place.value))

    def was(self, container: dict[str, Any]) -> dict[str, Any]:
        """What a dict held as it was remembered."""
        return self._kept[id(container)][1]

    def put_back(self) -> None:
        """Make all containers what they were."""
        for container, was in self._kept.values():
            if isinstance(container, list):
                container[:] = was
            else:
                container.clear()
                container.update(was)
        for place, was in self._variables.values():
            if place.value is not was:
                place.put(was)

    def optimizers(self) -> list[Optimizer]:
        """All that are reached."""
        return [found for found in self._objects() if isinstance(found, Optimizer)]

    def places(self) -> dict[Path, ValuePlace]:
        """Every place of a tensor or a number, and every one that holds None, by path."""
        return {
            place.path: place
            for path, value in self._walk()
            for place in _places_in(path, value)
            if place.value is None or isinstance(place.value, Tensor | int | float)
        }

    def put(self, values: Mapping[Path, Any]) -> None:
        """Put values in places; a dict that holds one of them is made where there is none."""
        containers = {path: held for path, held in self._walk() if isinstance(held, dict | list)}
        places = self.places()
        for path, value in values.items():
            if path in places:
                places[path].put(value)
                continue
            start = max(at for at in range(len(path)) if path[:at] in containers)
            holder = containers[path[:start]]
            for at in range(start, len(path) - 1):
                made: dict[Any, Any] = {}
                holder[path[at]] = made
                containers[path[: at + 1]] = holder = made
            holder[path[-1]] = value

    def _objects(self) -> Iterator[Any]:
        for _, value in self._walk():
            yield value

    def _walk(self) -> Iterator[tuple[Path, Any]]:
        """Everything with parts, once, the first way to it."""
        seen: set[int] = set()
        waiting: list[tuple[Path, Any]] = [
            ((name,) if name else (), value) for name, value in reversed(self._roots)
        ]
        while waiting:
            path, value = waiting.pop()
            if id(value) in seen or not _has_parts(value):
                continue
            seen.add(id(value))
            yield path, value
            waiting += [((*path, key), part) for key, part in reversed(list(_parts(value)))]


def _has_parts(value: Any) -> bool:
    if isinstance(value, dict | list | tuple):
        return len(value) <= _MOST_ELEMENTS
    if isinstance(value, FunctionType | MethodType | functools.partial):
        return True
    is_thing = not isinstance(value, type | ModuleType | Tensor)
    return is_thing and isinstance(getattr(value, "__dict__", None), dict)


def _parts(value: Any) -> Iterator[tuple[Any, Any]]:
    """What a value holds, by the name that a path has for it."""
    if isinstance(value, dict | list | tuple):
        yield from _entries(value)
    elif isinstance(value, FunctionType):
        for place in _places_in((), value):
            yield place.path[0], place.value
        yield from enumerate(value.__defaults__ or ())
    elif isinstance(value, MethodType):
        yield "", value.__self__
        yield "", value.__func__
    elif isinstance(value, functools.partial):
        yield "", value.func
        yield from enumerate(value.args)
        yield from value.keywords.items()
    else:
        yield "", vars(value)
        call = type(value).__dict__.get("__call__")
        if isinstance(call, FunctionType):
            yield "", call


def _entries(value: Any) -> Iterator[tuple[Any, Any]]:
    yield from list(value.items()) if isinstance(value, dict) else enumerate(value)


def is_of_library(function: FunctionType) -> bool:
    """Whether it stands in a library, by its globals: wrappers have the names of what they wrap."""
    return str(function.__globals__.get("__name__")).partition(".")[0] in _LIBRARIES


def _variables(function: FunctionType) -> Iterator[tuple[str, Any, Any]]:
    """Variables of others that a function names, as (name, holder, key): its enclosing functions', and
    its module's."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if cell != CellType():  # assigned
            yield name, cell, None
    if not is_of_library(function):
        for name in function.__code__.co_names:
            if name in function.__globals__:
                yield name, function.__globals__, name


def _places_in(path: Path, value: Any) -> Iterator[ValuePlace]:
    """The places right within a value."""
    if isinstance(value, dict | list):
        for key, _ in _entries(value):
            yield ValuePlace((*path, key), value, key)
    elif isinstance(value, FunctionType):
        for name, holder, key in _variables(value):
            yield ValuePlace((*path, name), holder, key)


def name_of(path: Path, parameters: dict[int, str]) -> str:
    """What a tensor is called that is at a place: `<parameter>_<key>` of an optimizer's, else the path.

    Args:
        parameters: names of the module's, by identity.
    """
    parts = [part for part in path if not (isinstance(part, str) and part in _UNNAMED)]
    for at, part in enumerate(parts):
        if isinstance(part, Tensor):
            owner = parameters.get(id(part), f"tensor_{at}")
            return "_".join([owner, *map(str, parts[at + 1 :] or parts[at - 1 : at])])
    if "param_groups" in path:
        group, *keys = path[path.index("param_groups") + 1 :]
        name = "_".join(map(str, keys))
        return f"{name}_{group}" if group else name
    return ".".join(map(str, parts)) or "state"


_UNNAMED = frozenset({"", "_modules", "_parameters", "_buffers"})
"""Parts of paths that say nothing."""
