"""Outputs that are rounding alone: sums that cancel, and what follows from a ReLU near 0.

A bias in front of a batch normalization has such a gradient: it is 0 in exact arithmetic. The measure is
the original itself: how far its outputs move where its inputs change in their last bits, which is what
an algorithm may do at best (Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, 1.5).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from planner.errors import ModelError
from planner.results.verification import OutputComparison
from planner.runtime.inmemory import Array, ModelInMemory
from planner.runtime.judge.compare import compare
from planner.runtime.options import Opening, default_threads

_TRIES = 3
"""Runs on moved inputs: where rounding opens or shuts a ReLU, one alone may move little by chance."""

_TIMES_RMS, _TIMES_MOST = 3.0, 8.0
"""How many times as far from the original's an output may be as the original's own moves at most: by
the root mean square, and in its farthest element."""


def rounding_judged(
    comparisons: Sequence[OutputComparison],
    original: Path,
    feeds: Callable[[], Mapping[str, Array]],
    *,
    drawn: Collection[str] = (),
    opening: Opening,
    seed: int,
) -> tuple[tuple[OutputComparison, ...], tuple[str, ...]]:
    """Return the comparisons, those of rounding alone as near, and a note on these.

    Args:
        feeds: makes the inputs of one run.
        drawn: outputs that depend on random numbers, which move by themselves.
        opening: how the original's session is opened.
    """
    far = [
        c
        for c in comparisons
        if not c.is_near and math.isfinite(c.max_abs_diff) and c.name not in drawn
    ]
    if not far:
        return tuple(comparisons), ()
    names = {c.name for c in far}
    as_it_is = Opening(level=opening.level, threads=opening.threads or default_threads())
    model = ModelInMemory(data=original.read_bytes(), folder=original.parent)

    def outputs(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        found = model.run(inputs, opening=as_it_is, seed=seed)
        return {name: array for name, array in found.items() if name in names}

    random = np.random.default_rng(seed)
    most, rms = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    try:
        as_they_are = outputs(feeds())
        for _ in range(_TRIES):
            moved = outputs({name: _moved(array, random) for name, array in feeds().items()})
            for name in names & {*moved}:
                own = compare(name, as_they_are[name], moved[name])
                most[name] = max(most[name], own.max_abs_diff)
                rms[name] = max(rms[name], own.rms_rel_diff)
    except ModelError:  # it needs planner's library: there is nothing to measure by
        return tuple(comparisons), ()
    noise = {
        c.name
        for c in far
        if c.max_abs_diff <= _TIMES_MOST * most[c.name] < math.inf
        and c.rms_rel_diff <= _TIMES_RMS * rms[c.name]
    }
    if not noise:
        return tuple(comparisons), ()
    first = next(c.name for c in far if c.name in noise)
    more = f" and {len(noise) - 1} more" if len(noise) > 1 else ""
    note = (
        f"output {first!r}{more}: rounding alone (sums that cancel, ReLUs that rounding opens or shuts): "
        "the original's moves as far where inputs change in their last bit"
    )
    return tuple(replace(c, is_near=True) if c.name in noise else c for c in comparisons), (note,)


def _moved(array: Array, random: np.random.Generator) -> Array:
    """Change elements by their last bit, at random; none of whole numbers, such as masks and counters."""
    if array.dtype.kind != "f" or np.array_equal(array, np.rint(array)):
        return array
    away = np.where(random.random(array.shape) < 0.5, np.inf, -np.inf).astype(array.dtype)
    return np.nextafter(array, away)
