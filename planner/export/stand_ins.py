"""Functions of PyTorch that no trace on shapes gets through, made of others that do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from planner.export.ctc import ctc_loss
from planner.export.losses import gaussian_nll_loss, multilabel_margin_loss
from planner.export.sampling import grid_sample

_GROUPED: Any = torch.__dict__["_grouped_mm"]
"""What `torch.nn.functional.grouped_mm` calls."""


class StandIns(TorchFunctionMode):
    """Calls what stands in for a function, where there is something."""

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        called: Callable[..., Any] = _INSTEAD.get(func) or func
        return called(*args, **(kwargs or {}))


def _grouped_mm(
    rows: Tensor, weights: Tensor, offs: Tensor | None = None, *others: Any, **more: Any
) -> Tensor:
    """Each row by the matrix of its group: [rows, in], [groups, in, out] -> [rows, out].

    PyTorch's own takes as long as one group does, but its shapes depend on how many rows each has.
    Here every matrix meets all rows, those of other groups as zeros, which change no sum.

    Args:
        offs: where each group's rows end, [groups]; rows behind the last are 0.
    """
    is_plain = rows.dim() == 2 and weights.dim() == 3
    if offs is None or not is_plain or any(v is not None for v in (*others, *more.values())):
        return _GROUPED(rows, weights, offs, *others, **more)
    place = torch.arange(rows.shape[0], device=rows.device).unsqueeze(1)
    zero = torch.zeros((), dtype=rows.dtype, device=rows.device)
    out, start = None, torch.zeros_like(offs[:1])
    for group in range(weights.shape[0]):
        end = offs[group : group + 1]
        inside = (place >= start) & (place < end)
        found = torch.where(inside, rows, zero) @ weights[group]
        out, start = found if out is None else out + found, end
    assert out is not None
    return out


def _cdist(x: Tensor, y: Tensor, p: float = 2.0, *_: Any, **__: Any) -> Tensor:
    """Distances of all pairs: [..., rows, n], [..., others, n] -> [..., rows, others]."""
    return torch.linalg.vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), ord=p, dim=-1)


def _bilinear(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """[..., i], [..., j], [out, i, j] -> [..., out]."""
    product = torch.einsum("...i,oij,...j->...o", x, weight, y)
    return product if bias is None else product + bias


_INSTEAD: dict[Any, Callable[..., Any]] = {
    _GROUPED: _grouped_mm,
    torch.bilinear: _bilinear,
    torch.cdist: _cdist,
    torch.ctc_loss: ctc_loss,
    torch.nn.functional.ctc_loss: ctc_loss,
    torch.nn.functional.gaussian_nll_loss: gaussian_nll_loss,
    torch.nn.functional.grid_sample: grid_sample,
    torch.nn.functional.multilabel_margin_loss: multilabel_margin_loss,
}
