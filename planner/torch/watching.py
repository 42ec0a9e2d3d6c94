"""What a graph takes for granted of the step that it was traced of, and whether that still holds.

A trace has the module's numbers, modes and kinds of submodules as constants. A change of any would leave
the graph behind without a word; it is an error here.
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
"""Longer lists and dicts are data."""

_AGAIN = "make the step again (planner.torch.step)"


_TABLES = frozenset(key for key, held in vars(nn.Module()).items() if isinstance(held, dict))
"""Of submodules, hooks and tensors, which are compared apart."""


class Granted:
    """The state of a step that its graph has as constants: every submodule's class, its attributes that
    are numbers, texts, functions or tensors, or lists and dicts of numbers and texts, how many hooks it
    has; the buffers that the graph stores; what a loss function reads of these, and the functions that it
    calls: in closures, globals, defaults, and attributes of the object that it is a method of. Other
    objects are not looked into, nor the globals of a module's code.

    Args:
        step: as it was traced; its module need not be in training mode.
        given: names of the module's parameters and buffers that the graph takes or does not read.
    """

    def __init__(self, step: TrainingStep, given: Collection[str]) -> None:
        self._given = given
        with as_it_was(step):
            step.train()
            self._parts = _parts(step)
            self._values = {n: t.detach().clone() for n, t in self._tensors(step)}

    def check(self, step: TrainingStep) -> None:
        """Raise UsageError, with the first name, where something is another than it was."""
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
        """Those that the graph has as constants, if it reads them: buffers, attributes, the loss's."""
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
    """What is said of each submodule, and of the loss function."""
    found = {name: _facts(part) for name, part in step.named_modules()}
    return {**found, "loss_fn": _plain(_reached(step))}


def _reached(step: TrainingStep) -> dict[str, Any]:
    """What a loss function, and what it calls, reads that is none of their arguments, by name."""
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
    """What a function or a module reads, by name; nothing of a library's functions."""
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
    """Those that can be compared, as they are now: constants, tuples, lists and dicts of them, functions
    and classes."""
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
    """What is said of a submodule."""
    found = _plain({k: v for k, v in vars(part).items() if k not in _TABLES})
    found["__class__"] = type(part)
    found.setdefault("forward", None)
    found["__hooks__"] = len(part._forward_hooks) + len(part._forward_pre_hooks)
    return found


def _is_same(one: object, other: object) -> bool:
    return one is other or one == other


def _has_same_values(one: Tensor, other: Tensor) -> bool:
    """Not-a-number counts as equal to itself."""
    if (one.shape, one.dtype, one.device) != (other.shape, other.dtype, other.device):
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _called(name: str, attribute: str = "") -> str:
    """`module.blocks.0`, `p` -> `'blocks.0.p'`."""
    path = ".".join(filter(None, (name, attribute)))
    return repr(path.removeprefix(PREFIX)) if path not in ("", "module") else "the module"


def check_constants(step: TrainingStep, known: Mapping[str, Any]) -> None:
    """Raise UsageError where a call gives other values beside its tensors than the examples did."""
    given = step.constants
    for name in dict.fromkeys((*known, *given)):
        if name not in given or name not in known or not _is_same(given[name], known[name]):
            now, before = given.get(name, "missing"), known.get(name, "missing")
            raise UsageError(
                f"{name!r} is {now!r} and was {before!r} in the examples, and is no tensor: the graph "
                f"has it as a constant; give the same, or {_AGAIN}"
            )


class Named:
    """The parameters and buffers of a module, each distinct one under the first of its names.

    Args:
        trained: names of those that the graph has a gradient of.
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
        """All names, of tensors that have several, too."""
        return self._first.keys()

    def tensors(self, module: nn.Module) -> dict[str, Tensor]:
        """What the module has now.

        Raises:
            UsageError: a tensor was added, taken away, tied or untied, or is trained now and was not.
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
    """By name, the first name of the same tensor."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in tensors.items()}


def _tied(name: str, first: str) -> str:
    return "a tensor of its own" if first == name else f"the same tensor as {first!r}"
