"""A step as a function of its tensors, the form that a tracer takes."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from torch import Tensor, nn
from torch.nn.utils.stateless import _reparametrize_module

from planner.export.trace.known import Known
from planner.export.trace.lending import Attributes
from planner.export.trace.specialize import Read, Told
from planner.export.trace.stand_ins import StandIns
from planner.export.trace.step import PREFIX


class Flat(nn.Module):
    """A module that runs a step on tensors registered under flat names (no dots, no ties).

    Args:
        results: names of the step's results, the loss first.
        changed: names of the network's tensors whose values after the step are results, too.
    """

    def __init__(
        self, functional: Functional, results: Sequence[str], changed: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self.functional = functional
        self.results = results
        self.changed = changed
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
        """Return the loss, the other results and changed tensors, the form that the tracer takes."""
        tensors = {name: self._given(flat, name) for flat, name in self.original.items()}
        found = self.functional(tensors, inputs)
        loss, *others = (found[name] for name in self.results)
        left = {**tensors, **self.functional.assigned}
        # Clones: the tracer rejects a result that is an input or occurs twice.
        others += [left[name].detach() for name in self.changed]
        return (loss, *(tensor.clone() for tensor in others))

    def _given(self, flat: str, name: str) -> Tensor:
        """Return a buffer, or a view of a trained tensor, to make its gradient a node of its own.

        `a + b` gives both operands the same gradient, and the tracer rejects a result that occurs twice.
        It rejects writes to a trained tensor, too: the step writes a clone, which passes the gradient on.
        """
        tensor = getattr(self, flat)
        if not tensor.requires_grad:
            return tensor
        return tensor.clone() if name in self.changed else tensor.view(tensor.shape)


class Functional:
    """A step's results as a function of its tensors. It is no Module and holds no parameters.

    The step keeps the tensors of the last call until `close`, because a custom backward pass may run a
    module again. Attributes that the step sets are reset after each call: no tensor leaks from one pass
    of the tracer into the next.

    Attributes:
        assigned: what the last call assigned to buffers (`self.mean = ...`), of the same shape and type.
        known: the values that the last call knew.
        moving: buffers that the step changes, whose values a call does not know.
    """

    def __init__(self, step: nn.Module, reads: Sequence[Read] = ()) -> None:
        self.step = step
        self.reads = reads
        self.assigned: dict[str, Tensor] = {}
        self.known = Known({})
        self.moving: frozenset[str] = frozenset()
        self._swapped = contextlib.ExitStack()

    def __call__(
        self, tensors: Mapping[str, Tensor], inputs: Sequence[Tensor]
    ) -> dict[str, Tensor]:
        named = {PREFIX + name: tensor for name, tensor in tensors.items()}
        told = Told(self.reads) if self.reads else contextlib.nullcontext()
        self.close()
        values = dict(self.step.named_buffers())
        stay = {n: values[p] for n in tensors.keys() - self.moving if (p := PREFIX + n) in values}
        self.known = Known({tensors[n]: (n, value) for n, value in stay.items()})
        self._swapped.enter_context(_reparametrize_module(self.step, named, tie_weights=True))
        before = Attributes(self.step)
        try:
            with StandIns(), self.known, told, self.known.lists_read():
                results = self.step(*inputs)
            self.assigned = {
                name: found
                for name, tensor in tensors.items()
                if (found := _buffer(self.step, PREFIX + name)) is not tensor
                and isinstance(found, Tensor)
                and (found.shape, found.dtype) == (tensor.shape, tensor.dtype)
            }
            return results
        finally:
            before.put_back()

    def close(self) -> None:
        """Restore the step's own tensors."""
        self._swapped.close()


def _buffer(module: nn.Module, name: str) -> Tensor | None:
    """Return what a module holds as its buffer of this name; None where it has none."""
    owner, _, last = name.rpartition(".")
    buffers = dict(module.get_submodule(owner)._buffers.items())  # TorchScript's is no dict
    return buffers.get(last)
