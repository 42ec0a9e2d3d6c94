"""Reduce a payload's series to what can be drawn: never the peak, only the drawing.

A long timeline is cut into bins; each bin shows the step with the most live bytes in it, with that
step's own composition, so that every height drawn is a height that occurs and the peak is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_BINS = 1500
MAX_RECTANGLES = 1200

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Live ranges placed so that no two overlap in step and offset.

    Attributes:
        rows: index into the ranges of each rectangle.
        offset: bytes at which each rectangle starts, above `floor_bytes`.
        small_bytes: per step, the bytes of the ranges too small to be drawn, by category.
        small_count: how many those are.
        height_bytes: the top of the highest rectangle.
    """

    rows: tuple[int, ...]
    offset: tuple[int, ...]
    small_bytes: dict[str, Ints]
    small_count: int
    height_bytes: int


def pack(
    ranges: Sequence[dict[str, Any]],
    *,
    steps: int,
    floor_bytes: int,
    at_most: int = MAX_RECTANGLES,
) -> Packing:
    """Place the `at_most` ranges with the largest area; the rest form one band below them.

    Larger and longer ranges go first, each at the lowest offset where it fits. This is a drawing:
    ONNX Runtime's allocator chooses offsets of its own.
    """
    area = [r["bytes"] * (r["end"] - r["start"]) for r in ranges]
    ranked = sorted(range(len(ranges)), key=lambda i: (-area[i], i))
    drawn, small = ranked[:at_most], ranked[at_most:]
    deltas: dict[str, Ints] = {}
    for i in small:
        delta = deltas.setdefault(ranges[i]["category"], np.zeros(steps + 1, dtype=np.int64))
        delta[ranges[i]["start"]] += ranges[i]["bytes"]
        delta[ranges[i]["end"]] -= ranges[i]["bytes"]
    bands = {category: np.cumsum(delta)[:steps] for category, delta in deltas.items()}
    base = floor_bytes + (int(np.sum(list(bands.values()), axis=0).max()) if bands else 0)
    order = sorted(drawn, key=lambda i: (-ranges[i]["bytes"], ranges[i]["start"], i))
    start = np.array([ranges[i]["start"] for i in order], dtype=np.int64)
    end = np.array([ranges[i]["end"] for i in order], dtype=np.int64)
    size = np.array([ranges[i]["bytes"] for i in order], dtype=np.int64)
    offset = np.zeros(len(order), dtype=np.int64)
    for k in range(len(order)):
        meets = np.flatnonzero((start[:k] < end[k]) & (start[k] < end[:k]))
        meets = meets[np.argsort(offset[meets], kind="stable")]
        at = base
        for j in meets:
            if offset[j] - at >= size[k]:
                break
            at = max(at, int(offset[j] + size[j]))
        offset[k] = at
    return Packing(
        rows=tuple(order),
        offset=tuple(int(o) for o in offset),
        small_bytes=bands,
        small_count=len(small),
        height_bytes=int((offset + size).max()) if len(order) else base,
    )
