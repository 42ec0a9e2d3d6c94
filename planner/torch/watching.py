"""Check that a step still has the state that its graph stores as constants.

A trace has the module's numbers, modes and submodule types as constants. If one of them changes, the
graph would silently compute the old step; these checks raise an error instead.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from planner.errors import UsageError
from planner.export.trace.lending import as_it_was
from planner.export.trace.step import PREFIX, TrainingStep
from planner.export.update.reach import is_of_library

_PLAIN = (bool, int, float, str, type(None), torch.dtype)

_MOST_ENTRIES = 1000
"""Length above which lists and dicts count as data and are not compared."""

_AGAIN = "make the step again (planner.torch.step)"


_TABLES = frozenset(key for key, held in vars(nn.Module()).items() if isinstance(held, dict))
"""Dicts of submodules, hooks and tensors, which are compared separately."""


class Granted:
    """The state of a step that its graph has as constants.

    It covers every submodule's class and number of hooks, its attributes that are numbers, texts,
    functions, tensors, or lists and dicts of numbers and texts, and the buffers that the graph stores. It
    also covers the values that a loss function reads, and the functions that it calls: in closures,
    globals, defaults, and attributes of the object that it is a method of. It does not cover the inside
    of other objects, or globals read by a module's code.

    Args:
        step: the step as it was traced; its module need not be in training mode.
        given: names of the module's parameters and buffers that the graph takes as inputs or does not
            read.
    """

    def __init__(self, step: TrainingStep, given: Collection[str]) -> None:
        self._given = given
        with as_it_was(step):
            step.train()
            self._parts = _parts(step)
            self._values = {n: t.detach().clone() for n, t in self._tensors(step)}

    def check(self, step: TrainingStep) -> None:
        """Raise UsageError, with the first name, if any of this state has changed."""
        parts = _parts(step)
        for name in (*self._parts.keys() - parts, *parts.keys() - self._parts):
            raise UsageError(f"{_called(name)} was added or taken away since the trace; {_AGAIN}")
        for name, before in self._parts.items():
            now = parts[name]
            changed = next((k for k, v in before.items() if not _is_same(now.get(k), v)), None)
            if changed is not None:
                raise UsageError(
                    f"{_called(name, changed)} is {now.get(changed)!r} and was {before[changed]!r} when "
                    f"the step was traced, which has it as a constant; put it back, or {_AGAIN}"
                )
        tensors = dict(self._tensors(step))
        for name, value in self._values.items():
            if name not in tensors or not _has_same_values(tensors[name].detach(), value):
                raise UsageError(
                    f"{_called(name)} has changed since the trace, which has its value as a constant; "
                    f"put it back, or {_AGAIN}"
                )

    def _tensors(self, step: TrainingStep) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors that may be constants of the graph: buffers, attributes, the loss's."""
        for name, part in step.named_modules():
            for table in (part._parameters, part._buffers, vars(part)):
                for key, value in table.items():
                    called = f"{name}.{key}".lstrip(".")
                    if isinstance(value, Tensor) and called.removeprefix(PREFIX) not in self._given:
                        yield called, value
        for name, value in _reached(step).items():
            if isinstance(value, Tensor):
                yield f"loss_fn.{name}", value


def _parts(step: TrainingStep) -> dict[str, dict[str, Any]]:
    """Return the comparable facts of each submodule and of the loss function, by name."""
    found = {name: _facts(part) for name, part in step.named_modules()}
    return {**found, "loss_fn": _plain(_reached(step))}


def _reached(step: TrainingStep) -> dict[str, Any]:
    """Return the non-argument values that the loss function and its callees read, by name."""
    found: dict[str, Any] = {}
    seen = {id(part) for part in step.modules()}
    waiting: list[tuple[str, object]] = [("", step.loss)]
    while waiting:
        name, value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        read = {f"{name}.{key}".strip("."): part for key, part in _read_by(value).items()}
        found |= read
        waiting += read.items()
    return found


def _read_by(value: object) -> dict[str, Any]:
    """Return the values that a function or a module reads, by name; none for a library's function."""
    if isinstance(value, nn.Module):
        return {key: part for key, part in vars(value).items() if not key.startswith("_")}
    if isinstance(value, partial):
        return {"func": value.func, **_numbered(value.args), **value.keywords}
    if isinstance(value, MethodType):
        held = getattr(value.__self__, "__dict__", {})
        named = getattr(getattr(value.__func__, "__code__", None), "co_names", ())
        return {"": value.__func__, **{name: held[name] for name in named if name in held}}
    if isinstance(value, FunctionType):
        if is_of_library(value):
            return {}
        read = inspect.getclosurevars(value)
        defaults = {**_numbered(value.__defaults__ or ()), **(value.__kwdefaults__ or {})}
        return {**read.globals, **read.nonlocals, **defaults}
    call = getattr(type(value), "__call__", None)  # noqa: B004  # the function itself is wanted
    return {"": MethodType(call, value)} if isinstance(call, FunctionType) else {}


def _numbered(values: Sequence[Any]) -> dict[str, Any]:
    return {str(index): value for index, value in enumerate(values)}


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the values that can be compared.

    These are constants, tuples, lists and dicts of constants, functions and classes.
    """
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, tuple | list | dict):
            parts = [*value, *value.values()] if isinstance(value, dict) else value
            if len(parts) <= _MOST_ENTRIES and all(type(part) in _PLAIN for part in parts):
                found[key] = copy.copy(value)
        elif type(value) in _PLAIN or (callable(value) and not isinstance(value, nn.Module)):
            found[key] = value
    return found


def _facts(part: nn.Module) -> dict[str, Any]:
    """Return the comparable facts of a submodule: its class, plain attributes and number of hooks."""
    found = _plain({k: v for k, v in vars(part).items() if k not in _TABLES})
    found["__class__"] = type(part)
    found.setdefault("forward", None)
    found["__hooks__"] = len(part._forward_hooks) + len(part._forward_pre_hooks)
    return found


def _is_same(one: object, other: object) -> bool:
    return one is other or one == other


def _has_same_values(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors are equal, with not-a-number equal to itself."""
    if (one.shape, one.dtype, one.device) != (other.shape, other.dtype, other.device):
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _called(name: str, attribute: str = "") -> str:
    """Return a quoted name for messages: `module.blocks.0`, `p` -> `'blocks.0.p'`."""
    path = ".".join(filter(None, (name, attribute)))
    return repr(path.removeprefix(PREFIX)) if path not in ("", "module") else "the module"


def check_constants(step: TrainingStep, known: Mapping[str, Any]) -> None:
    """Raise UsageError if a call's non-tensor values differ from the examples'."""
    given = step.constants
    for name in dict.fromkeys((*known, *given)):
        if name not in given or name not in known or not _is_same(given[name], known[name]):
            now, before = given.get(name, "missing"), known.get(name, "missing")
            raise UsageError(
                f"{name!r} is {now!r} and was {before!r} in the examples, and is no tensor: the graph "
                f"has it as a constant; give the same, or {_AGAIN}"
            )


class Named:
    """The parameters and buffers of a module, each distinct tensor under the first of its names.

    Args:
        trained: names of the parameters whose gradients the graph computes.
    """

    def __init__(self, module: nn.Module, trained: Collection[str]) -> None:
        self._first = _first_names(_all(module))
        self._without = [
            name
            for name, parameter in module.named_parameters()
            if name not in trained and not parameter.requires_grad
        ]

    @property
    def names(self) -> Set[str]:
        """All names, including every name of tensors that have several."""
        return self._first.keys()

    def tensors(self, module: nn.Module) -> dict[str, Tensor]:
        """Return the module's current tensors by their first names.

        Raises:
            UsageError: a tensor was added, removed, tied or untied, or requires a gradient that the graph
                does not compute.
        """
        now = _all(module)
        for name in (*self._first.keys() - now, *now.keys() - self._first):
            raise UsageError(f"{name!r} was added or taken away since the trace; {_AGAIN}")
        first = _first_names(now)
        for name, was in self._first.items():
            if first[name] != was:
                raise UsageError(
                    f"{name!r} was {_tied(name, was)} when the step was traced and is "
                    f"{_tied(name, first[name])}; {_AGAIN}"
                )
        for name in self._without:
            if now[name].requires_grad:
                raise UsageError(
                    f"{name!r} requires a gradient and did not when the step was traced, whose graph has "
                    f"none of it; {_AGAIN}"
                )
        return {name: tensor for name, tensor in now.items() if first[name] == name}


def _all(module: nn.Module) -> dict[str, Tensor]:
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def _first_names(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Map each name to the first name of the same tensor."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in tensors.items()}


def _tied(name: str, first: str) -> str:
    return "a tensor of its own" if first == name else f"the same tensor as {first!r}"
