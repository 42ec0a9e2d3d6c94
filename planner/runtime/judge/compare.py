"""Compare results bit for bit, and orders name by name; report where they differ, and by how much."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.choices import RELATIVE, Numbers
from planner.graph.effects import Effect
from planner.graph.model import TrainingGraph
from planner.results.verification import OrderCheck, OutputComparison

_CHUNK = 1 << 22  # elements compared at a time: a few temporaries of 32 MiB at most
_SHOWN = 3


class KeptResults:
    """The original model's results, each kept until it is compared with the rewritten model's.

    Attributes:
        comparisons: the comparisons made, in the rewritten model's order.
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
        """Compare results with the kept ones, and drop these."""
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
    """Compare node names as planned and as executed, at one optimization level and in one queue."""
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
    """Compare one output of both models."""
    before, after = np.asarray(before), np.asarray(after)
    same, has_nan = False, False
    if before.dtype == after.dtype and before.shape == after.shape:
        same = all(np.array_equal(_bits(a), _bits(b)) for a, b in _both(before, after))
        if before.dtype.kind in "fc":
            has_nan = any(np.isnan(a).any() or np.isnan(b).any() for a, b in _both(before, after))
    gap = Apart() if same else apart(before, after)
    return OutputComparison(
        name=name,
        dtype=str(after.dtype),
        shape=tuple(after.shape),
        identical=same,
        is_near=gap.absolute <= RELATIVE.get(str(before.dtype), 0.0) * gap.largest,
        max_abs_diff=gap.absolute,
        max_rel_diff=gap.relative,
        rms_rel_diff=gap.rms,
        has_nan=has_nan,
    )


def apart(before: npt.NDArray[Any], after: npt.NDArray[Any]) -> Apart:
    """Return the distance of two arrays; other types, shapes and strings are infinitely far apart."""
    if before.dtype != after.dtype or before.shape != after.shape or before.dtype.kind == "O":
        return Apart(absolute=np.inf, relative=np.inf, squares=np.inf)
    found = Apart()
    for a, b in _both(before, after):
        found.add(a, b)
    return found


def _bits(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array's bytes; arrays of strings, which are objects, are returned unchanged."""
    return array if array.dtype.kind == "O" else array.view(np.uint8)


_Pair = tuple[npt.NDArray[Any], npt.NDArray[Any]]


def _both(before: npt.NDArray[Any], after: npt.NDArray[Any]) -> Iterator[_Pair]:
    """Yield parts of two arrays, up to `_CHUNK` elements of each."""
    flat = before.reshape(-1), after.reshape(-1)
    for start in range(0, flat[0].size, _CHUNK):
        a, b = (np.ascontiguousarray(x[start : start + _CHUNK]) for x in flat)
        yield a, b


@dataclass(slots=True)
class Apart:
    """The distance of two arrays; a NaN or an infinity on one side only is infinitely far.

    Attributes:
        absolute, relative: the largest differences of single elements.
        largest: the largest magnitude of the first array's finite elements.
        squares, of_squares: sums of squares of the differences, and of the first array's finite elements.
    """

    absolute: float = 0.0
    relative: float = 0.0
    largest: float = 0.0
    squares: float = 0.0
    of_squares: float = 0.0

    def add(self, a: npt.NDArray[Any], b: npt.NDArray[Any]) -> None:
        """Add parts of both arrays."""
        wide = np.complex128 if a.dtype.kind == "c" else np.float64
        x, y = a.astype(wide), b.astype(wide)
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            gap = np.where(same, 0.0, np.abs(x - y))
            gap = np.where(np.isnan(gap), np.inf, gap)
            ratio = np.where(same, 0.0, gap / np.maximum(np.abs(x), np.abs(y)))
            finite = np.abs(x[np.isfinite(x)])
            self.squares += float(np.square(gap).sum())
            self.of_squares += float(np.square(finite).sum())
        ratio = np.where(np.isnan(ratio), np.inf, ratio)
        self.absolute = max(self.absolute, float(gap.max(initial=0.0)))
        self.relative = max(self.relative, float(ratio.max(initial=0.0)))
        self.largest = max(self.largest, float(finite.max(initial=0.0)))

    @property
    def rms(self) -> float:
        """The root mean square of the differences, relative to that of the first array."""
        if not self.squares:
            return 0.0
        return math.sqrt(self.squares / self.of_squares) if self.of_squares else math.inf


def judged(
    comparisons: Sequence[OutputComparison], numbers: Numbers
) -> tuple[list[str], list[str]]:
    """Return (failures, notes) on outputs that should be as close to the original's as `numbers`
    says."""
    off = [c for c in comparisons if not c.identical]
    if numbers == "exact":
        far = off
    elif numbers == "rounding":
        far = [c for c in off if not c.is_near]
    else:
        far = [c for c in off if math.isinf(c.max_abs_diff)]
    failures = [
        f"output {c.name!r} differs from the original's: by {c.max_abs_diff:.3g} at most "
        f"({c.max_rel_diff:.3g} relative)"
        for c in far[:_SHOWN]
    ]
    if len(far) > _SHOWN:
        failures.append(f"{len(far) - _SHOWN} more outputs differ")
    if numbers == "exact" or not off:
        return failures, []
    worst = max(off, key=lambda c: c.rms_rel_diff)
    why = {
        "rounding": "split and fused operations add in another order or use other polynomials: these "
        f"outputs differ in rounding, within {RELATIVE['float32']:g} of the largest element where no "
        "other note names them",
        "lossy": "lossy, as asked for",
    }[numbers]
    note = (
        f"{len(off)} of {len(comparisons)} outputs are not bit-identical ({why}); the root mean square "
        f"of the difference is at most {worst.rms_rel_diff:.3g} of the output's own, in {worst.name!r}"
    )
    return failures, [note]


def threads_to_compare(graph: TrainingGraph, threads: int) -> tuple[int, tuple[str, ...]]:
    """Return (threads to compare outputs with, a note).

    One thread is used where a kernel's threads add in any order: the original would differ from
    itself.
    """
    racing = {op.op_type for op in graph.operations if op.effect is Effect.ANY_ORDER}
    if not racing or threads == 1:
        return threads, ()
    return 1, (
        f"outputs were compared with one thread: {', '.join(sorted(racing))} adds in an order "
        "that differs from run to run with several",
    )
