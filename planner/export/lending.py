"""A module that is lent for some runs: what they change of it is put back.

The module itself is run, and no copy of it: losses and hooks that reach it by a closure see what is run.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


class Kept:
    """The state of a module: its tensors, and the attributes of it and all within it.

    Args:
        copied: what the tensors hold is copied; else they get it back as it is.
    """

    def __init__(self, module: nn.Module, *, copied: bool) -> None:
        self._attributes = [(part, dict(part.__dict__)) for part in module.modules()]
        self._tables = [
            (table, copy.copy(table))
            for _, attributes in self._attributes
            for name, table in attributes.items()
            if name.startswith("_") and isinstance(table, dict)
        ]
        self._tensors: list[tuple[Tensor, Tensor, Any]] = [
            (t, t.data.clone() if copied else t.data, t.grad) for t in _tensors(module)
        ]

    def put_back(self) -> None:
        """Make the module what it was."""
        for part, attributes in self._attributes:
            part.__dict__.clear()
            part.__dict__.update(attributes)
        for table, entries in self._tables:
            table.clear()
            table.update(entries)
        with torch.no_grad():
            for tensor, data, grad in self._tensors:
                tensor.data = data
                tensor.grad = grad


def _tensors(module: nn.Module) -> tuple[Tensor, ...]:
    """Its parameters and buffers, each once."""
    return (*module.parameters(), *module.buffers())


@contextlib.contextmanager
def as_it_was(module: nn.Module) -> Iterator[None]:
    """Behind the block the module is in its mode, with its attributes, as it was before. Lists, dicts and
    objects of others that it holds are not looked into."""
    kept = Kept(module, copied=False)
    try:
        yield
    finally:
        kept.put_back()


@contextlib.contextmanager
def lent(module: nn.Module) -> Iterator[None]:
    """Within the block the module trains, its tensors hold copies, and have no gradients; behind it all
    is as it was."""
    with as_it_was(module):
        module.train()
        for tensor in _tensors(module):
            tensor.data = tensor.data.clone()
            tensor.grad = None
        yield
