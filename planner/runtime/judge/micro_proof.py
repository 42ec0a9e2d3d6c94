"""Compare one run on the whole batch with K runs on its parts: the totals must agree.

The original runs once, the model of one run K times with its totals fed back from run to run, on the
same samples. Sums are then added up in another order, and last bits differ: an output agrees where it
is within `planner.choices.RELATIVE` of its largest element.

Some outputs are rounding alone: a gradient that is 0 in exact arithmetic, and its sign, which an
update turns into a step. The original itself shows the size of this effect: it runs once more, on the
samples in another order. Outputs may differ by as much, where all totals agree.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from planner.choices import RELATIVE
from planner.micro.batch import part, reordered
from planner.plan.planfile import Accumulator, MicroBatches
from planner.processes.children import quiet
from planner.results.verification import MicroCheck, TimeCheck
from planner.runtime.binding.kinds import FeedKind
from planner.runtime.judge.compare import apart, compare
from planner.runtime.options import Opening
from planner.runtime.profile import create_session, run_session

Array = npt.NDArray[Any]

_NOISE = 1e-6
"""The share of the largest of all totals below which a total is rounding."""

_REORDERED = 4.0
"""The allowed difference, as a multiple of the change that another order of the samples makes."""

_REPEATS, _LONG_S = 3, 5.0
"""Timed repeats of a step, and the seconds above which it is timed only once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroJob:
    """Two models, and the samples of a step.

    Attributes:
        original: the model that runs on all samples at once; run: the model of one run on a part of them.
        openings: options of the two sessions.
        feeds: inputs of the original.
        own: buffers in which nodes of the models add up: by the name of the buffer's input, the name
            of the flag that tells whether it is to be overwritten ("": it has none).
        note: a remark on how this was done.
    """

    original: Path
    run: Path
    openings: tuple[Opening, Opening]
    batches: MicroBatches
    feeds: Mapping[str, Array]
    own: Mapping[str, str] = field(default_factory=dict)
    note: str | None = None

    def check(self) -> tuple[MicroCheck, TimeCheck]:
        """Compare both, and time both.

        Raises:
            ModelError: ONNX Runtime cannot run one of the models.
        """
        whole = create_session(self.original, self.openings[0].options())
        parts = create_session(self.run, self.openings[1].options())
        cuts = self._cuts()
        expected, found = self._step(whole, [self.feeds]), self._step(parts, cuts)
        if self.own:  # the loss of a run covers only its own samples
            expected = {name: expected[name] for name in self.own}
        totals = {*self.own, *(a.output for a in self.batches.accumulators)}
        tensors = [a for n, a in expected.items() if n in totals and a.dtype.kind == "f" and a.ndim]
        largest = max((_largest(a) for a in tensors), default=0.0)
        floors = {n: _NOISE * largest if n in totals else 0.0 for n in expected}
        names = [n for n in expected if n in found]
        far = [n for n in names if not _agrees(expected[n], found[n], floors[n])]
        rounding = len(far)
        if far and not totals & set(far):
            again = self._step(whole, [reordered(self.feeds, self.batches.inputs)])
            for name in far:
                if name not in self.batches.per_run:
                    change = np.abs(again[name].astype(float) - expected[name].astype(float))
                    floors[name] = _REORDERED * float(change.max(initial=0.0))
            far = [n for n in far if not _agrees(expected[n], found[n], floors[n])]
        comparisons = tuple(compare(n, expected[n], found[n]) for n in names)
        differ = [c for c in comparisons if not c.identical]
        shares = {c.name: c.max_abs_diff / (_largest(expected[c.name]) or 1.0) for c in differ}
        worst = max(shares, key=shares.__getitem__, default=None)
        check = MicroCheck(
            runs=self.batches.runs,
            outputs=comparisons,
            far=(*far, *(n for n in expected if n not in found)),
            worst=worst,
            worst_share=shares[worst] if worst else 0.0,
            by_rounding=rounding - len(far),
            note=self.note,
        )
        return check, self._times(whole, parts, cuts)

    def _cuts(self) -> list[dict[str, Array]]:
        """Return the inputs of each run."""
        batches = self.batches
        size = batches.batch // batches.runs
        starts = range(0, batches.batch, size)
        return [part(self.feeds, batches.inputs, start, start + size) for start in starts]

    def _step(
        self, session: ort.InferenceSession, cuts: Sequence[Mapping[str, Array]]
    ) -> dict[str, Array]:
        """Run a step in parts, and return its outputs.

        An output that each run has for its own samples is concatenated. A buffer in which the model's
        nodes add up is returned under the name of its input. All other outputs are the last run's.
        """
        batches = self.batches
        known = {i.name for i in session.get_inputs()}
        fed_back = [a for a in batches.accumulators if a.input in known]
        totals = _zeros(session, fed_back)
        buffers = {name: np.zeros_like(self.feeds[name]) for name in self.own}
        rows: dict[str, list[Array]] = {name: [] for name in batches.per_run}
        made: dict[str, Array] = {}
        for k, fed in enumerate(cuts):
            flags = {f: np.full_like(self.feeds[f], k == 0) for f in self.own.values() if f}
            made = _outputs(session, {**fed, **totals, **buffers, **flags})
            totals = {a.input: made[a.output] for a in fed_back}
            for name, found in rows.items():
                found.append(made[name])
        joined = {n: np.concatenate(a, axis=batches.per_run[n]) for n, a in rows.items()}
        return {**made, **joined, **buffers}

    def _times(
        self,
        whole: ort.InferenceSession,
        parts: ort.InferenceSession,
        cuts: Sequence[Mapping[str, Array]],
    ) -> TimeCheck:
        """Time a step in one run of the original and in K runs, in turns."""
        times: tuple[list[float], list[float]] = ([], [])
        with quiet():
            for _ in range(_REPEATS):
                for session, inputs, found in ((whole, [self.feeds], 0), (parts, cuts, 1)):
                    start = time.perf_counter()
                    self._step(session, inputs)
                    times[found].append((time.perf_counter() - start) * 1e6)
                if times[0][-1] + times[1][-1] > _LONG_S * 1e6:
                    break
        return TimeCheck(original_us=tuple(times[0]), rewritten_us=tuple(times[1]))


def _zeros(session: ort.InferenceSession, accumulators: Sequence[Accumulator]) -> dict[str, Array]:
    """Return the totals that the first run of a step is fed."""
    found = {i.name: i for i in session.get_inputs()}
    specs = {a.input: found[a.input] for a in accumulators}
    return {name: np.zeros(spec.shape, FeedKind.of(spec).dtype) for name, spec in specs.items()}


def _outputs(session: ort.InferenceSession, feeds: Mapping[str, Array]) -> dict[str, Array]:
    names = [output.name for output in session.get_outputs()]
    results = run_session(session, feeds)
    return {name: np.array(array) for name, array in zip(names, results, strict=True)}


def _largest(array: Array) -> float:
    return apart(array, array).largest


def _agrees(expected: Array, found: Array, floor: float) -> bool:
    relative = RELATIVE.get(str(expected.dtype))
    if relative is None:
        return expected.dtype == found.dtype and np.array_equal(expected, found)
    gap = apart(expected, found)
    # a floor may be infinite, and other shapes agree nowhere
    return gap.absolute < np.inf and gap.absolute <= max(floor, relative * gap.largest)
