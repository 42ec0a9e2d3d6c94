"""Compare the outputs of two models on a device: bit for bit, wherever the device repeats its bits.

Two effects make a device's numbers its own. Kernels that add with atomics add in any order: the last
bits of outputs that depend on them differ from run to run, in the original too. And another device's
kernels round differently: a gradient that is zero in theory is rounding on each device. A relative
measure by element is meaningless for it; one relative to the tensor's largest element is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.choices import Numbers
from planner.graph.model import Operation, TrainingGraph
from planner.results.verification import OutputComparison
from planner.runtime.judge.compare import apart, compare, judged
from planner.runtime.judge.draws import outputs_behind
from planner.targets import Target
from planner.units import counted

Array = npt.NDArray[Any]
Outputs = Mapping[str, Array]
_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputJudge:
    """Compares outputs, and adds to `failures` and `notes`.

    Attributes:
        summed: outputs that may differ in rounding (`summed_outputs`).
        numbers: how close to the original's outputs they should be.
    """

    target: Target
    summed: frozenset[str]
    failures: list[str]
    notes: list[str]
    numbers: Numbers = "exact"

    def judge(
        self, original: Sequence[Outputs], rewritten: Outputs, cpu: Outputs
    ) -> tuple[OutputComparison, ...]:
        """Compare the rewritten model's outputs with two runs of the original, and with the CPU's."""
        first, second = original
        if list(first) != list(rewritten):
            self.failures.append("the two models have different outputs")
            return ()
        where = self.target.title
        unsteady = {n for n in first if not compare(n, first[n], second[n]).identical}
        if unsteady:
            self.notes.append(
                f"{len(unsteady)} of {len(first)} outputs of the original differ from run to run on "
                f"{where}: those are compared within its tolerance"
            )
        comparisons = tuple(compare(n, first[n], rewritten[n]) for n in first)
        if self.numbers != "exact":
            failures, notes = judged(comparisons, self.numbers)
            self.failures.extend(failures)
            self.notes.extend(notes)
            return comparisons
        differ = [c for c in comparisons if not c.identical]
        near = {
            c.name
            for c in differ
            if c.name in self.summed | unsteady and self._is_near(first, rewritten, c.name)
        }
        if rounded := sorted(near - unsteady):
            self.notes.append(
                f"{counted(len(rounded), 'output')}, first {rounded[0]!r}, come from operators that add "
                f"in any order on {where}: they differ in rounding, within its tolerance"
            )
        self._fail(
            [
                f"output {c.name!r} differs from the original's on {where}: by "
                f"{c.max_abs_diff:.3g} at most ({c.max_rel_diff:.3g} relative)"
                for c in differ
                if c.name not in near
            ]
        )
        self._against_cpu(first, rewritten, cpu)
        return comparisons

    def _against_cpu(self, first: Outputs, rewritten: Outputs, cpu: Outputs) -> None:
        """Compare with the CPU's outputs; where the original on the device is off too, only note it."""
        where, limit = self.target.title, tolerance(self.target)
        if not cpu:
            self.notes.append("outputs were not compared with the CPU's")
            return
        far = sorted(n for n in cpu if not self._is_near(cpu, first, n))
        if far:
            self.notes.append(
                f"{len(far)} of {len(cpu)} outputs of the original on {where} are not within "
                f"{limit} of the CPU's, first {far[0]!r}: the provider itself differs"
            )
        else:
            self.notes.append(
                f"all outputs of the original on {where} are within {limit} of the CPU's"
            )
        self._fail(
            [
                f"output {n!r} is not within {limit} of the CPU's, though the original's is"
                for n in cpu
                if n not in far and not self._is_near(cpu, rewritten, n)
            ]
        )

    def _is_near(self, expected: Outputs, found: Outputs, name: str) -> bool:
        return is_near(self.target, expected[name], found[name])

    def _fail(self, failures: Sequence[str]) -> None:
        self.failures.extend(failures[:_SHOWN])
        if len(failures) > _SHOWN:
            self.failures.append(f"{len(failures) - _SHOWN} more outputs differ")


def summed_outputs(graph: TrainingGraph, target: Target) -> frozenset[str]:
    """Return the graph outputs that depend on device kernels that add in any order."""

    def adds(op: Operation) -> bool:
        reduces = (op.attributes or {}).get("reduction", "none") != "none"
        kinds = target.always_sums | target.sums if reduces else target.always_sums
        return op.op_type in kinds and not op.on_cpu

    return frozenset(outputs_behind(graph, adds))


def is_near(target: Target, expected: Array, found: Array) -> bool:
    """Tell whether two outputs agree within the target's tolerance; integers and bools must be equal."""
    if expected.dtype.kind not in "fc":
        return expected.dtype == found.dtype and np.array_equal(expected, found)
    gap = apart(expected, found)
    return gap.absolute <= target.absolute + target.relative * gap.largest


def tolerance(target: Target) -> str:
    """Describe the tolerance in words."""
    return f"{target.absolute:g} + {target.relative:g} of the largest element"
