"""Stand-ins for values that a step reads for a log, which a trace does not have."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._pytree import tree_leaves

from planner.export.errors import DataDependentControlFlow
from planner.export.lines import line_of_user

ON_VALUES = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
)
"""Errors that a trace on shapes raises when it needs a value."""


class Logged:
    """A stand-in for numbers read of a tensor, or for a result of them.

    It replaces the result of `x.item()` or `x.detach().numpy()`, say. It may be kept, shown and computed
    with. Using it in a tensor, a branch, a Python number or another library's function raises an error
    with the line that read it.
    """

    def __init__(self, line: str) -> None:
        self._line = line

    @staticmethod
    def of(tensor: Tensor) -> Logged:
        """Return a stand-in for a tensor's values."""
        del tensor
        return Logged(line_of_user(traceback.extract_stack()))

    @staticmethod
    def read(func: Callable[..., Any], tensor: Tensor) -> Any:
        """Return the result of a function that reads numbers if they are known, else a stand-in."""
        try:
            found = func(tensor)
        except ON_VALUES:
            return Logged.of(tensor)
        unknown = (torch.SymBool, torch.SymFloat, torch.SymInt)
        is_known = not any(isinstance(number, unknown) for number in tree_leaves(found))
        return found if is_known else Logged.of(tensor)

    @staticmethod
    def refused(tensor: Tensor) -> Any:
        """Raise DataDependentControlFlow: another library is given a tensor."""
        Logged.of(tensor)._goes_on()

    def _goes_on(self, *_: Any, **__: Any) -> Any:
        raise DataDependentControlFlow(
            self._line,
            "a number read from a tensor decides what is computed, or enters the computation; "
            "move computation that PyTorch does not do outside the step, and pass its result as "
            "a target",
        )

    def _more(self, *_: Any, **__: Any) -> Logged:
        return self

    def __getattr__(self, name: str) -> Logged:
        if name.startswith("__"):  # protocols look these up, NumPy's among them
            raise AttributeError(name)
        return self

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del func, types
        given = [*args, *(kwargs or {}).values()]
        next(value for value in given if isinstance(value, cls))._goes_on()

    def __repr__(self) -> str:
        return "<a value of the step>"

    def __format__(self, _: str) -> str:
        return repr(self)

    __call__ = __getitem__ = __add__ = __radd__ = __sub__ = __rsub__ = _more
    __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __pow__ = __neg__ = __abs__ = __round__ = (
        _more
    )
    __array__ = __bool__ = __float__ = __int__ = __index__ = __iter__ = __len__ = _goes_on
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = _goes_on
    __hash__ = object.__hash__
