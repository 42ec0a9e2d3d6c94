"""Run a step on shapes alone, to find which parameters receive a gradient and its results."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from planner.export.errors import (
    DataDependentControlFlow,
    ExportError,
    InvalidLoss,
    ModuleFailure,
    ReadOfState,
    TracerFailure,
)
from planner.export.lines import line_of_user
from planner.export.source import FirstUse
from planner.export.trace.functional import Functional
from planner.export.trace.logged import ON_VALUES
from planner.export.trace.returned import LOSS
from planner.export.trace.writes import Writes

_FIRST = '; of a tuple the first is the loss: return (loss, {"name": tensor, ...})'
"""Advice for a wrong loss in a tuple of results."""


@dataclass(frozen=True, slots=True)
class GradientFlow:
    """Gradient flow and results of a step.

    Attributes:
        trained: tensors that receive a gradient, by name.
        constant: all other parameters and buffers, by name.
        first_use: source line of the first call of each operator.
        results: names of the step's results, the loss first.
        changed: trained tensors that the step writes, and buffers that it assigns, by name.
        decided: buffers whose values decided what is traced, by name.
    """

    trained: Mapping[str, Tensor]
    constant: Mapping[str, Tensor]
    first_use: Mapping[str, str]
    results: tuple[str, ...]
    changed: tuple[str, ...] = ()
    decided: tuple[str, ...] = ()


def gradient_flow(
    functional: Functional, module: nn.Module, inputs: Mapping[str, Tensor]
) -> GradientFlow:
    """Run a step on fake tensors; return its gradient flow and results."""
    found, read = _flow(functional, module, inputs)
    if not read:
        return found
    # What is read of a buffer that the step changes may be for a log alone: try without its value.
    functional.moving = frozenset(read)
    try:
        return _flow(functional, module, inputs)[0]
    except DataDependentControlFlow as error:
        name, line = next(iter(read.items()))
        raise ReadOfState(line, name) from error


def _flow(
    functional: Functional, module: nn.Module, inputs: Mapping[str, Tensor]
) -> tuple[GradientFlow, dict[str, str]]:
    """Return the flow, and the buffers that are read and changed, with the lines that read them."""
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    with FakeTensorMode(allow_non_fake_inputs=True):
        tensors = {name: blank(tensor) for name, tensor in {**parameters, **buffers}.items()}
        candidates = [name for name, tensor in parameters.items() if tensor.requires_grad]
        for name in candidates:
            tensors[name].requires_grad_()
        writes = Writes(tensors, functional.step)
        with _failures_named(), FirstUse(module) as uses, writes:
            results = functional(tensors, [blank(tensor) for tensor in inputs.values()])
        left = writes.written | functional.assigned.keys()
        value = results[LOSS]
        if value.dim() or not value.is_floating_point() or not value.requires_grad:
            raise InvalidLoss(
                "the loss must be a floating-point scalar that depends on a parameter to train; "
                f"it is {value.dtype} of shape {list(value.shape)}"
                f"{'' if value.requires_grad else ' and depends on none'}"
                f"{_FIRST if len(results) > 1 else ''}"
            )
        # A step may turn gradients off, as a GAN generator's does for its critic.
        candidates = [name for name in candidates if tensors[name].requires_grad]
        with _failures_named():
            gradients = torch.autograd.grad(
                value, [tensors[name] for name in candidates], allow_unused=True
            )
    reached = {name for name, grad in zip(candidates, gradients, strict=True) if grad is not None}
    trained: dict[str, Tensor] = {}
    constant: dict[str, Tensor] = {}
    for name, tensor in parameters.items():
        (trained if name in reached else constant)[name] = tensor
    changed = {name for name in writes.written if name in trained} | functional.assigned.keys()
    read = functional.known.read
    found = GradientFlow(
        trained, constant | buffers, uses.lines, tuple(results), tuple(sorted(changed)), tuple(read)
    )
    return found, {name: line for name, line in read.items() if name in left}


@contextlib.contextmanager
def _failures_named() -> Iterator[None]:
    """Raise the module's errors and value reads as the exporter's, with the source line."""
    try:
        yield
    except ON_VALUES as error:
        raise data_dependent(error) from error
    except ExportError:
        raise
    except Exception as error:
        line = line_of_user(traceback.extract_tb(error.__traceback__))
        if type(error).__module__.startswith(
            "torch._subclasses"
        ):  # these come only from fake tensors
            raise TracerFailure(line, error) from error
        raise ModuleFailure(line, error) from error


def blank(tensor: Tensor) -> Tensor:
    """Return an empty CPU tensor of the same shape and type; it is fake in a fake mode."""
    return torch.empty(tensor.shape, dtype=tensor.dtype)


def data_dependent(error: Exception) -> DataDependentControlFlow:
    return DataDependentControlFlow(
        line_of_user(traceback.extract_tb(error.__traceback__)), str(error)
    )
