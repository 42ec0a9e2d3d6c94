"""Measure how the totals of a full step follow from those of runs on parts of its batch.

For a value v of the full batch, and v_k of its K parts:

    "sum"      v = Σ v_k                       a sum over samples: the parts are added
    "mean"     v = Σ v_k / K                   a mean over samples: each part is scaled by 1/K
    a count c  v = Σ c_k v_k / Σ c_k           a mean over the c counted items (targets that are not
                                               ignored), however many of them a part has

The model runs on four samples, on the first two and on the last two of them. Each value gets the kind
that fits these numbers. Where the model may ignore targets, one target of the first half is ignored: the
counts then differ, which distinguishes a mean over samples from one over targets. A value that fits no
kind (a maximum, a variance, the square of a sum) is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.choices import RELATIVE

Array = npt.NDArray[Any]

SUM, MEAN = "sum", "mean"

_NOISE = 1e-6
"""Largest rounding error, as a share of the largest total: smaller values are 0 in exact arithmetic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinds:
    """The kind of each value, in `of`: "sum", "mean" or the name of a count.

    Attributes:
        assumed: values that were 0, or too small to tell; they got the most frequent kind.
        strange: values that fit no kind.
    """

    of: Mapping[str, str]
    assumed: tuple[str, ...] = ()
    strange: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Runs:
    """The values, by name, of a run on a batch and of runs on its two halves."""

    whole: Mapping[str, Array]
    halves: tuple[Mapping[str, Array], Mapping[str, Array]]


def kinds_of(runs: Runs, names: Sequence[str], counts: Mapping[str, Sequence[str]]) -> Kinds:
    """Find the kind of each named value.

    Args:
        counts: the counts that each value may be a mean over, by the value's name.
    """
    reals = [runs.whole[n] for n in names if runs.whole[n].dtype.kind == "f"]
    of_tensors = [a for a in reals if a.ndim] or reals
    largest = max((float(np.abs(a).max(initial=0.0)) for a in of_tensors), default=0.0)
    found: dict[str, str] = {}
    unknown, strange = [], []
    every = {count for known in counts.values() for count in known}
    sums = {count for count in every if _kind(runs, count, ()) == SUM}
    counts = {name: [c for c in known if c in sums] for name, known in counts.items()}
    for name in names:
        whole = runs.whole[name]
        if _is_nothing(whole, _NOISE * largest):
            unknown.append(name)
        elif (kind := _kind(runs, name, counts.get(name, ()))) is None:
            strange.append(name)
        else:
            found[name] = kind
    for name in unknown:
        same = [k for n, k in found.items() if (k in counts.get(name, ())) or k in (SUM, MEAN)]
        real = runs.whole[name].dtype.kind == "f"
        same = [k for k in same if real or k == SUM]
        # values made from the same samples have the same kind: a count where it may be one
        over = [k for k in same if k in counts.get(name, ())]
        found[name] = max(over or same or [SUM], key=(over or same or [SUM]).count)
    order = {name: i for i, name in enumerate(names)}
    return Kinds(
        of=dict(sorted(found.items(), key=lambda item: order[item[0]])),
        assumed=tuple(unknown),
        strange=tuple(strange),
    )


def _is_nothing(whole: Array, noise: float) -> bool:
    """Tell whether a total is 0, or within the noise."""
    if whole.dtype.kind != "f":
        return not np.any(whole)
    return float(np.abs(whole).max(initial=0.0)) <= noise


def _kind(runs: Runs, name: str, counts: Sequence[str]) -> str | None:
    whole, (a, b) = runs.whole[name], (half[name] for half in runs.halves)
    if whole.dtype.kind == "b":
        return None
    if whole.dtype.kind != "f":
        return SUM if np.array_equal(whole, a + b) else None
    limit = RELATIVE.get(str(whole.dtype), 1e-3) * float(np.abs(whole).max(initial=0.0))
    one, two = a.astype(np.float64), b.astype(np.float64)

    def fits(expected: Array) -> bool:
        return bool(np.allclose(expected, whole.astype(np.float64), rtol=0.0, atol=limit))

    for count in counts:
        c, d = (float(half[count]) for half in runs.halves)
        if c + d and fits((c * one + d * two) / (c + d)):
            return count
    if fits((one + two) / 2):
        return MEAN
    return SUM if fits(one + two) else None


def per_sample_kind(runs: Runs, name: str, axis: int) -> str | None:
    """Find how a value that carries the batch follows from its parts.

    "sum": the parts are joined. "mean": they are joined and scaled, as a gradient of a mean loss with
    respect to the input. None: the value does not follow from its parts.

    Args:
        axis: the batch axis.
    """
    whole = runs.whole[name]
    joined = np.concatenate([half[name] for half in runs.halves], axis=axis)
    if joined.shape != whole.shape:
        return None
    if whole.dtype.kind != "f":
        return SUM if np.array_equal(whole, joined) else None
    a, b = whole.astype(np.float64), joined.astype(np.float64)
    limit = RELATIVE.get(str(whole.dtype), 1e-3) * float(np.abs(a).max(initial=0.0))
    for kind, share in ((SUM, 1.0), (MEAN, 0.5)):
        if np.allclose(a, share * b, rtol=0.0, atol=limit, equal_nan=True):
            return kind
    return None
