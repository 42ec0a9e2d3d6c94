"""Operators that PyTorch takes apart as it traces: those with no rule of ours and no translation.

`torch._decomp` says how an operator is made of others, for nearly every one of a backward pass. A rule of
ours comes first: it makes fewer nodes, or saves less from forward to backward. Then torchlib, if the
operator has one result; those with more save values that only its own backward operator understands, and
are taken apart together with that. In other types than float32 PyTorch comes before torchlib, which has
some constants as float32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch.utils._pytree import tree_leaves

from planner.export.apart.parts import PARTS
from planner.export.apart.quantize import QUANTIZE
from planner.export.aten import RULES
from planner.export.write import torchlib

_LEADS_NOWHERE = frozenset(
    {
        "any",
        "as_strided_scatter",
        "bessel_j0",
        "cumprod",
        "cumsum",
        "digamma",
        "erfinv",
        "exp2",
        "flip",
        "fmod",
        "i0",
        "index_select",
        "lgamma",
        "nextafter",
        "prod",
        "sign",
        "special_bessel_j0",
        "special_bessel_j1",
        "special_i0e",
        "special_i1",
        "special_i1e",
        "special_ndtri",
        "special_spherical_bessel_j0",
        "special_zeta",
    }
)
"""Taken apart into operators of PyTorch's compiler (`prims`), which nothing translates."""


def decompositions() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """What PyTorch's tracer is to take apart, and how."""
    found: dict[torch._ops.OpOverload, Callable[..., Any]] = {}
    for operator, how in decomposition_table.items():
        if not isinstance(operator, torch._ops.OpOverload) or operator.namespace != "aten":
            continue
        name = str(operator).removeprefix("aten.")
        if name in RULES or name.partition(".")[0] in _LEADS_NOWHERE:
            continue
        is_single = len(operator._schema.returns) == 1
        translated = is_single and torchlib.knows(operator)
        found[operator] = _unless_float32(how) if translated else how
    parts = PARTS | QUANTIZE
    found |= {
        how: made for how, made in parts.items() if str(how).removeprefix("aten.") not in RULES
    }
    return found


def _unless_float32(how: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition that leaves operators on float32, and on no floating point, whole."""

    @functools.wraps(how)
    def decompose(*args: Any, **kwargs: Any) -> Any:
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        kinds = {t.dtype for t in tensors if t.is_floating_point()}
        return how(*args, **kwargs) if kinds - {torch.float32} else NotImplemented

    return decompose
