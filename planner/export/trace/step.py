"""One training step as a module: tensors in; the loss and the loss function's other results out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch import _dynamo as dynamo
from torch._dynamo import OptimizedModule
from torch.jit._script import RecursiveScriptModule
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy

from planner.errors import UsageError
from planner.export.arguments import Arguments
from planner.export.trace.returned import LOSS, tensors_in

Loss = Callable[..., Any]
"""Function `loss(the module's result, *targets)`, which returns a scalar or one with other tensors.

See `planner.export.trace.returned` for the forms of its result.
"""

PREFIX = "module."
"""Prefix of the names of the network's parameters in a step."""


class TrainingStep(nn.Module):
    """A module that runs a network, then its loss.

    Args:
        module: the network.
        inputs: arguments of the network; their tensors come first among the step's arguments.
        targets: arguments of the loss, after the network's result; their tensors come next.
        loss: the loss function. None if the network returns the loss itself; of a result with `.loss`,
            only that is used.
        autocast: the half type that `torch.autocast` computes the network and the loss in; None for none.
    """

    def __init__(
        self,
        module: nn.Module,
        inputs: Arguments,
        targets: Arguments,
        loss: Loss | None,
        *,
        autocast: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.module = module
        self.loss = loss
        self._inputs = inputs
        self._targets = targets
        self._differentiable = [
            tensor.requires_grad for tensor in (*inputs.tensors.values(), *targets.tensors.values())
        ]
        self.autocast = autocast

    @property
    def constants(self) -> dict[str, Any]:
        """Non-tensor values in the arguments of the network and the loss, by path."""
        return {**self._inputs.constants, **self._targets.constants}

    def in_evaluation(self) -> tuple[str, ...]:
        """Return the names of submodules in evaluation mode if the network itself is in training mode."""
        parts = self.module.named_modules() if self.module.training else ()
        return tuple(name for name, part in parts if not part.training)

    def train(self, mode: bool = True) -> TrainingStep:
        """Set the mode as in any module, but keep such submodules in evaluation mode."""
        kept = [self.module.get_submodule(name) for name in self.in_evaluation()]
        super().train(mode)
        for part in kept:
            part.training = False
        return self

    def forward(self, *tensors: Tensor) -> dict[str, Tensor]:
        """Return the loss, as `loss`, then the other results by name."""
        # New leaves: the module may ask for the gradients of its inputs (requires_grad_).
        own = [
            tensor if tensor.requires_grad else tensor.detach().requires_grad_(is_wanted)
            for tensor, is_wanted in zip(tensors, self._differentiable, strict=True)
        ]
        half = self.autocast
        autocast = contextlib.nullcontext() if half is None else torch.autocast("cpu", half)
        # Functions compiled with torch.compile run uncompiled, also under a trace.
        traced = dynamo.config.patch(error_on_nested_fx_trace=False)
        with torch.compiler.set_stance("force_eager"), traced, autocast:
            return self._run(own)

    def _run(self, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
        count = len(self._inputs.tensors)
        result = self._inputs.call(self.module, tensors[:count])
        if self.loss is not None:
            value = self._targets.call(self.loss, tensors[count:], result)
            return tensors_in(value, "loss function")
        # Ignore the library's other results: logits, hidden states and caches.
        loss = getattr(result, LOSS, None)
        return tensors_in(result if loss is None else loss, "module")


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the module inside DataParallel, DistributedDataParallel and `torch.compile` wrappers.

    Raises:
        UsageError: a lazy module has not run yet, or the module is TorchScript.
    """
    while isinstance(module, DataParallel | DistributedDataParallel | OptimizedModule):
        module = module._orig_mod if isinstance(module, OptimizedModule) else module.module
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(tensor):
            raise UsageError(
                f"{name!r} belongs to a lazy module and has no shape yet: run the module once on "
                "the example inputs before the export"
            )
    for name, part in module.named_modules():
        holds = not name or any(True for _ in part.children())
        if isinstance(part, RecursiveScriptModule) and holds:
            raise UsageError(
                f"{repr(name) if name else 'the module'} is TorchScript (torch.jit.script), whose "
                "parameters cannot be replaced by traced ones: give the nn.Module that it was made of"
            )
    return module
