"""Select the operators that PyTorch decomposes while it traces.

`torch._decomp` has a decomposition for nearly every operator of a backward pass. A rule of ours has
priority: it makes fewer nodes, or saves less from forward to backward. Next comes torchlib, if the
operator has one result; an operator with more results saves values that only its own backward operator
reads, and both are decomposed together. For other types than float32, PyTorch's decomposition precedes
torchlib, which has some constants as float32.
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
"""Operators with decompositions into `prims` of PyTorch's compiler, which nothing lowers."""


def decompositions() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """Return the decompositions that PyTorch's tracer applies, by operator."""
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
    """Wrap a decomposition to leave operators whole if all their floats are float32."""

    @functools.wraps(how)
    def decompose(*args: Any, **kwargs: Any) -> Any:
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        kinds = {t.dtype for t in tensors if t.is_floating_point()}
        return how(*args, **kwargs) if kinds - {torch.float32} else NotImplemented

    return decompose
