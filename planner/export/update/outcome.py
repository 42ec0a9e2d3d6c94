"""Inputs and outcomes of the runs of an update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from planner.export.update.reach import Path

Update = Callable[[], Mapping[str, Any] | None]
"""Function that a loop runs between `loss.backward()` and its next step.

Tensors that it returns by name are outputs of the graph.
"""

Key = tuple[Any, ...]
"""Identity of a caller's tensor: its memory, offset, shape, strides and type."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A caller's tensor that a run has used."""

    tensor: Tensor
    name: str


@dataclass(frozen=True, slots=True)
class Installed:
    """An input installed in a place: a tensor, or a number as a float64 of rank 0."""

    name: str
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float64


@dataclass(slots=True)
class UpdateOutcome:
    """The values that a run, or several merged runs, leave.

    Attributes:
        leaves: values of the caller's tensors after the run, by key.
        places: values of places whose tensor or number was replaced.
        created: value of each tensor that the run created in a place, at its creation.
        results: results of the function.
    """

    leaves: dict[Key, fx.Node] = field(default_factory=dict)
    places: dict[Path, fx.Node] = field(default_factory=dict)
    created: dict[Path, fx.Node] = field(default_factory=dict)
    results: dict[str, fx.Node] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Branch:
    """A data-dependent branch that a run reached, and the answer that it took."""

    condition: fx.Node
    answer: bool
    line: str


def key_of(tensor: Tensor) -> Key:
    """Return the key of a tensor; two tensors with the same key hold the same numbers."""
    layout = tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
    return (tensor.untyped_storage()._cdata, *layout, tensor.dtype)
