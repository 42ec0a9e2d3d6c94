"""Whether a step of the graph gives what PyTorch gives: loss, results, gradients, and what it leaves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
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
"""How far apart loss and gradients may be, by the norm of PyTorch's, and either in half precision."""

_LEAST = 1e-6
"""By which loss, other results and buffers may be off in any case."""

_OF_ALL = 1e-5
"""By which a gradient may be off, by the norm of all gradients together."""

_SAME = 1e-5
"""How far two runs of PyTorch's with the same numbers may be apart, by the order of its threads."""


def values_of(graph: fx.Graph) -> Iterator[Tensor]:
    """All tensors of a traced graph."""
    for node in graph.nodes:
        found = node.meta.get("val")
        for value in found if isinstance(found, tuple | list) else (found,):
            if isinstance(value, Tensor):
                yield value


@dataclass(frozen=True, kw_only=True)
class StepJudge:
    """Compares a step of both."""

    step: TrainingStep
    joint: JointGraph

    def wrong(self, ours: Arrays, theirs: Ran) -> str:
        """Say what is not the same, of loss, results and gradients first; "" for nothing."""
        return self._wrong_numbers(ours, theirs) or self._wrong_state(ours, theirs)

    def _wrong_numbers(self, ours: Arrays, theirs: Ran) -> str:
        """The first of loss, other results and gradients that is not the same; "" where all are. A
        gradient that is not finite in PyTorch says nothing.
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
        """The first parameter or buffer that the step changes, and the graph does not; "" for none."""
        for name, array in theirs.state.items():
            old = before.get(name)
            if name in self.joint.updated_buffers or is_equal(old, array):
                continue
            if old is None:
                return (
                    f"the step makes {name!r} as it first runs: run the module once on the inputs "
                    "before the export, or make it in __init__"
                )
            return f"the step changes {name!r}, and the graph does not return it"
        return ""

    def _wrong_state(self, ours: Arrays, theirs: Ran) -> str:
        """The first parameter or buffer that has another value behind the step; "" where none has."""
        _, allowed = self.allowed
        for name in self.joint.updated_buffers:
            array = theirs.state[name]
            share = _of(array, allowed)
            if not is_near(ours[name + UPDATED_SUFFIX], array, share, floor=_LEAST):
                return f"{name!r} has another value behind the step"
        return ""

    @cached_property
    def halves(self) -> set[torch.dtype]:
        """The types of half precision in the step."""
        return {value.dtype for value in values_of(self.joint.module.graph)} & HALF

    @cached_property
    def allowed(self) -> tuple[float, float]:
        """How far loss and gradients may be apart."""
        return (_IN_HALF, _IN_HALF) if self.halves else (_LOSS, _GRADIENT)

    def is_rounding(
        self,
        ours: Arrays,
        theirs: Ran,
        before: Kept,
        inputs: Mapping[str, Tensor],
    ) -> bool:
        """Whether PyTorch's step is as far from itself, where its numbers change by a rounding: not
        where it is so with the same numbers, too."""
        after = Kept(self.step, copied=True)
        try:
            return self._is_as_far(ours, theirs, before, inputs)
        except Exception:  # what is near the inputs may be none
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
        buffers = {name + UPDATED_SUFFIX for name in self.joint.updated_buffers}
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
    """How far a result may be apart, by its norm: whole numbers and booleans not at all."""
    return share if array.dtype.kind not in "biu" else 0.0


def _floor(norms: Iterable[float]) -> float:
    """By which any gradient may be off, given the norms of all."""
    return _OF_ALL * math.hypot(*filter(math.isfinite, norms))
