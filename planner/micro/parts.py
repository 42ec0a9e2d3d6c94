"""Inputs of parts of a batch, and the values that they give, joined again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def part(
    feeds: Mapping[str, Array], axes: Mapping[str, int], start: int, stop: int
) -> dict[str, Array]:
    """The inputs of samples `start` up to `stop`; what carries no batch is all there.

    Args:
        axes: by name of an input that carries the batch, the axis on which it does.
    """
    return {
        name: np.ascontiguousarray(np.take(array, range(start, stop), axis=axes[name]))
        if name in axes
        else array
        for name, array in feeds.items()
    }


def reordered(feeds: Mapping[str, Array], axes: Mapping[str, int]) -> dict[str, Array]:
    """The same samples, the last one first."""
    return {
        name: np.ascontiguousarray(np.flip(array, axis=axes[name])) if name in axes else array
        for name, array in feeds.items()
    }
