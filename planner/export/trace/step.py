"""One training step as a module: the caller's network and loss, tensors in, the loss out, and whatever
else the loss function returns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch import _dynamo as dynamo

from planner.export.arguments import Arguments
from planner.export.trace.returned import LOSS, tensors_in

Loss = Callable[..., Any]
"""`loss(the module's result, *targets)` -> scalar, or one with other tensors: see
`planner.export.trace.returned`."""

PREFIX = "module."
"""What the names of a step's parameters start with: those of the network in it."""


class TrainingStep(nn.Module):
    """Runs a network, then its loss.

    Args:
        module: the network.
        inputs: of the network; the tensors in them come first among those that the step takes.
        targets: of the loss, behind the network's result; theirs come next.
        loss: None where the network returns the loss itself: of an object with `.loss` that alone.
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
        """What network and loss take beside tensors, by where it is."""
        return {**self._inputs.constants, **self._targets.constants}

    def in_evaluation(self) -> tuple[str, ...]:
        """Names of the network's parts that are in evaluation mode where the network itself trains."""
        parts = self.module.named_modules() if self.module.training else ()
        return tuple(name for name, part in parts if not part.training)

    def train(self, mode: bool = True) -> TrainingStep:
        """As of any module, but that such parts stay in evaluation mode."""
        kept = [self.module.get_submodule(name) for name in self.in_evaluation()]
        super().train(mode)
        for part in kept:
            part.training = False
        return self

    def forward(self, *tensors: Tensor) -> dict[str, Tensor]:
        """The loss, as `loss`, then other results by their names."""
        # leaves of the step's own: the module may ask for their gradients (requires_grad_)
        own = [
            tensor if tensor.requires_grad else tensor.detach().requires_grad_(is_wanted)
            for tensor, is_wanted in zip(tensors, self._differentiable, strict=True)
        ]
        half = self.autocast
        autocast = contextlib.nullcontext() if half is None else torch.autocast("cpu", half)
        # what torch.compile made within the step runs as it was written, under a trace too
        traced = dynamo.config.patch(error_on_nested_fx_trace=False)
        with torch.compiler.set_stance("force_eager"), traced, autocast:
            return self._run(own)

    def _run(self, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
        count = len(self._inputs.tensors)
        result = self._inputs.call(self.module, tensors[:count])
        if self.loss is not None:
            value = self._targets.call(self.loss, tensors[count:], result)
            return tensors_in(value, "loss function")
        # a library's result has logits, hidden states and caches that nobody asked for
        loss = getattr(result, LOSS, None)
        return tensors_in(result if loss is None else loss, "module")
