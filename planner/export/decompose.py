"""Operators that PyTorch takes apart as it traces: those with no rule of ours and no translation.

`torch._decomp` says how an operator is made of others, for nearly every one of a backward pass. A rule of
ours comes first: it makes fewer nodes, or saves less from forward to backward. Then torchlib, if the
operator has one result; those with more save values that only its own backward operator understands, and
are taken apart together with that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import decomposition_table

from planner.export import torchlib
from planner.export.aten import RULES

_LEADS_NOWHERE = frozenset(
    {
        "amin",
        "any",
        "as_strided_scatter",
        "bessel_j0",
        "cumprod",
        "cumsum",
        "digamma",
        "erfinv",
        "flip",
        "index_select",
        "lgamma",
        "prod",
        "sort",
        "special_bessel_j0",
        "special_bessel_j1",
        "special_i0e",
        "special_i1",
    }
)
"""Taken apart into operators of PyTorch's compiler (`prims`), which nothing translates."""


def decompositions() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """What PyTorch's tracer is to take apart, and how."""
    return {
        operator: how
        for operator, how in decomposition_table.items()
        if isinstance(operator, torch._ops.OpOverload)
        and operator.namespace == "aten"
        and _is_taken_apart(operator)
    }


def _is_taken_apart(operator: torch._ops.OpOverload) -> bool:
    name = str(operator).removeprefix("aten.")
    if name in RULES or name.partition(".")[0] in _LEADS_NOWHERE:
        return False
    is_single = len(operator._schema.returns) == 1
    return not (is_single and torchlib.knows(operator))
