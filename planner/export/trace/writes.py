"""Find the tensors that a step writes: the module's own, and others, which a graph cannot keep."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from planner.export.errors import WrittenOutside
from planner.export.lines import line_of_user
from planner.export.trace.step import PREFIX


class Writes(TorchDispatchMode):
    """A mode that records which tensors of a module its operators write.

    Args:
        tensors: fake tensors of the module, by name.
        step: the step, which names the real tensors that are not the module's.
    """

    def __init__(self, tensors: Mapping[str, Tensor], step: nn.Module) -> None:
        super().__init__()
        self._names = {_memory(tensor): name for name, tensor in tensors.items()}
        self._step = step
        self.written: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            for tensor in _written(func, args, kwargs):
                if isinstance(tensor, FakeTensor):
                    self.written.update(filter(None, [self._names.get(_memory(tensor))]))
                elif any(isinstance(t, FakeTensor) for t in pytree.tree_leaves((args, kwargs))):
                    line = line_of_user(traceback.extract_stack())
                    raise WrittenOutside(self._name(tensor), line)
        return func(*args, **kwargs)

    def _name(self, tensor: Tensor) -> str:
        held = {**dict(self._step.named_parameters()), **dict(self._step.named_buffers())}
        for name, other in held.items():
            if not isinstance(other, FakeTensor) and _memory(other) == _memory(tensor):
                return repr(name.removeprefix(PREFIX))
        return f"of shape {list(tensor.shape)}"


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _written(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """Yield the operands that an operator writes."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        yield from (part for part in pytree.tree_leaves(value) if isinstance(part, Tensor))
