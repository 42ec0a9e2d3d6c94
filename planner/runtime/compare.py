"""Compare results bit for bit, and orders name by name; where they differ, say where and by how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.results import OrderCheck, OutputComparison

_CHUNK = 1 << 22  # elements compared at a time: a few temporaries of 32 MiB at most


class KeptResults:
    """What the original model gave, each array kept until the rewritten model's is compared with it.

    Attributes:
        comparisons: those made, in the rewritten model's order.
        failures: results that only one of the models has.
    """

    def __init__(self) -> None:
        self._kept: dict[str, npt.NDArray[Any]] = {}
        self.comparisons: list[OutputComparison] = []
        self.failures: list[str] = []

    def keep(self, results: Mapping[str, npt.NDArray[Any]]) -> None:
        """Keep copies: ONNX Runtime's own arrays would hold their arena bytes in the next run."""
        self._kept.update((name, np.array(array)) for name, array in results.items())

    def compare(self, results: Mapping[str, npt.NDArray[Any]]) -> None:
        """Compare with what is kept, and drop that."""
        missing = sorted(set(self._kept) - set(results))
        if missing:
            self.failures.append(f"the rewritten model lacks the outputs {', '.join(missing)}")
        for name, array in results.items():
            before = self._kept.pop(name, None)
            if before is None:
                self.failures.append(f"the rewritten model has the extra output {name!r}")
            else:
                self.comparisons.append(compare(name, before, array))


def compare_orders(
    planned: Sequence[str], executed: Sequence[str], *, level: str, queue: str = ""
) -> OrderCheck:
    """Names of nodes as planned and as they ran at one optimization level, in one queue."""
    first = ""
    for step, (want, ran) in enumerate(zip(planned, executed, strict=False)):
        if want != ran:
            first = f"step {step}: planned {want!r}, ran {ran!r}"
            break
    equal = not first and len(executed) == len(planned)
    if not equal and not first:
        first = f"{len(planned)} nodes planned, {len(executed)} ran"
    return OrderCheck(
        level=level,
        equal=equal,
        executed=len(executed),
        planned=len(planned),
        first_difference=first,
        queue=queue,
    )


def compare(name: str, before: npt.NDArray[Any], after: npt.NDArray[Any]) -> OutputComparison:
    """One output of both models. Types or shapes that differ are infinitely far apart."""
    before, after = np.asarray(before), np.asarray(after)
    if before.dtype != after.dtype or before.shape != after.shape:
        return _result(name, after, False, float("inf"), float("inf"), False)
    flat = before.reshape(-1), after.reshape(-1)
    identical, absolute, relative, has_nan = True, 0.0, 0.0, False
    for start in range(0, flat[0].size, _CHUNK):
        a, b = (np.ascontiguousarray(x[start : start + _CHUNK]) for x in flat)
        if a.dtype.kind in "fc" and (np.isnan(a).any() or np.isnan(b).any()):
            has_nan = True
        if np.array_equal(a.view(np.uint8), b.view(np.uint8)):
            continue
        identical = False
        chunk = _differences(a, b)
        absolute, relative = max(absolute, chunk[0]), max(relative, chunk[1])
    return _result(name, after, identical, absolute, relative, has_nan)


def _differences(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> tuple[float, float]:
    """Largest absolute and relative difference; a NaN or infinity on one side only is infinite."""
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    x, y = a.astype(wide), b.astype(wide)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        gap = np.where(same, 0.0, np.abs(x - y))
        gap = np.where(np.isnan(gap), np.inf, gap)
        ratio = np.where(same, 0.0, gap / np.maximum(np.abs(x), np.abs(y)))
    ratio = np.where(np.isnan(ratio), np.inf, ratio)
    return float(gap.max(initial=0.0)), float(ratio.max(initial=0.0))


def _result(
    name: str,
    array: npt.NDArray[Any],
    identical: bool,
    absolute: float,
    relative: float,
    has_nan: bool,
) -> OutputComparison:
    return OutputComparison(
        name=name,
        dtype=str(array.dtype),
        shape=tuple(array.shape),
        identical=identical,
        max_abs_diff=absolute,
        max_rel_diff=relative,
        has_nan=has_nan,
    )
