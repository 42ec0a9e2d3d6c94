"""Effect of rounding on PyTorch's step: its distance from itself under rounding-sized changes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from planner.export.checking.eager import Arrays, ran
from planner.export.checking.norms import apart, norm, off_by
from planner.export.checking.values import rounded
from planner.export.optim import GRADIENT_SUFFIX
from planner.export.trace.lending import Kept
from planner.export.trace.step import TrainingStep

_RUNS = 4

_TIMES, _TOGETHER = 10.0, 2.0
"""Allowed multiples of PyTorch's distance from itself, for an array and for all gradients together.

A ReLU near 0 flips, and moves all gradients before it. Each run flips others, or none.
"""

LEAST = 1e-6
"""Relative change of numbers in float32."""


def shares(
    step: TrainingStep,
    inputs: Mapping[str, Tensor],
    expected: Arrays,
    *,
    before: Kept,
    seed: int,
    least: float,
) -> dict[str, float]:
    """Return how far each array may be from PyTorch's by rounding alone, relative to its norm, by name.

    The step runs a few times, with each number of parameters and inputs changed by about a share of
    `least`.

    Args:
        expected: results of the step without that change.
        before: the module's state before the step.
    """
    worst = dict.fromkeys(expected, 0.0)
    together = 0.0
    gradients = [name for name in expected if name.endswith(GRADIENT_SUFFIX)]
    for number in range(_RUNS):
        generator = torch.Generator().manual_seed(number)
        before.put_back()
        with torch.no_grad():
            for parameter in step.module.parameters():
                parameter.copy_(rounded(parameter, least, generator))
        given = {name: rounded(tensor, least, generator) for name, tensor in inputs.items()}
        found = ran(step, given, seed).arrays
        for name, array in expected.items():
            other = found.get(name, np.zeros_like(array))
            worst[name] = max(worst[name], apart(other, array))
        off = _whole(off_by(found[n], expected[n]) for n in gradients if n in found)
        together = max(together, off / (_whole(norm(expected[n]) for n in gradients) or math.inf))
    return {
        name: max(_TIMES * share, _TOGETHER * together if name in gradients else 0.0)
        for name, share in worst.items()
    }


def _whole(norms: Iterable[float]) -> float:
    """Return the norm of all arrays together; infinite norms are left out."""
    return math.hypot(*filter(math.isfinite, norms))
