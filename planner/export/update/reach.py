"""Find the tensors and numbers that a function can reach, by the place that holds them.

The search starts at the function's variables and follows closures, globals that it names, attributes,
lists, queues and dicts. `ema.shadow["0.weight"]` is such a place. It sees what a loop assigns to a place,
and restores what a trial run changes.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

_MOST_ELEMENTS = 10_000
"""Length above which lists and dicts count as data, which hold no state of a loop."""

_LIBRARIES = frozenset({"torch", "numpy", "planner"})
"""Libraries whose functions' globals do not belong to a loop."""

_CONTAINERS = (dict, list, deque)
"""Types of containers whose entries may be assigned."""

Path = tuple[Any, ...]
"""Path of a place: the name of a root, then attributes, keys and indices.

A tensor that is a key stands for itself in the path.
"""


@dataclass(frozen=True, slots=True)
class ValuePlace:
    """A place that holds a value: `key` in `holder`, a dict, list or queue, or a closure's cell."""

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
    """The places that can be reached from some roots.

    Args:
        roots: root objects by name; the name "" adds nothing to the paths below it.
    """

    def __init__(self, roots: Sequence[tuple[str, Any]]) -> None:
        self._roots = list(roots)
        self._kept: dict[int, tuple[Any, Any]] = {}
        self._variables: dict[tuple[int, Any], tuple[ValuePlace, Any]] = {}

    def add_root(self, name: str, value: Any) -> None:
        """Add a root and keep its contents from now on."""
        if all(root is not value for _, root in self._roots):
            self._roots.append((name, value))
            self.keep()

    def keep(self) -> None:
        """Save the contents of all containers and variables that are not saved yet."""
        for path, value in self._walk():
            if isinstance(value, _CONTAINERS):
                self._kept.setdefault(id(value), (value, value.copy()))
            if isinstance(value, FunctionType):
                for place in _places_in(path, value):
                    where = id(place.holder), place.key
                    self._variables.setdefault(where, (place, place.value))

    def was(self, container: dict[str, Any]) -> dict[str, Any]:
        """Return the saved contents of a dict."""
        return self._kept[id(container)][1]

    def put_back(self) -> None:
        """Restore all containers and variables to their saved contents."""
        for container, was in self._kept.values():
            container.clear()
            if isinstance(container, dict):
                container.update(was)
            else:
                container.extend(was)
        for place, was in self._variables.values():
            if place.value is not was:
                place.put(was)

    def optimizers(self) -> list[Optimizer]:
        """Return all optimizers that can be reached."""
        return [found for found in self._objects() if isinstance(found, Optimizer)]

    def places(self) -> dict[Path, ValuePlace]:
        """Return every place that holds a tensor, a number or None, by path."""
        return {
            place.path: place
            for path, value in self._walk()
            for place in _places_in(path, value)
            if place.value is None or isinstance(place.value, Tensor | int | float)
        }

    def put(self, values: Mapping[Path, Any]) -> None:
        """Put values in places; create missing dicts and lists on the way."""
        containers = {path: held for path, held in self._walk() if isinstance(held, _CONTAINERS)}
        places = self.places()
        for path, value in values.items():
            if path in places:
                places[path].put(value)
                continue
            start = max(at for at in range(len(path)) if path[:at] in containers)
            holder = containers[path[:start]]
            for at in range(start, len(path) - 1):
                made: Any = [] if isinstance(path[at + 1], int) else {}
                _set(holder, path[at], made)
                containers[path[: at + 1]] = holder = made
            _set(holder, path[-1], value)

    def has_grown(self, place: ValuePlace) -> bool:
        """Tell whether a place is a new entry of a list or queue that was kept, as of a log."""
        if not isinstance(place.holder, list | deque) or id(place.holder) not in self._kept:
            return False
        return place.key >= len(self._kept[id(place.holder)][1])

    def _objects(self) -> Iterator[Any]:
        for _, value in self._walk():
            yield value

    def _walk(self) -> Iterator[tuple[Path, Any]]:
        """Yield every object with parts once, with the first path found to it."""
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


def _set(holder: Any, key: Any, value: Any) -> None:
    """Put a value into a container; a list takes the next entry, too."""
    if isinstance(holder, list | deque) and key == len(holder):
        holder.append(value)
    else:
        holder[key] = value


def _has_parts(value: Any) -> bool:
    if isinstance(value, (*_CONTAINERS, tuple)):
        return len(value) <= _MOST_ELEMENTS
    if isinstance(value, FunctionType | MethodType | functools.partial):
        return True
    is_thing = not isinstance(value, type | ModuleType | Tensor)
    return is_thing and isinstance(getattr(value, "__dict__", None), dict)


def _parts(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the parts of a value with their names in a path."""
    if isinstance(value, (*_CONTAINERS, tuple)):
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
    """Tell whether a library defines a function, by its globals: a wrapper copies its target's name."""
    return str(function.__globals__.get("__name__")).partition(".")[0] in _LIBRARIES


def _variables(function: FunctionType) -> Iterator[tuple[str, Any, Any]]:
    """Yield the outer variables that a function names, as (name, holder, key).

    These are variables of its enclosing functions and of its module.
    """
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if cell != CellType():  # assigned
            yield name, cell, None
    if not is_of_library(function):
        for name in function.__code__.co_names:
            if name in function.__globals__:
                yield name, function.__globals__, name


def _places_in(path: Path, value: Any) -> Iterator[ValuePlace]:
    """Yield the places directly within a value."""
    if isinstance(value, _CONTAINERS):
        for key, _ in _entries(value):
            yield ValuePlace((*path, key), value, key)
    elif isinstance(value, FunctionType):
        for name, holder, key in _variables(value):
            yield ValuePlace((*path, name), holder, key)


def name_of(path: Path, parameters: dict[int, str]) -> str:
    """Return the name of a tensor at a place: `<parameter>_<key>` for an optimizer's, else the path.

    Args:
        parameters: names of the module's parameters, by identity.
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
"""Path parts that are left out of names."""
