"""Operators on lists of tensors (`torch._foreach_mul_`), as one operator for each element."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

PREFIX = "_foreach_"


def one_by_one(name: str, args: Any, kwargs: Any) -> Any:
    """Run an operator on lists, by its name, as one operator for each element.

    Returns the results as a list; None of an operator that writes its first operand.
    """
    results = each(getattr(torch.ops.aten, name.removeprefix(PREFIX)), args, kwargs)
    return None if name.endswith("_") else results


def each(one: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> list[Any]:
    """Call a function for each element of the lists among its operands; return its results."""
    count = max(len(arg) for arg in args if isinstance(arg, list | tuple))

    def at(value: Any, index: int) -> Any:
        is_many = isinstance(value, list | tuple) or (isinstance(value, Tensor) and value.dim())
        return value[index] if is_many else value

    return [
        one(*(at(arg, i) for arg in args), **{key: at(v, i) for key, v in kwargs.items()})
        for i in range(count)
    ]
