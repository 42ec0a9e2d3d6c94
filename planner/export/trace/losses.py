"""PyTorch functions that are rewritten with other operators while a step is traced.

linear_cross_entropy      PyTorch computes it in chunks, with an operator that ONNX lacks
multi_margin_loss         PyTorch's decomposition has a slope at a margin that is exactly met
torch.ctc_loss            ONNX has no such operator, and PyTorch's trace reads the lengths
multilabel_margin_loss    PyTorch 2.13's decomposition counts labels after the first -1
gaussian_nll_loss         PyTorch reads the variances to reject negative ones; this check is left out
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import _reduction as _Reduction


def multilabel_margin_loss(
    input: Tensor,
    target: Tensor,
    *older: Any,
    **reduced: Any,
) -> Tensor:
    """Compute `torch.nn.functional.multilabel_margin_loss`.

    It is the mean over the classes k of `max(0, 1 - (input[label] - input[k]))`, summed over the labels
    (those before the first -1), without the k that are labels.
    """
    scores, labels = torch.atleast_2d(input), torch.atleast_2d(target)
    classes = scores.shape[1]
    counts = (labels == -1).cumsum(1) == 0
    places = torch.where(counts, labels, 0)
    is_label = (places.unsqueeze(2) == torch.arange(classes)) & counts.unsqueeze(2)
    of_labels = scores.gather(1, places)
    terms = torch.relu(1 - of_labels.unsqueeze(2) + scores.unsqueeze(1))
    counted = counts.unsqueeze(2) & ~is_label.any(1).unsqueeze(1)
    each = torch.where(counted, terms, 0).sum((1, 2)) / classes
    return _reduced(each.reshape(input.shape[:-1]), _reduction(*older, **reduced))


def linear_cross_entropy(*args: Any, options: object = None, **kwargs: Any) -> Tensor:
    """Compute `torch.nn.functional.linear_cross_entropy` in one piece, without chunks."""
    del options
    return torch.nn.functional.linear_cross_entropy(*args, **kwargs)


def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    **reduced: Any,
) -> Tensor:
    """Compute `torch.nn.functional.multi_margin_loss`.

    It is the mean over the classes k that are not the target of `max(0, margin - (input[target] -
    input[k])) ** p`.
    """
    scores, labels = torch.atleast_2d(input), torch.atleast_1d(target).unsqueeze(1)
    terms = torch.relu(margin - scores.gather(1, labels) + scores) ** p
    if weight is not None:
        terms = terms * weight[labels]
    is_target = labels == torch.arange(scores.shape[1])
    each = torch.where(is_target, 0, terms).sum(1) / scores.shape[1]
    return _reduced(each.reshape(input.shape[:-1]), _reduction(**reduced))


def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """Compute `torch.nn.functional.gaussian_nll_loss`; variances below `eps` are raised to `eps`."""
    spread = torch.as_tensor(var, dtype=input.dtype)
    if spread.dim() and spread.shape == input.shape[:-1]:  # one for each row
        spread = spread.unsqueeze(-1)
    # The clamp has no gradient: autograd's is that of the unclamped variance.
    spread = spread + (spread.clamp(min=eps) - spread).detach()
    loss = 0.5 * (torch.log(spread) + (input - target) ** 2 / spread)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return _reduced(loss, reduction)


def _reduction(
    size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean"
) -> str:
    """Return the name of the reduction; older PyTorch versions give the first two arguments."""
    if size_average is None and reduce is None:
        return reduction
    return _Reduction.legacy_get_string(size_average, reduce)


def _reduced(loss: Tensor, reduction: str) -> Tensor:
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not valid")
    if reduction == "none":
        return loss
    return loss.mean() if reduction == "mean" else loss.sum()
