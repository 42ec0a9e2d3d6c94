"""A module that is lent for some runs: what they change of it is put back.

The module itself is run, and no copy of it: losses and hooks that reach it by a closure see what is run.
"""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from planner.export.trace.step import TrainingStep


class Attributes:
    """The attributes of a module and of all within it, and what lists and dicts among them hold."""

    def __init__(self, module: nn.Module) -> None:
        self._attributes = [(part, dict(part.__dict__)) for part in module.modules()]
        held = [value for _, attributes in self._attributes for value in attributes.values()]
        self._dicts = [(table, list(table.items())) for table in held if isinstance(table, dict)]
        self._lists = [(table, list(table)) for table in held if isinstance(table, list)]

    def put_back(self) -> None:
        """Make them what they were."""
        for part, attributes in self._attributes:
            part.__dict__.clear()
            part.__dict__.update(attributes)
        for table, items in self._dicts:
            now = [part for item in table.items() for part in item]
            if not _is_same(now, [part for item in items for part in item]):
                table.clear()  # which a frozen one refuses: it never has to
                table.update(items)
        for table, entries in self._lists:
            if not _is_same(table, entries):
                table[:] = entries


def _is_same(one: list[Any], other: list[Any]) -> bool:
    """Whether they hold the same objects."""
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


class Kept:
    """The state of a module: its tensors, and its attributes.

    Args:
        copied: what the tensors hold is copied; else they get it back as it is.
    """

    def __init__(self, module: nn.Module, *, copied: bool) -> None:
        self._attributes = Attributes(module)
        self._tensors: list[tuple[Tensor, Tensor, Any, bool]] = [
            (t, t.data.clone() if copied else t.data, t.grad, t.requires_grad)
            for t in _tensors(module)
        ]

    def put_back(self) -> None:
        """Make the module what it was."""
        self._attributes.put_back()
        with torch.no_grad():
            for tensor, data, grad, is_trained in self._tensors:
                tensor.data = data
                tensor.grad = grad
                if tensor.requires_grad != is_trained:
                    tensor.requires_grad_(is_trained)


def _tensors(module: nn.Module) -> tuple[Tensor, ...]:
    """Its parameters and buffers, each once."""
    return (*module.parameters(), *module.buffers())


@contextlib.contextmanager
def as_it_was(module: nn.Module) -> Iterator[None]:
    """Behind the block the module is in its mode, with its attributes, as it was before. Objects that it
    holds, and lists within lists, are not looked into."""
    kept = Kept(module, copied=False)
    try:
        yield
    finally:
        kept.put_back()


@contextlib.contextmanager
def lent(step: TrainingStep) -> Iterator[None]:
    """Within the block the step trains, its tensors hold copies, and have no gradients; behind it all
    is as it was."""
    with as_it_was(step):
        step.train()
        for tensor in _tensors(step):
            tensor.data = tensor.data.clone()
            tensor.grad = None
        yield


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Random numbers go on behind this as if nothing had been drawn, and nothing is said meanwhile."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with (
            torch.random.fork_rng(devices=()),
            torch.enable_grad(),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
