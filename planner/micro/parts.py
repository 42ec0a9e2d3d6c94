"""Inputs for parts of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def part(
    feeds: Mapping[str, Array], axes: Mapping[str, int], start: int, stop: int
) -> dict[str, Array]:
    """Return the inputs of the samples from `start` up to `stop`; inputs without the batch stay whole.

    Args:
        axes: the batch axis of each input that carries the batch, by name.
    """
    return {
        name: np.ascontiguousarray(np.take(array, range(start, stop), axis=axes[name]))
        if name in axes
        else array
        for name, array in feeds.items()
    }


def reordered(feeds: Mapping[str, Array], axes: Mapping[str, int]) -> dict[str, Array]:
    """Return the inputs with the samples in reverse order."""
    return {
        name: np.ascontiguousarray(np.flip(array, axis=axes[name])) if name in axes else array
        for name, array in feeds.items()
    }
