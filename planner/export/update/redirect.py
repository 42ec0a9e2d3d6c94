"""Run a caller's code on fake stand-ins for its tensors.

The code runs unchanged, on its own objects, but none of its tensors is written: when an operator is
called, fake operands replace the real ones.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from planner.export.apart.foreach import PREFIX, one_by_one
from planner.export.errors import DataDependentUpdate
from planner.export.lines import line_of_user

_aten = torch.ops.aten


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """Make PyTorch compute with values within the block, as outside of a trace."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


class Redirected(TorchDispatchMode):
    """A mode that runs operators on stand-ins for their operands.

    Args:
        stand_in: returns the stand-in for a caller's tensor.
        made: called with each new tensor that an operator creates.
    """

    def __init__(
        self, stand_in: Callable[[Tensor], Tensor], made: Callable[[Tensor], None]
    ) -> None:
        super().__init__()
        self._stand_in, self._made = stand_in, made

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "profiler":
            with plainly():
                return func(*args, **(kwargs or {}))
        if func is _aten._local_scalar_dense.default or func in _BY_VALUES:
            raise DataDependentUpdate(line_of_user(traceback.extract_stack()), str(func))
        if torch.Tag.nondeterministic_seeded in func.tags:
            line = line_of_user(traceback.extract_stack())
            raise DataDependentUpdate(line, f"{func} draws at random")
        if func in _FRESH and args[0].numel() == 1 and type(args[0]) is Tensor:
            with plainly():
                value = args[0].item()
            found = _aten.full.default(list(args[0].shape), value, dtype=args[0].dtype)
            self._made(found)
            return found
        args, kwargs = pytree.tree_map_only(Tensor, self._of, (args, kwargs or {}))
        if func in _TAKEN_APART:
            return _TAKEN_APART[func](*args, **kwargs)
        name = func._schema.name.removeprefix("aten::")
        if name.startswith(PREFIX):
            return one_by_one(name, args, kwargs)
        found = func(*args, **kwargs)
        if isinstance(found, Tensor) and not func._schema.is_mutable:
            self._made(found)
        return found

    def _of(self, tensor: Tensor) -> Tensor:
        return tensor if isinstance(tensor, FunctionalTensor) else self._stand_in(tensor)


def _unscale(gradients: list[Tensor], found_inf: Tensor, inverse: Tensor) -> None:
    """Unscale gradients as `GradScaler` does."""
    for gradient in gradients:
        is_bad = torch.isfinite(gradient).logical_not().any()
        found_inf.copy_(torch.maximum(found_inf, is_bad.to(found_inf.dtype)))
        gradient.mul_(inverse)


def _update_scale(
    scale: Tensor, growth: Tensor, found_inf: Tensor, up: float, down: float, interval: int
) -> Tensor:
    """Update the scale as `GradScaler` does: `aten/src/ATen/native/cuda/AmpKernels.cu`."""
    is_bad, counted = found_inf != 0, growth + 1
    is_up = (counted == interval) & torch.isfinite(scale * up)
    is_counted = counted == interval
    grown = torch.where(is_up, scale * up, scale)
    scale.copy_(torch.where(is_bad, scale * down, grown))
    zeros = torch.zeros_like(growth)
    growth.copy_(torch.where(is_bad | is_counted, zeros, counted))
    return scale


_FRESH = frozenset({_aten.lift_fresh.default, _aten.lift_fresh_copy.default})
_BY_VALUES = frozenset({_aten.nonzero.default, _aten._unique2.default, _aten.equal.default})
"""Operators whose result is no tensor, or has a length that depends on values."""

_TAKEN_APART: dict[Any, Callable[..., Any]] = {
    _aten._amp_foreach_non_finite_check_and_unscale_.default: _unscale,
    _aten._amp_update_scale_.default: _update_scale,
}
