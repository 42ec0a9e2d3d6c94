"""What a run of an update comes across, is given, and leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from planner.export.update.reach import Path

Update = Callable[[], Mapping[str, Any] | None]
"""What a loop runs between `loss.backward()` and its next step. Tensors that it returns by name are
outputs."""

Key = tuple[Any, ...]
"""Of a caller's tensor: where it is in memory, and how it is laid out there."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A caller's tensor that was come across."""

    tensor: Tensor
    name: str


@dataclass(frozen=True, slots=True)
class Installed:
    """An input that is put in a place: a tensor, or a number, which is float64 of rank 0."""

    name: str
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float64


@dataclass(slots=True)
class UpdateOutcome:
    """What a run, or several merged, leaves.

    Attributes:
        leaves: values behind the run of the caller's tensors, by key.
        places: the same, of places whose tensor or number is another one than before.
        created: what a place's tensor was as it was made, where the run made it.
        results: what the function returned.
    """

    leaves: dict[Key, fx.Node] = field(default_factory=dict)
    places: dict[Path, fx.Node] = field(default_factory=dict)
    created: dict[Path, fx.Node] = field(default_factory=dict)
    results: dict[str, fx.Node] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch that a run came to, and how it went on."""

    condition: fx.Node
    answer: bool
    line: str


def key_of(tensor: Tensor) -> Key:
    """Two tensors of one key are the same numbers."""
    layout = tensor.storage_offset(), tuple(tensor.shape), tensor.stride()
    return (tensor.untyped_storage()._cdata, *layout, tensor.dtype)
