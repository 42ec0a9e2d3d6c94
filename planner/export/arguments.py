"""Arguments of a module or a loss, and the tensors within them."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils import _pytree as pytree

from planner.errors import UsageError

Given = Tensor | Sequence[Any] | Mapping[str, Any]
"""One argument, several in order, or several by name."""


class Arguments:
    """Arguments of a call: tensors, constants, and containers of them.

    Containers are lists, tuples, dicts and every type registered with PyTorch's pytrees.

    Args:
        given: the arguments; positional ones are named as the taker names its parameters, else by `stem`
            and number.
        taker: the function that takes them.
        skip: number of the taker's parameters before these, which are then passed by position, even if
            `given` is a mapping.

    Attributes:
        tensors: tensors by path: `{"labels.0.boxes": ...}` in `labels=[{"boxes": ...}]`.
        constants: all other leaves, by path.

    Raises:
        UsageError: a container unknown to PyTorch's pytrees holds a tensor, an argument is a NumPy array,
            or two tensors have one name.
    """

    def __init__(
        self, given: Given, taker: Callable[..., Any] | None = None, stem: str = "", skip: int = 0
    ) -> None:
        self._by_name = isinstance(given, Mapping) and not skip
        self.tensors: dict[str, Tensor] = {}
        self.constants: dict[str, Any] = {}
        self._leaves: list[Any] = []
        self._places: list[int] = []
        named = dict(given) if isinstance(given, Mapping) else _named(given, taker, stem, skip)
        leaves, self._tree = pytree.tree_flatten_with_path(named)
        for path, leaf in leaves:
            name = path_of(path)
            if isinstance(leaf, Tensor):
                if name in self.tensors:
                    raise UsageError(f"two tensors are called {name!r}; rename a key")
                self.tensors[name] = leaf
                self._places.append(len(self._leaves))
            elif holds_tensors(leaf):
                raise UsageError(unknown_container(name, type(leaf)))
            elif isinstance(leaf, np.ndarray):
                raise UsageError(
                    f"{name!r} is a NumPy array, which the graph would have as a constant: give a tensor "
                    "(torch.from_numpy)"
                )
            else:
                self.constants[name] = leaf
            self._leaves.append(leaf)

    def call(self, function: Callable[..., Any], tensors: Sequence[Tensor], *first: Any) -> Any:
        """Call a function with `first`, then these arguments with their tensors replaced, in order."""
        leaves = list(self._leaves)
        for place, tensor in zip(self._places, tensors, strict=True):
            leaves[place] = tensor
        filled = pytree.tree_unflatten(leaves, self._tree)
        return function(*first, **filled) if self._by_name else function(*first, *filled.values())


def _named(
    given: Tensor | Sequence[Any], taker: Callable[..., Any] | None, stem: str, skip: int
) -> dict[str, Any]:
    several = (given,) if isinstance(given, Tensor | np.ndarray) else tuple(given)
    names = _parameter_names(taker)[skip:]
    names += [f"{stem}_{index}" for index in range(len(names), len(several))]
    return dict(zip(names, several, strict=False))


def _parameter_names(taker: Callable[..., Any] | None) -> list[str]:
    """Return the names of a function's positional parameters; none if it has no signature."""
    try:
        signature = inspect.signature(taker) if taker is not None else None
    except (TypeError, ValueError):
        return []
    if signature is None:
        return []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in signature.parameters.values() if p.kind in positional]


def path_of(path: Sequence[Any]) -> str:
    """Return the dotted name of a pytree path, as in `labels.0.boxes`."""
    return ".".join(map(_part, path))


def _part(key: Any) -> str:
    """Return one step of a path: an index, a key or an attribute's name."""
    for name in ("idx", "key", "name"):
        if hasattr(key, name):
            return str(getattr(key, name))
    return str(key)


def holds_tensors(leaf: Any) -> bool:
    """Tell whether an object that PyTorch's pytrees treat as a leaf holds a tensor."""
    if isinstance(leaf, type) or callable(leaf):
        return False
    parts: list[Any] = list(getattr(leaf, "__dict__", {}).values())
    if isinstance(leaf, Mapping):
        parts += leaf.values()
    if dataclasses.is_dataclass(leaf):
        parts += [getattr(leaf, field.name) for field in dataclasses.fields(leaf)]
    return any(isinstance(part, Tensor) for part in pytree.tree_leaves(parts))


def unknown_container(name: str, kind: type) -> str:
    """Return the error message for a tensor that would become a constant of the graph."""
    if dataclasses.is_dataclass(kind):
        how = f"register it once, with torch.export.register_dataclass({kind.__name__})"
    else:
        how = "give its tensors in a dict, list or tuple, or register it with torch.utils._pytree"
    return (
        f"{name!r} is a {kind.__name__} with tensors in it, which PyTorch does not look into: {how}"
    )
