"""Judge whether a graph's step matches PyTorch's: loss, results, gradients, and state after the step."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, fx

from planner.export.checking import rounding
from planner.export.checking.eager import Arrays, Ran, ran
from planner.export.checking.norms import apart, is_equal, is_near, norm
from planner.export.optim import GRADIENT_SUFFIX, UPDATED_SUFFIX
from planner.export.trace.joint import JointGraph
from planner.export.trace.lending import Kept
from planner.export.trace.step import TrainingStep
from planner.export.write.dtypes import HALF
from planner.export.write.lower import LOSS

_LOSS, _GRADIENT, _IN_HALF = 1e-3, 0.02, 0.1
"""Allowed error of loss, gradients, and either in half precision, as a share of the norm of PyTorch's."""

_LEAST = 1e-6
"""Absolute error always allowed for loss, other results and buffers."""

_OF_ALL = 1e-5
"""Allowed error of any gradient, as a share of the norm of all gradients together."""

_SAME = 1e-5
"""Allowed difference of two PyTorch runs on the same numbers, due to the order of its threads."""


def values_of(graph: fx.Graph) -> Iterator[Tensor]:
    """Yield all tensors of a traced graph."""
    for node in graph.nodes:
        found = node.meta.get("val")
        for value in found if isinstance(found, tuple | list) else (found,):
            if isinstance(value, Tensor):
                yield value


@dataclass(frozen=True, kw_only=True)
class StepJudge:
    """The judge of one step, run by the graph and by PyTorch.

    Attributes:
        rewritten: tensors whose new value is the update's, which is judged apart.
    """

    step: TrainingStep
    joint: JointGraph
    rewritten: Container[str] = ()

    def wrong(self, ours: Arrays, theirs: Ran) -> str:
        """Name the first difference, of loss, results and gradients, then of state; "" for none."""
        return self._wrong_numbers(ours, theirs) or self._wrong_state(ours, theirs)

    def _wrong_numbers(self, ours: Arrays, theirs: Ran) -> str:
        """Name the first of loss, other results and gradients that differs; "" for none.

        Gradients that are not finite in PyTorch are skipped.
        """
        loss, gradient = self.allowed
        if not is_near(ours[LOSS], theirs.loss, loss, floor=_LEAST):
            return f"the loss is {float(ours[LOSS]):.6g}, and {float(theirs.loss):.6g} in PyTorch"
        for name, array in theirs.results.items():
            if not is_near(ours[name], array, _of(array, loss), floor=_LEAST):
                return f"the output {name!r} is off by {apart(ours[name], array):.2g} of its norm"
        norms = {name: norm(array) for name, array in theirs.gradients.items()}
        floor = _floor(norms.values())
        for name, array in theirs.gradients.items():
            if not math.isfinite(norms[name]):
                continue
            found = ours.get(name + GRADIENT_SUFFIX)
            if found is None and norms[name] > 0:
                return f"{name!r} receives a gradient in PyTorch, and none in the graph"
            if found is None or is_near(found, array, gradient, floor=floor):
                continue
            return f"the gradient of {name!r} is off by {apart(found, array):.2g} of its norm"
        return ""

    def lost(self, theirs: Ran, before: Arrays) -> str:
        """Name the first parameter or buffer that only PyTorch's step changes; "" for none."""
        for name, array in theirs.state.items():
            old = before.get(name)
            if name in self.joint.updated_buffers or is_equal(old, array):
                continue
            if old is None:
                return (
                    f"the step creates {name!r} in its first run: run the module once on the "
                    "inputs before the export, or create it in __init__"
                )
            return f"the step changes {name!r}, and the graph does not return it"
        return ""

    def _wrong_state(self, ours: Arrays, theirs: Ran) -> str:
        """Name the first parameter or buffer with another value after the step; "" for none."""
        _, allowed = self.allowed
        for name in self._changed:
            array = theirs.state[name]
            share = _of(array, allowed)
            if not is_near(ours[name + UPDATED_SUFFIX], array, share, floor=_LEAST):
                return f"{name!r} has another value after the step"
        return ""

    @property
    def _changed(self) -> list[str]:
        """Names of what the step changes, and the graph returns as the step leaves it."""
        return [name for name in self.joint.updated_buffers if name not in self.rewritten]

    @cached_property
    def halves(self) -> set[torch.dtype]:
        """The half-precision types that the step uses."""
        return {value.dtype for value in values_of(self.joint.module.graph)} & HALF

    @cached_property
    def allowed(self) -> tuple[float, float]:
        """The allowed errors of loss and gradients."""
        return (_IN_HALF, _IN_HALF) if self.halves else (_LOSS, _GRADIENT)

    def is_rounding(
        self,
        ours: Arrays,
        theirs: Ran,
        before: Kept,
        inputs: Mapping[str, Tensor],
    ) -> bool:
        """Tell whether rounding explains the difference.

        It does where PyTorch's own step differs as much when its numbers change by a rounding, but
        doesn't differ when they stay the same.
        """
        after = Kept(self.step, copied=True)
        try:
            return self._is_as_far(ours, theirs, before, inputs)
        except Exception:  # values near the inputs may be invalid inputs
            return False
        finally:
            after.put_back()

    def _is_as_far(
        self, ours: Arrays, theirs: Ran, before: Kept, inputs: Mapping[str, Tensor]
    ) -> bool:
        before.put_back()
        again = ran(self.step, inputs, theirs.seed)
        if not is_near(again.loss, theirs.loss, _SAME, floor=0.0):
            return False
        loss, gradient = self.allowed
        least = max([rounding.LEAST, *(torch.finfo(kind).eps for kind in self.halves)])
        buffers = {name + UPDATED_SUFFIX for name in self._changed}
        untrained = {LOSS, *theirs.results, *buffers}
        state = {name + UPDATED_SUFFIX for name in theirs.state}
        expected = {n: a for n, a in theirs.arrays.items() if n not in state or n in buffers}
        by_rounding = rounding.shares(
            self.step, inputs, expected, before=before, seed=theirs.seed, least=least
        )
        floor = _floor(map(norm, theirs.gradients.values()))

        def is_as_far(name: str, array: np.ndarray) -> bool:
            share = loss if name == LOSS or name in theirs.results else gradient
            return name in ours and is_near(
                ours[name],
                array,
                max(_of(array, share), by_rounding[name]),
                floor=_LEAST if name in untrained else floor,
            )

        return all(is_as_far(name, array) for name, array in expected.items())


def _of(array: np.ndarray, share: float) -> float:
    """Return the allowed error of a result as a share of its norm: 0 for integers and booleans."""
    return share if array.dtype.kind not in "biu" else 0.0


def _floor(norms: Iterable[float]) -> float:
    """Return the absolute error allowed for every gradient, given the norms of all."""
    return _OF_ALL * math.hypot(*filter(math.isfinite, norms))
