"""Values that a trace on shapes knows all the same: of constants, of buffers that the step leaves as they
are, and of what follows from these alone.

`similar[~torch.eye(n, dtype=torch.bool)]` picks elements by a mask that is the same at every step. The
mode computes such tensors beside the trace, and gives their values where Python or an index needs them.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

from planner.export.lines import line_of_user

_MOST = 1 << 22
"""Number of elements above which a tensor is not computed beside the trace."""

_FACTORIES: frozenset[Any] = frozenset(
    {
        torch.arange, torch.as_tensor, torch.eye, torch.full, torch.linspace, torch.ones, torch.tensor,
        torch.tril_indices, torch.triu_indices, torch.zeros,
    }
)  # fmt: skip
_LIKE: frozenset[Any] = frozenset(
    {
        Tensor.new_full, Tensor.new_ones, Tensor.new_zeros, torch.full_like, torch.ones_like,
        torch.zeros_like,
    }
)  # fmt: skip
"""Functions that take of their tensor the shape and type alone."""

_READERS: frozenset[Any] = frozenset(
    {
        Tensor.__bool__, Tensor.__float__, Tensor.__index__, Tensor.__int__, Tensor.argwhere, Tensor.item,
        Tensor.nonzero, Tensor.tolist, Tensor.unique, torch.argwhere, torch.combinations, torch.nonzero,
        torch.unique,
    }
)  # fmt: skip
"""Functions that need values: their result is a number, or has a length that depends on them."""

_BY_MASK: frozenset[Any] = frozenset(
    {Tensor.__getitem__, Tensor.masked_select, torch.masked_select, Tensor.__setitem__}
)
_OUTSIDE = ""
"""Name of a tensor that is no buffer, among the names of buffers."""


@dataclass(frozen=True, slots=True)
class _Value:
    """A known value, and the names of the buffers that it is made of, or `_OUTSIDE`."""

    value: Tensor
    of: frozenset[str] = frozenset()


class Known(TorchFunctionMode):
    """A mode that follows known values.

    Args:
        buffers: the name and value of each buffer, by the trace's stand-in for it.

    Attributes:
        read: buffers whose values decided what is traced, and the line that read them.
    """

    def __init__(self, buffers: Mapping[Tensor, tuple[str, Tensor]]) -> None:
        super().__init__()
        self.read: dict[str, str] = {}
        self._held: Any = WeakIdKeyDictionary()
        for traced, (name, value) in buffers.items():
            if _is_traced(traced) and not value.is_meta and value.numel() <= _MOST:
                self._held[traced] = _Value(
                    _plainly(Tensor.detach, (value,), {}), frozenset({name})
                )

    def lists_read(self) -> contextlib.AbstractContextManager[Any]:
        """Make the tracer's tensors give known lists within the block: their `tolist` passes by modes."""
        unknown = FunctionalTensor.tolist

        def tolist(tensor: FunctionalTensor) -> Any:
            known = tensor in self._held
            return (
                self.__torch_function__(Tensor.tolist, (), (tensor,)) if known else unknown(tensor)
            )

        return mock.patch.object(FunctionalTensor, "tolist", tolist)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        needs_values = func in _READERS or (func is torch.where and len(args) + len(kwargs) == 1)
        if needs_values and args and (known := self._held.get(args[0])) is not None:
            self._note(known)
            return _plainly(func, (known.value, *args[1:]), kwargs)
        if func is Tensor.__iter__:
            return iter(self.__torch_function__(Tensor.unbind, types, args))
        if func in _BY_MASK and len(args) > 1:
            args = (args[0], self._with_masks(args[1]), *args[2:])
        found = func(*args, **kwargs)
        if _writes(func, kwargs):
            self._write(func, args, kwargs)
        else:
            tensors = [t for t in pytree.tree_leaves(found) if isinstance(t, Tensor)]
            if tensors and all(map(_is_traced, tensors)):
                self._follow(func, args, kwargs, tensors)
        return found

    def _with_masks(self, index: Any) -> Any:
        """Return an index with the values of known masks in place of the masks."""
        if isinstance(index, tuple):
            return tuple(map(self._with_masks, index))
        known = self._held.get(index) if isinstance(index, Tensor) else None
        if known is None or known.value.dtype != torch.bool or not known.value.dim():
            return index
        self._note(known)
        return _plainly(Tensor.clone, (known.value,), {})

    def _note(self, known: _Value) -> None:
        line = line_of_user(traceback.extract_stack())
        self.read |= dict.fromkeys(known.of - {_OUTSIDE}, line)

    def _follow(self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> None:
        """Compute a function's results beside the trace, where its operands are known."""
        is_made = func in _FACTORIES or func in _LIKE
        operands = [p for p in pytree.tree_leaves((args, kwargs)) if isinstance(p, Tensor)]
        if not (is_made or operands) or not _has_plain_sizes((args, kwargs, tensors)):
            return
        given = self._values(func, args, kwargs)
        if given is None:
            return
        (args, kwargs), of = given
        made = _computed(func, args, kwargs)
        values = [t for t in pytree.tree_leaves(made) if isinstance(t, Tensor)]
        if len(values) == len(tensors):
            for traced, value in zip(tensors, values, strict=True):
                self._held[traced] = _Value(value, of)

    def _values(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, frozenset[str]] | None:
        """Return arguments with values in place of tensors, and what they are of; None if not all are."""
        leaves, tree = pytree.tree_flatten((args, kwargs))
        of: frozenset[str] = frozenset()
        for at, leaf in enumerate(leaves):
            if not isinstance(leaf, Tensor):
                continue
            known = self._held.get(leaf)
            if func in _LIKE and known is None:
                known = _Value(_blank(leaf))
            elif known is None and not (_is_traced(leaf) or leaf.is_meta):
                known = _Value(leaf, frozenset({_OUTSIDE}))
            if known is None or known.value.numel() > _MOST:
                return None
            leaves[at], of = known.value, of | known.of
        return pytree.tree_unflatten(leaves, tree), of

    def _write(self, func: Any, args: Any, kwargs: Any) -> None:
        """Follow a write: compute it, too, on a value of this mode's own, or forget the tensor."""
        given = self._values(func, args, kwargs) if _has_plain_sizes((args, kwargs)) else None
        if given is not None and not given[1]:
            (values, options), _ = given
            if _computed(func, values, options) is not _FAILED:
                return
        for tensor in pytree.tree_leaves((args[:1], kwargs.get("out"))):
            if isinstance(tensor, Tensor) and tensor in self._held:
                self._forget(self._held[tensor].value)

    def _forget(self, value: Tensor) -> None:
        memory = value.untyped_storage()._cdata
        for tensor, known in list(self._held.items()):
            if known.value.untyped_storage()._cdata == memory:
                del self._held[tensor]


_FAILED = object()
_is_functional: Callable[[Tensor], bool] = torch.__dict__["_is_functional_tensor"]


def _computed(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Return a function's result on values; `_FAILED` where it fails, or draws random numbers."""
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
        before = torch.get_rng_state()
        try:
            found = func(*args, **kwargs)
        except Exception:  # the trace's own error says more
            found = _FAILED
        if not torch.equal(before, torch.get_rng_state()):
            torch.set_rng_state(before)
            return _FAILED
    return found


def _plainly(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
        return func(*args, **kwargs)


def _blank(tensor: Tensor) -> Tensor:
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        return torch.empty(tuple(tensor.shape), dtype=tensor.dtype)


def _is_traced(tensor: Tensor) -> bool:
    return type(tensor) is not Tensor or _is_functional(tensor)


def _has_plain_sizes(held: Any) -> bool:
    """Tell whether no number or shape is symbolic."""
    return all(map(_is_plain, _numbers(held)))


def _numbers(held: Any) -> Iterator[Any]:
    for leaf in pytree.tree_leaves(held):
        yield from leaf.shape if isinstance(leaf, Tensor) else (leaf,)


def _is_plain(number: Any) -> bool:
    return not isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool)


def _writes(func: Any, kwargs: Mapping[str, Any]) -> bool:
    """Tell whether a function writes its first operand, or `out`."""
    if isinstance(func, torch._ops.OpOverload):
        return func._schema.is_mutable
    name = str(getattr(func, "__name__", ""))
    is_in_place = name.endswith("_") and not name.endswith("__")
    is_assignment = name == "__setitem__" or name in _IN_PLACE
    has_out = kwargs.get("out") is not None or bool(kwargs.get("inplace"))
    return is_in_place or is_assignment or has_out or name == "__set__"


_IN_PLACE = frozenset(
    f"__i{name}__"
    for name in ("add", "sub", "mul", "div", "truediv", "floordiv", "mod", "pow", "and", "or", "xor",
                 "lshift", "rshift")
)  # fmt: skip
