"""One step on shapes alone: which parameters receive a gradient, and what the step returns."""

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
    TracerFailure,
)
from planner.export.lines import line_of_user
from planner.export.source import FirstUse
from planner.export.trace.functional import Functional
from planner.export.trace.logged import ON_VALUES
from planner.export.trace.returned import LOSS

_FIRST = '; of a tuple the first is the loss: return (loss, {"name": tensor, ...})'
"""What to say of a wrong loss among other results."""


@dataclass(frozen=True, slots=True)
class GradientFlow:
    """The tensors that receive a gradient, all others, where operators are first used, and the names of
    the step's results, the loss first."""

    trained: Mapping[str, Tensor]
    constant: Mapping[str, Tensor]
    first_use: Mapping[str, str]
    results: tuple[str, ...]


def gradient_flow(
    functional: Functional, module: nn.Module, inputs: Mapping[str, Tensor]
) -> GradientFlow:
    """What a fake step tells of the gradients and the results."""
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    with FakeTensorMode(allow_non_fake_inputs=True):
        tensors = {name: blank(tensor) for name, tensor in {**parameters, **buffers}.items()}
        candidates = [name for name, tensor in parameters.items() if tensor.requires_grad]
        for name in candidates:
            tensors[name].requires_grad_()
        with _failures_named(), FirstUse(module) as uses:
            results = functional(tensors, [blank(tensor) for tensor in inputs.values()])
        value = results[LOSS]
        if value.dim() or not value.is_floating_point() or not value.requires_grad:
            raise InvalidLoss(
                f"the loss must be a scalar of floating point that depends on a parameter to "
                f"train; it is {value.dtype} of shape {list(value.shape)}"
                f"{'' if value.requires_grad else ' and depends on none'}"
                f"{_FIRST if len(results) > 1 else ''}"
            )
        # a step may switch some off, as a generator's does with its critic
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
    return GradientFlow(trained, constant | buffers, uses.lines, tuple(results))


@contextlib.contextmanager
def _failures_named() -> Iterator[None]:
    """Errors of the module's own, and reads of values, raised as the exporter's, with the line."""
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
        ):  # of tensors without values alone
            raise TracerFailure(line, error) from error
        raise ModuleFailure(line, error) from error


def blank(tensor: Tensor) -> Tensor:
    """A CPU tensor of the same shape and type; fake where a fake mode is active."""
    return torch.empty(tensor.shape, dtype=tensor.dtype)


def data_dependent(error: Exception) -> DataDependentControlFlow:
    return DataDependentControlFlow(
        line_of_user(traceback.extract_tb(error.__traceback__)), str(error)
    )
