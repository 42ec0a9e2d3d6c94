"""Optimizers by name: `adamw`, or with settings `adamw:lr=1e-3,betas=0.9/0.95`."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import torch
from torch import nn

from planner.errors import UsageError
from planner.export.optim import OPTIMIZERS, Optimizer
from planner.export.update.optimizers import check


def torch_optimizers() -> dict[str, type[torch.optim.Optimizer]]:
    """Return the optimizer classes of `torch.optim` by their lower-case names."""
    kinds = (getattr(torch.optim, name) for name in torch.optim.__all__)
    return {
        kind.__name__.lower(): kind
        for kind in kinds
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
        if kind is not torch.optim.Optimizer
    }


def named_optimizer(text: str, module: nn.Module) -> Optimizer | torch.optim.Optimizer:
    """Return the optimizer that a name with settings describes.

    A name of `OPTIMIZERS` alone gives planner's own optimizer. Otherwise it names a class of
    `torch.optim`, in any case, which is created for all parameters of `module`.

    Raises:
        UsageError: the name or a setting is unknown, or PyTorch rejects a value.
    """
    name, colon, settings = text.partition(":")
    if text in OPTIMIZERS:
        return OPTIMIZERS[text]
    kinds = torch_optimizers()
    kind = kinds.get(name.lower())
    if kind is None:
        choices = ", ".join(sorted({*OPTIMIZERS, *kinds}))
        raise UsageError(f"unknown optimizer {name!r}; choose one of {choices}")
    if colon and not settings:
        raise UsageError(f"{text!r} has no settings; write {name}, or {name}:lr=0.001")
    known = list(inspect.signature(kind).parameters)[1:]
    options = dict(_setting(part, text, known) for part in settings.split(",") if part)
    try:
        made: Any = kind(module.parameters(), **options)
    except Exception as error:
        raise UsageError(
            f"{kind.__name__} refuses {settings or 'its defaults'}: {error}"
        ) from error
    check(made)
    return made


def _setting(part: str, text: str, known: list[str]) -> tuple[str, Any]:
    """Parse one setting: `betas=0.9/0.95` -> ("betas", (0.9, 0.95))."""
    key, equals, value = part.partition("=")
    if not equals or not value:
        raise UsageError(f"{part!r} in {text!r} is not NAME=VALUE, as in lr=1e-3 or betas=0.9/0.95")
    if key not in known:
        raise UsageError(
            f"{text.partition(':')[0]} has no setting {key!r}; it has {', '.join(known)}"
        )
    values = [_literal(item) for item in value.split("/")]
    return key, values[0] if len(values) == 1 else tuple(values)


def _literal(text: str) -> Any:
    """Parse a number, true, false or none; return other text unchanged."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
