"""Gradients as an update uses them: a graph has those of a single step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from planner.export.errors import UpdateRefused
from planner.export.update.traced import lent_gradients


class Gradients:
    """Lends a module its gradients for each traced path of an update, and records how they are used.

    Args:
        lent: gradients by parameter.
    """

    def __init__(self, module: nn.Module, lent: Mapping[str, Tensor]) -> None:
        self._module, self._lent = module, lent
        self._dropped: set[str] = set()  # set to None or zero on some path
        self._left: set[str] = set()  # neither read nor changed on some path

    @contextlib.contextmanager
    def watched(self, run: Any) -> Iterator[None]:
        """Give the module its gradients while the update runs in the block, and note how it uses them.

        Raises:
            UpdateRefused: the update freezes or unfreezes parameters.
        """
        trained = {name: p.requires_grad for name, p in self._module.named_parameters()}
        try:
            with lent_gradients(self._module, self._lent):
                yield
                self._note(run)
            for name, parameter in self._module.named_parameters():
                if parameter.requires_grad != trained[name]:
                    raise UpdateRefused(
                        f"it sets requires_grad of {name!r}, and a graph always trains the same "
                        "parameters: export one graph for each phase"
                    )
        finally:
            for name, parameter in self._module.named_parameters():
                parameter.requires_grad_(trained[name])

    def _note(self, run: Any) -> None:
        for name, lent in self._lent.items():
            gradient = self._module.get_parameter(name).grad
            if gradient is None or run.is_zero(gradient):
                self._dropped.add(name)
            elif gradient is lent and not run.has_met(lent):
                self._left.add(name)

    def check(self) -> None:
        """Raise UpdateRefused if one path drops a gradient that another leaves for the next call."""
        for name in self._lent:
            if name in self._dropped & self._left:
                raise UpdateRefused(
                    f"it adds up the gradient of {name!r} over several calls (it calls zero_grad "
                    "in one branch only), and a graph has the gradient of one step: add p.grad "
                    "to a tensor of your own, and zero that one"
                )
