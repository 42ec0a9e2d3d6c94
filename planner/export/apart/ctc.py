"""Connectionist temporal classification (Graves et al., 2006), which ONNX has no operator for.

The recursion over the time steps uses ordinary operators, which autograd differentiates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import _reduction as _Reduction

from planner.export.errors import ExportError

_NEVER = -1e30
"""Stand-in for the logarithm of probability 0; finite, because differences must not be NaN."""

_NONE, _MEAN = 0, 1


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int],
    *options: Any,
    **named: Any,
) -> Tensor:
    """Compute `torch.nn.functional.ctc_loss` and `torch.ctc_loss`.

    Their last arguments are the blank, the reduction (a word, or its code) and zero_infinity.

    Args:
        log_probs: [time, batch, classes], or without the batch.
        targets: [batch, longest], padded; without a batch [longest].

    Raises:
        ExportError: the targets of several samples are concatenated.
    """
    blank, reduction, zero_infinity = _options(*options, **named)
    is_single = log_probs.dim() == 2
    if is_single:
        log_probs, targets = log_probs.unsqueeze(1), targets.reshape(1, -1)
    if targets.dim() == 1:
        raise ExportError(
            "the targets of ctc_loss are concatenated, and where each begins depends on values; "
            "pad them to [batch, longest]"
        )
    inputs, labels = (_column(x, log_probs.shape[1]) for x in (input_lengths, target_lengths))
    wide = log_probs.float() if log_probs.element_size() < 4 else log_probs
    loss = -_log_likelihood(wide, targets.long(), inputs, labels, blank)
    is_impossible = loss > -_NEVER / 2
    loss = torch.where(is_impossible, 0.0 if zero_infinity else math.inf, loss)
    if reduction == _MEAN:
        loss = (loss / labels.clamp(min=1).to(loss.dtype)).mean()
    elif reduction != _NONE:
        loss = loss.sum()
    elif is_single:
        loss = loss.squeeze(0)
    return loss.to(log_probs.dtype)


def _options(
    blank: int = 0, reduction: str | int = _MEAN, zero_infinity: bool = False
) -> tuple[int, int, bool]:
    """Return the blank, the reduction's code, and whether an infinite loss counts as 0."""
    code = _Reduction.get_enum(reduction) if isinstance(reduction, str) else reduction
    return blank, code, zero_infinity


def _column(lengths: Tensor | Sequence[int], batch: int) -> Tensor:
    """Convert lengths to int64 [batch]."""
    if isinstance(lengths, Tensor):
        return lengths.long().reshape(batch)
    return torch.tensor(list(lengths), dtype=torch.int64)


def _log_likelihood(
    log_probs: Tensor, targets: Tensor, inputs: Tensor, lengths: Tensor, blank: int
) -> Tensor:
    """Return the log probability of all alignments, [batch], by the forward variables alpha."""
    steps, batch, classes = log_probs.shape
    longest = targets.shape[1]
    labels = targets.clamp(0, classes - 1)
    blanks = torch.full_like(labels, blank)
    between = torch.stack([blanks, labels], 2).reshape(batch, 2 * longest)
    states = torch.cat([between, torch.full_like(labels[:, :1], blank)], 1)
    emitted = log_probs.gather(2, states.expand(steps, batch, 2 * longest + 1))
    never = torch.full_like(emitted[0], _NEVER)
    # A path may skip a blank between two labels, unless they are equal.
    is_other = (states[:, 2:] != states[:, :-2]) & (states[:, 2:] != blank)
    may_skip = torch.cat([torch.zeros_like(is_other[:, :1]).expand(batch, 2), is_other], 1)
    is_start = torch.arange(2 * longest + 1) < 2
    alpha = torch.where(is_start, emitted[0], never)
    for step in range(1, steps):
        once = torch.cat([never[:, :1], alpha[:, :-1]], 1)
        twice = torch.cat([never[:, :2], alpha[:, :-2]], 1)
        ways = torch.stack([alpha, once, torch.where(may_skip, twice, never)])
        moved = _log_sum(ways) + emitted[step]
        alpha = torch.where((inputs > step).unsqueeze(1), moved, alpha)
    ends = torch.stack([2 * lengths, (2 * lengths - 1).clamp(min=0)], 1)
    found = alpha.gather(1, ends)
    is_end = torch.stack([lengths >= 0, lengths > 0], 1)
    return _log_sum(torch.where(is_end, found, never[:, :2]).t())


def _log_sum(terms: Tensor) -> Tensor:
    """Return the logarithm of the sum of exponentials over the first axis."""
    largest = terms.detach().amax(0)
    return (terms - largest).exp().sum(0).log() + largest
