"""Operators on lists of tensors (`torch._foreach_mul_`), as one operator for each element."""

from __future__ import annotations

from typing import Any

import torch

PREFIX = "_foreach_"


def one_by_one(name: str, args: Any, kwargs: Any) -> Any:
    """Run an operator on lists, by its name, as one operator for each element.

    Returns the results as a list; None of an operator that writes its first operand.
    """
    operator = getattr(torch.ops.aten, name.removeprefix(PREFIX))
    count = max(len(arg) for arg in args if isinstance(arg, list | tuple))

    def at(value: Any, index: int) -> Any:
        return value[index] if isinstance(value, list | tuple) else value

    results = [
        operator(*(at(arg, i) for arg in args), **{key: at(v, i) for key, v in kwargs.items()})
        for i in range(count)
    ]
    return None if name.endswith("_") else results
