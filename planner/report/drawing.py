"""Reduce a payload's series to what can be drawn: never the peak, only the drawing.

A long timeline is cut into bins; each bin shows the step with the most live bytes in it, with that
step's own composition, so that every height drawn is a height that occurs and the peak is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MAX_BINS = 1500

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bins:
    """Half-open step ranges `[left, right)` and the step that stands for each."""

    left: Ints
    right: Ints
    step: Ints


def bin_steps(live_bytes: Sequence[int], *, at_most: int = MAX_BINS) -> Bins:
    """Cut `live_bytes` into at most `at_most` bins, each standing for its largest step."""
    live = np.asarray(live_bytes, dtype=np.int64)
    count = min(len(live), at_most)
    edges = np.linspace(0, len(live), count + 1).astype(np.int64)
    left, right = edges[:-1], edges[1:]
    step = np.array([a + int(live[a:b].argmax()) for a, b in zip(left, right, strict=True)])
    return Bins(left=left, right=right, step=step.astype(np.int64))
