"""A step as a function of tensors that are handed to it, as a tracer wants it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from torch import Tensor, nn
from torch.nn.utils.stateless import _reparametrize_module

from planner.export.trace.lending import Attributes
from planner.export.trace.specialize import Read, Told
from planner.export.trace.stand_ins import StandIns
from planner.export.trace.step import PREFIX


class Flat(nn.Module):
    """Runs a step on tensors registered under flat names (no dots, no ties).

    Args:
        results: names of what the step returns, the loss first.
    """

    def __init__(self, functional: Functional, results: Sequence[str]) -> None:
        super().__init__()
        self.functional = functional
        self.results = results
        self.original: dict[str, str] = {}

    def add(self, name: str, tensor: Tensor, *, trained: bool) -> None:
        """Register `tensor` for the network's tensor called `name`."""
        flat = f"tensor_{len(self.original)}"
        self.original[flat] = name
        if trained:
            self.register_parameter(flat, nn.Parameter(tensor))
        else:
            self.register_buffer(flat, tensor)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The loss and the other results, in a tuple as the tracer wants it."""
        tensors = {name: _view(getattr(self, flat)) for flat, name in self.original.items()}
        found = self.functional(tensors, inputs)
        loss, *others = (found[name] for name in self.results)
        # as new tensors: the tracer refuses what is an input, or occurs twice
        return (loss, *(tensor.clone() for tensor in others))


def _view(tensor: Tensor) -> Tensor:
    """A trained tensor through a view, so that its gradient is a node of its own.

    `a + b` hands both the same gradient, and the tracer refuses a result that occurs twice.
    """
    return tensor.view(tensor.shape) if tensor.requires_grad else tensor


class Functional:
    """A step's results as a function of its tensors. Not a Module: holds no parameters itself.

    The step keeps the tensors that it was last called with until `close`: a custom backward pass may
    run a module again. What it sets of its attributes it forgets, so that no tensor of one pass of the
    tracer is in the next.
    """

    def __init__(self, step: nn.Module, reads: Sequence[Read] = ()) -> None:
        self.step = step
        self.reads = reads
        self._swapped = contextlib.ExitStack()

    def __call__(
        self, tensors: Mapping[str, Tensor], inputs: Sequence[Tensor]
    ) -> dict[str, Tensor]:
        named = {PREFIX + name: tensor for name, tensor in tensors.items()}
        told = Told(self.reads) if self.reads else contextlib.nullcontext()
        self.close()
        self._swapped.enter_context(_reparametrize_module(self.step, named, tie_weights=True))
        before = Attributes(self.step)
        try:
            with StandIns(), told:
                return self.step(*inputs)
        finally:
            before.put_back()

    def close(self) -> None:
        """Give the step its own tensors back."""
        self._swapped.close()
