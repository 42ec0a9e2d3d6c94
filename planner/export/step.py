"""One training step as a module: the caller's network and loss, tensors in, the loss out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from planner.export.errors import InvalidLoss

Loss = Callable[..., Tensor]
"""`loss(the module's result, *targets)` -> scalar."""

PREFIX = "module."
"""What the names of a step's parameters start with: those of the network in it."""


class Held:
    """Keyword arguments that are no tensors, and the tensors within them: in lists, tuples, dicts and
    what else is registered with PyTorch's trees.

    Attributes:
        tensors: by where they are: `{"labels.0.boxes": ...}` in `labels=[{"boxes": ...}]`.
        constants: what else there is, by where it is.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.constants: dict[str, Any] = {}
        self._leaves: list[Any] = []
        self._places: list[int] = []
        leaves, self._tree = pytree.tree_flatten_with_path(dict(arguments))
        for path, leaf in leaves:
            where = ".".join(map(_part, path))
            if not isinstance(leaf, Tensor):
                self.constants[where] = leaf
            else:
                self.tensors[where] = leaf
                self._places.append(len(self._leaves))
            self._leaves.append(leaf)

    def filled(self, tensors: Sequence[Tensor]) -> dict[str, Any]:
        """The arguments with other tensors in them, in the order of `tensors`."""
        leaves = list(self._leaves)
        for place, tensor in zip(self._places, tensors, strict=True):
            leaves[place] = tensor
        return pytree.tree_unflatten(leaves, self._tree)

    def vary(self, change: Callable[[Any], Any]) -> None:
        """Replace what is within them and no input by what `change` makes of it."""
        places = {*self._places}
        self._leaves = [
            leaf if place in places else change(leaf) for place, leaf in enumerate(self._leaves)
        ]


def _part(key: Any) -> str:
    """A step of a path: an index, a key or an attribute's name."""
    for name in ("idx", "key", "name"):
        if hasattr(key, name):
            return str(getattr(key, name))
    return str(key)


class TrainingStep(nn.Module):
    """Runs a network, then its loss.

    Args:
        module: the network.
        names: of the tensors that the step takes, in order: the network's, those in `held`, the targets.
        targets: how many of them are targets.
        loss: None where the network returns the loss itself, alone or as `.loss`.
        held: the network takes its tensors as keyword arguments, and these beside them; None where it
            takes them in order.
        autocast: the half type that `torch.autocast` computes the network and the loss in; None for none.
    """

    def __init__(
        self,
        module: nn.Module,
        names: tuple[str, ...],
        *,
        targets: int,
        loss: Loss | None,
        held: Held | None = None,
        autocast: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.module = module
        self.loss = loss
        within = 0 if held is None else len(held.tensors)
        self._given = names[: len(names) - targets - within]
        self.held = held
        self._within = within
        self.autocast = autocast

    def vary(self, change: Callable[[Any], Any]) -> None:
        """Replace what the network takes beside its tensors by what `change` makes of it."""
        if self.held is not None:
            self.held.vary(change)

    def forward(self, *tensors: Tensor) -> Tensor:
        """The loss."""
        if self.autocast is None:
            return self._run(tensors)
        with torch.autocast("cpu", self.autocast):
            return self._run(tensors)

    def _run(self, tensors: tuple[Tensor, ...]) -> Tensor:
        count = len(self._given)
        given, targets = tensors[:count], tensors[count + self._within :]
        if self.held is None:
            result = self.module(*given)
        else:
            named = dict(zip(self._given, given, strict=True))
            named |= self.held.filled(tensors[count : count + self._within])
            result = self.module(**named)
        value = self.loss(result, *targets) if self.loss else getattr(result, "loss", result)
        if not isinstance(value, Tensor):
            source = "loss function" if self.loss else "module"
            raise InvalidLoss(
                f"the {source} returns a {type(value).__name__}, not a tensor; "
                "return the scalar loss, or give a loss function"
            )
        return value
