"""One training step as a module: the caller's network and loss, tensors in, the loss out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from planner.export.errors import InvalidLoss

Loss = Callable[..., Tensor]
"""`loss(the module's result, *targets)` -> scalar."""

PREFIX = "module."
"""What the names of a step's parameters start with: those of the network in it."""


class TrainingStep(nn.Module):
    """Runs a network, then its loss.

    Args:
        module: the network.
        names: of the tensors that the step takes, in order: the network's, then the targets.
        targets: how many of them are targets.
        loss: None where the network returns the loss itself, alone or as `.loss`.
        constants: the network takes its tensors as keyword arguments, and these beside them; None where
            it takes them in order.
        autocast: the half type that `torch.autocast` computes the network and the loss in; None for none.
    """

    def __init__(
        self,
        module: nn.Module,
        names: tuple[str, ...],
        *,
        targets: int,
        loss: Loss | None,
        constants: Mapping[str, Any] | None = None,
        autocast: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.module = module
        self.loss = loss
        self._given = names[: len(names) - targets]
        self._constants = constants
        self._autocast = autocast

    def vary(self, change: Callable[[Any], Any]) -> None:
        """Replace what the network takes beside its tensors by what `change` makes of it."""
        if self._constants is not None:
            self._constants = {name: change(value) for name, value in self._constants.items()}

    def forward(self, *tensors: Tensor) -> Tensor:
        """The loss."""
        if self._autocast is None:
            return self._run(tensors)
        with torch.autocast("cpu", self._autocast):
            return self._run(tensors)

    def _run(self, tensors: tuple[Tensor, ...]) -> Tensor:
        given, targets = tensors[: len(self._given)], tensors[len(self._given) :]
        if self._constants is None:
            result = self.module(*given)
        else:
            named = dict(zip(self._given, given, strict=True))
            result = self.module(**named, **self._constants)
        value = self.loss(result, *targets) if self.loss else getattr(result, "loss", result)
        if not isinstance(value, Tensor):
            source = "loss function" if self.loss else "module"
            raise InvalidLoss(
                f"the {source} returns a {type(value).__name__}, not a tensor; "
                "return the scalar loss, or give a loss function"
            )
        return value
