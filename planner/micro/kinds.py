"""How the totals of a full step follow from those of runs on parts of its batch, as measured.

For a value v of the full batch, and v_k of its K parts:

    "sum"      v = Σ v_k                       a sum over samples: added up as they are
    "mean"     v = Σ v_k / K                   a mean over samples: each is scaled by 1/K
    a count c  v = Σ c_k v_k / Σ c_k           a mean over what c counts (targets that are not ignored),
                                               however many of them a part has

The model is run on four samples and on the first and the last two of them, and each value is what fits
these numbers, and no other. A target is ignored in the first half, where the model may ignore some, so
that the counts differ: a mean over samples is then told from one over targets. What fits nothing (a
maximum, a variance, the square of a sum) is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

SUM, MEAN = "sum", "mean"

_RELATIVE = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 1e-3, "float64": 1e-6}
"""As in `planner.runtime.optimizers.same_numbers`: a share of the largest element."""

_NOISE = 1e-6
"""What is smaller, as a share of the largest of all totals, is rounding (and 0 in exact arithmetic)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinds:
    """What was found of each value: `of` has "sum", "mean" or the name of a count.

    Attributes:
        assumed: of those, values that were 0, or too small to tell, and were taken to be as most are.
        strange: values that fit nothing.
    """

    of: Mapping[str, str]
    assumed: tuple[str, ...] = ()
    strange: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Runs:
    """Values by name, of a run on a batch and of the runs on its two halves."""

    whole: Mapping[str, Array]
    halves: tuple[Mapping[str, Array], Mapping[str, Array]]


def kinds_of(runs: Runs, names: Sequence[str], counts: Mapping[str, Sequence[str]]) -> Kinds:
    """Tell of each named value how it adds up.

    Args:
        counts: by name of a value, the counts that it may be a mean over.
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
        # those made from the same samples in the same way: a count where it may be one
        over = [k for k in same if k in counts.get(name, ())]
        found[name] = max(over or same or [SUM], key=(over or same or [SUM]).count)
    order = {name: i for i, name in enumerate(names)}
    return Kinds(
        of=dict(sorted(found.items(), key=lambda item: order[item[0]])),
        assumed=tuple(unknown),
        strange=tuple(strange),
    )


def _is_nothing(whole: Array, noise: float) -> bool:
    """Whether a total is 0, or no more than noise."""
    if whole.dtype.kind != "f":
        return not np.any(whole)
    return float(np.abs(whole).max(initial=0.0)) <= noise


def _kind(runs: Runs, name: str, counts: Sequence[str]) -> str | None:
    whole, (a, b) = runs.whole[name], (half[name] for half in runs.halves)
    if whole.dtype.kind == "b":
        return None
    if whole.dtype.kind != "f":
        return SUM if np.array_equal(whole, a + b) else None
    limit = _RELATIVE.get(str(whole.dtype), 1e-3) * float(np.abs(whole).max(initial=0.0))
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
    """How a value that carries the batch follows from its parts: "sum" where they are joined as they are,
    "mean" where each has to be scaled, too (a gradient with regard to the input, of a mean loss); None
    where it does not.

    Args:
        axis: along which samples stand.
    """
    whole = runs.whole[name]
    joined = np.concatenate([half[name] for half in runs.halves], axis=axis)
    if joined.shape != whole.shape:
        return None
    if whole.dtype.kind != "f":
        return SUM if np.array_equal(whole, joined) else None
    a, b = whole.astype(np.float64), joined.astype(np.float64)
    limit = _RELATIVE.get(str(whole.dtype), 1e-3) * float(np.abs(a).max(initial=0.0))
    for kind, share in ((SUM, 1.0), (MEAN, 0.5)):
        if np.allclose(a, share * b, rtol=0.0, atol=limit, equal_nan=True):
            return kind
    return None
