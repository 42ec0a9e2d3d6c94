"""One training step in eager PyTorch: its loss, gradients, state and random numbers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from planner.export.checking.draws import Draws
from planner.export.optim import GRADIENT_SUFFIX, UPDATED_SUFFIX
from planner.export.trace.contexts import on_cpu
from planner.export.trace.returned import LOSS
from planner.export.trace.step import TrainingStep
from planner.export.update.traced import tensors_of
from planner.export.write.dtypes import array_of

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """The result of one step.

    Attributes:
        results: results of the loss function other than the loss.
        gradients: gradients by parameter, of the module's parameters only.
        state: every parameter and buffer after the step.
        leaves: parameters and other tensors that received a gradient, by identity.
    """

    loss: np.ndarray
    results: Arrays
    gradients: Arrays
    state: Arrays
    draws: Draws
    seed: int
    leaves: dict[int, Tensor] = field(default_factory=dict)

    @property
    def arrays(self) -> Arrays:
        """Loss, results, gradients and state under the names of the graph's outputs."""
        gradients = {name + GRADIENT_SUFFIX: array for name, array in self.gradients.items()}
        state = {name + UPDATED_SUFFIX: array for name, array in self.state.items()}
        return {LOSS: self.loss, **self.results, **gradients, **state}


def ran(step: TrainingStep, inputs: Mapping[str, Tensor], seed: int) -> Ran:
    """Run a step and its backward pass, which updates its module's state.

    Args:
        seed: seed of PyTorch's, NumPy's and Python's random numbers.
    """
    module = step.module
    step.zero_grad(set_to_none=True)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  # the generator that a module draws from
    torch.manual_seed(seed)
    with on_cpu(), Draws() as draws:
        results = step(*(tensor.detach().clone() for tensor in inputs.values()))
    loss = results.pop(LOSS)
    returned = {name: array_of(tensor).copy() for name, tensor in results.items()}
    leaves = {id(leaf): leaf for leaf in _leaves(loss)}
    loss.backward()
    gradients = {
        name: array_of(parameter.grad.to_dense())
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
    return Ran(
        loss=array_of(loss),
        results=returned,
        gradients=gradients,
        state={name: array_of(t).copy() for name, t in tensors_of(module).items()},
        draws=draws,
        seed=seed,
        leaves=leaves,
    )


def _leaves(loss: Tensor) -> Iterator[Tensor]:
    """Yield the leaf tensors of the loss's autograd graph."""
    seen: set[object] = set()
    waiting = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor):
            yield variable
        waiting += [following for following, _ in node.next_functions]
