"""Python numbers that a loop reads of tensors, kept as tensors: `t.item()` is a float64 of rank 0.

Such a number behaves in arithmetic like a Python number: combined with a tensor of higher rank it does
not change the type, and alone it is computed in float64. If a PyTorch operator requires a number
(`alpha=`, `value=`), the operator is rewritten with a product. `min`, `max` and functions of `math`
return a tensor if they are given one.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import math
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.overrides import TorchFunctionMode

from planner.export.apart.foreach import PREFIX, each
from planner.export.errors import DataDependentUpdate
from planner.export.lines import line_of_user
from planner.export.write.dtypes import HALF

_READS: Mapping[Any, str] = {
    Tensor.__float__: "float()",
    Tensor.__index__: "an index",
    Tensor.__int__: "int()",
    Tensor.tolist: "tolist()",
    Tensor.numpy: "numpy()",
    Tensor.__format__: "a format",
}
"""Functions that convert a tensor to another Python value."""

_MATH: Mapping[str, Callable[..., Any]] = {
    name: getattr(torch, name)
    for name in ("ceil", "cos", "exp", "floor", "log", "pow", "sin", "sqrt", "tan", "tanh")
}
"""PyTorch's counterparts of functions of Python's `math`, by name."""


class Numbers(TorchFunctionMode):
    """A mode that keeps numbers read of tensors as tensors.

    Args:
        decide: function that returns `bool(t)` of a tensor.
    """

    def __init__(self, decide: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self._decide = decide

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.item:
            return number_of(args[0])
        if func is Tensor.__bool__ or func is torch.is_nonzero:
            return self._decide(args[0])
        if func is Tensor.__format__:  # for a log, which shows no value
            return object.__format__(args[0], "")
        if func in _READS:
            raise DataDependentUpdate(
                line_of_user(traceback.extract_stack()), f"{_READS[func]} of a tensor"
            )
        name = getattr(func, "__name__", "")
        if name == "__set__" and func.__self__ is Tensor.data:
            return _assigned(*args)
        listed = _of_each(func)
        if listed.rstrip("_") in _FORMS:
            return self._one_by_one(listed, args, kwargs)
        rewritten = _FORMS.get(name.rstrip("_"))
        if rewritten is not None:
            found = rewritten(*args, **kwargs)
            if found is not NotImplemented:
                return args[0].copy_(found) if name.endswith("_") else found
        return func(*args, **kwargs)

    def _one_by_one(self, name: str, args: Any, kwargs: Any) -> Any:
        """Call a method of tensors for each element of lists."""
        one = getattr(Tensor, name)
        if len(args) > 3:  # addcmul and addcdiv, whose methods take the fourth by name
            args, kwargs = args[:3], {"value": args[3], **kwargs}

        def called(*operands: Any, **options: Any) -> Any:
            return self.__torch_function__(one, (), operands, options)

        found = tuple(each(called, args, kwargs))
        return args[0] if name.endswith("_") else found


def _of_each(func: Any) -> str:
    """Return the name of what a function over lists calls for each element; "" for other functions."""
    name = getattr(func, "__name__", "")
    # PyTorch 2.15's names for torch._foreach_*
    if getattr(func, "__module__", "") == "torch.foreach":
        return name
    return name.removeprefix(PREFIX) if name.startswith(PREFIX) else ""


def _assigned(tensor: Tensor, value: Tensor) -> None:
    """Perform `tensor.data = value` by a copy, since PyTorch cannot do it with fake tensors."""
    if (tensor.shape, tensor.dtype) != (value.shape, value.dtype):
        raise RuntimeError("a tensor's data is replaced by data of another shape or type")
    tensor.detach().copy_(value)


def number_of(tensor: Tensor) -> Tensor:
    """Return the one element of a tensor as a float64 of rank 0."""
    return tensor.detach().reshape(()).to(torch.float64)


def _is_number(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.dim()


def _in_wide(form: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a form that applies only to tensors as numbers and to half-type first operands.

    A half type is computed in float32 and rounded once, as in PyTorch's kernels.
    """

    @functools.wraps(form)
    def wide(x: Any, *args: Any, **kwargs: Any) -> Any:
        is_half = isinstance(x, Tensor) and x.dtype in HALF
        numbers = (*args[_OPERANDS[form.__name__] :], *kwargs.values())
        if "out" in kwargs or not (is_half or any(map(_is_number, numbers))):
            return NotImplemented
        if not is_half:
            return form(x, *args, **kwargs)

        def widened(value: Any) -> Any:
            is_narrow = isinstance(value, Tensor) and value.dtype in HALF
            return value.float() if is_narrow else value

        wider = {key: widened(value) for key, value in kwargs.items()}
        return form(widened(x), *map(widened, args), **wider).to(x.dtype)

    return wide


_OPERANDS = {"_add": 1, "_sub": 1, "_addcmul": 2, "_addcdiv": 2, "_lerp": 1}
"""Number of operands after the first."""


@_in_wide
def _add(x: Any, other: Any, *, alpha: Any = 1) -> Any:
    return x + other * alpha


@_in_wide
def _sub(x: Any, other: Any, *, alpha: Any = 1) -> Any:
    return x - other * alpha


@_in_wide
def _addcmul(x: Any, one: Any, other: Any, *, value: Any = 1) -> Any:
    return x + one * value * other


@_in_wide
def _addcdiv(x: Any, over: Any, under: Any, *, value: Any = 1) -> Any:
    return x + over * value / under


@_in_wide
def _lerp(x: Any, end: Any, weight: Any) -> Any:
    """Interpolate by PyTorch's formula, which is exact at either end."""
    near, far = x + weight * (end - x), end - (end - x) * (1 - weight)
    if isinstance(weight, Tensor):
        return torch.where(weight < 0.5, near, far)
    return near if weight < 0.5 else far


def _full_like(x: Tensor, value: Any, **rest: Any) -> Any:
    return torch.zeros_like(x, **rest) + value if _is_number(value) else NotImplemented


def _full(size: Any, value: Any, **rest: Any) -> Any:
    return torch.zeros(size, **rest) + value if _is_number(value) else NotImplemented


def _clamp(x: Tensor, min: Any = None, max: Any = None, **rest: Any) -> Any:
    """Clamp x without widening its type, even if a bound is a number of a wider type."""
    if rest or not (_is_number(min) or _is_number(max)):
        return NotImplemented
    low = x if min is None else torch.maximum(x, torch.as_tensor(min).to(x.dtype))
    return low if max is None else torch.minimum(low, torch.as_tensor(max).to(x.dtype))


def _as_tensor(value: Any, *, dtype: Any = None, **rest: Any) -> Any:
    if not isinstance(value, Tensor):
        return NotImplemented
    return value.detach().clone() if dtype is None else value.detach().to(dtype)


_FORMS: Mapping[str, Callable[..., Any]] = {
    "add": _add,
    "sub": _sub,
    "addcmul": _addcmul,
    "addcdiv": _addcdiv,
    "lerp": _lerp,
    "full": _full,
    "full_like": _full_like,
    "clamp": _clamp,
    "clip": _clamp,
    "tensor": _as_tensor,
}
"""Rewritten forms, by name, of functions that require a number but are given a tensor.

They return NotImplemented if no number is a tensor.
"""


def _of_several(plain: Callable[..., Any], chosen: Callable[..., Tensor]) -> Callable[..., Any]:
    """Wrap `min` or `max` for several arguments of which one may be a tensor."""

    def several(*args: Any, **kwargs: Any) -> Any:
        if len(args) < 2 or kwargs or not any(map(_is_number, args)):
            return plain(*args, **kwargs)
        tensors = [
            a if isinstance(a, Tensor) else torch.full((), a, dtype=torch.float64) for a in args
        ]
        kind = functools.reduce(torch.promote_types, (t.dtype for t in tensors))
        return functools.reduce(chosen, (t.to(kind) for t in tensors))

    return several


def _of_math(name: str) -> Callable[..., Any]:
    plain, ours = getattr(math, name), _MATH[name]

    def function(*args: Any) -> Any:
        if not any(isinstance(arg, Tensor) for arg in args):
            return plain(*args)
        return ours(*(number_of(arg) if isinstance(arg, Tensor) else arg for arg in args))

    return function


def _as_key(tensor: Tensor) -> int:
    """Return the hash of a tensor; raise for a number, which no set or dict would find."""
    if tensor.dim():
        return id(tensor)
    raise DataDependentUpdate(
        line_of_user(traceback.extract_stack()),
        "a number that is looked up in a set or a dict, as MultiStepLR does; look it up in a "
        "list or a tuple, or use ==",
    )


@contextlib.contextmanager
def python_takes_tensors() -> Iterator[None]:
    """Make `min`, `max` and `math` accept tensors, and reject numbers as keys, in the block."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(FunctionalTensor, "__hash__", _as_key))
        for name, chosen in (("min", torch.minimum), ("max", torch.maximum)):
            several = _of_several(getattr(builtins, name), chosen)
            stack.enter_context(mock.patch.object(builtins, name, several))
        for name in _MATH:
            stack.enter_context(mock.patch.object(math, name, _of_math(name)))
        yield
