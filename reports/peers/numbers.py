"""Loss and gradients of two runtimes beside each other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Arrays = dict[str, Array]


def apart(
    found: Mapping[str, npt.NDArray[Any]], wanted: Mapping[str, npt.NDArray[Any]]
) -> dict[str, Any]:
    """Compare `found` with `wanted`; names that only `found` has are ignored.

    `loss`: relative. `gradients`: norm of the difference of all of them, by their norm. `worst`: the
    largest difference of an element of any gradient, by that gradient's largest element. `missing`:
    gradients that were not found.
    """
    names = [name for name in wanted if name != "loss"]
    missing = [name for name in names if name not in found]
    off = whole = worst = 0.0
    for name in names:
        if name in missing:
            continue
        target = wanted[name].astype(np.float64)
        difference = found[name].astype(np.float64) - target
        off += float(np.square(difference).sum())
        whole += float(np.square(target).sum())
        largest = float(np.abs(target).max(initial=0.0))
        if largest > 0:
            worst = max(worst, float(np.abs(difference).max()) / largest)
    loss = float(wanted["loss"])
    return {
        "loss": abs(float(found["loss"]) - loss) / max(abs(loss), 1e-30),
        "gradients": math.sqrt(off / whole) if whole else math.sqrt(off),
        "worst": worst,
        "missing": missing,
    }
