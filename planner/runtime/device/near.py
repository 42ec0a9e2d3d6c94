"""How far a device's numbers may be from others: an absolute part, and one of the largest element.

A gradient that is zero in theory is rounding on every device, so that a relative measure by element says
nothing of it; one relative to the tensor's largest element does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from planner.targets import Target

Array = npt.NDArray[Any]


def is_near(target: Target, expected: Array, found: Array) -> bool:
    """Whether two outputs agree within the target's tolerance; integers and bools must be equal."""
    if expected.dtype != found.dtype or expected.shape != found.shape:
        return False
    if expected.dtype.kind not in "fc":
        return bool(np.array_equal(expected, found))
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, b = expected.astype(wide), found.astype(wide)
    finite = np.abs(a[np.isfinite(a)])
    limit = target.absolute + target.relative * float(finite.max(initial=0.0))
    return bool(np.allclose(a, b, rtol=0.0, atol=limit, equal_nan=True))


def tolerance(target: Target) -> str:
    """The tolerance in words."""
    return f"{target.absolute:g} + {target.relative:g} of the largest element"
