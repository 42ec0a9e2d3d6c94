"""One training step as a module: the caller's network and loss, tensors in, the loss out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

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
        by_name: the network takes its tensors as keyword arguments.
        constants: keyword arguments of the network that are no tensors.
    """

    def __init__(
        self,
        module: nn.Module,
        names: tuple[str, ...],
        *,
        targets: int,
        loss: Loss | None,
        by_name: bool = False,
        constants: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.module = module
        self.loss = loss
        self._given = names[: len(names) - targets]
        self._by_name = by_name
        self._constants = dict(constants or {})

    def forward(self, *tensors: Tensor) -> Tensor:
        """The loss."""
        given, targets = tensors[: len(self._given)], tensors[len(self._given) :]
        if self._by_name:
            named = dict(zip(self._given, given, strict=True))
            result = self.module(**named, **self._constants)
        else:
            result = self.module(*given, **self._constants)
        value = self.loss(result, *targets) if self.loss else getattr(result, "loss", result)
        if not isinstance(value, Tensor):
            source = "loss function" if self.loss else "module"
            raise InvalidLoss(
                f"the {source} returns a {type(value).__name__}, not a tensor; "
                "return the scalar loss, or give a loss function"
            )
        return value
