"""Lend a module for runs that change it, and restore it afterwards.

The module itself runs, not a copy: losses and hooks that reach it through a closure see the module that
runs.
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
    """The attributes of a module and its submodules, with the contents of their lists and dicts."""

    def __init__(self, module: nn.Module) -> None:
        self._attributes = [(part, dict(part.__dict__)) for part in module.modules()]
        held = [value for _, attributes in self._attributes for value in attributes.values()]
        self._dicts = [(table, list(table.items())) for table in held if isinstance(table, dict)]
        self._lists = [(table, list(table)) for table in held if isinstance(table, list)]

    def put_back(self) -> None:
        """Restore the attributes."""
        for part, attributes in self._attributes:
            part.__dict__.clear()
            part.__dict__.update(attributes)
        for table, items in self._dicts:
            now = [part for item in table.items() for part in item]
            if not _is_same(now, [part for item in items for part in item]):
                table.clear()  # a frozen dict raises, but never changes
                table.update(items)
        for table, entries in self._lists:
            if not _is_same(table, entries):
                table[:] = entries


def _is_same(one: list[Any], other: list[Any]) -> bool:
    """Tell whether two lists hold the same objects."""
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


class Kept:
    """The state of a module: its tensors and its attributes.

    Args:
        copied: whether to copy the tensors' data; else the same memory is put back.
    """

    def __init__(self, module: nn.Module, *, copied: bool) -> None:
        self._attributes = Attributes(module)
        self._tensors: list[tuple[Tensor, Tensor, Any, bool]] = [
            (t, t.data.clone() if copied else t.data, t.grad, t.requires_grad)
            for t in _tensors(module)
        ]

    def put_back(self) -> None:
        """Restore the module's tensors and attributes."""
        self._attributes.put_back()
        with torch.no_grad():
            for tensor, data, grad, is_trained in self._tensors:
                tensor.data = data
                tensor.grad = grad
                if tensor.requires_grad != is_trained:
                    tensor.requires_grad_(is_trained)


def _tensors(module: nn.Module) -> tuple[Tensor, ...]:
    """Return the parameters and buffers of a module, each once."""
    return (*module.parameters(), *module.buffers())


@contextlib.contextmanager
def as_it_was(module: nn.Module) -> Iterator[None]:
    """Restore the module's mode, tensors and attributes at the end of the block.

    Objects that it holds, and lists within lists, are not restored.
    """
    kept = Kept(module, copied=False)
    try:
        yield
    finally:
        kept.put_back()


@contextlib.contextmanager
def lent(step: TrainingStep) -> Iterator[None]:
    """Lend the step in training mode, on copies of its tensors, and restore it after the block."""
    with as_it_was(step):
        step.train()
        for tensor in _tensors(step):
            tensor.data = tensor.data.clone()
            tensor.grad = None
        yield


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Restore the random states at the end of the block, and silence warnings within it."""
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
