"""Activation checkpointing that a module asks for itself, while a step is traced.

What `torch.utils.checkpoint` runs is traced as if it were called: planner decides what to recompute. With
`use_reentrant=True` PyTorch would run it behind an autograd function of its own, which a tracer cannot
ask for gradients.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch.utils.checkpoint


class _Called:
    """In place of `torch.utils.checkpoint.CheckpointFunction`."""

    @staticmethod
    def apply(function: Callable[..., Any], _preserve_rng_state: bool, *args: Any) -> Any:
        """What the function gives."""
        return function(*args)


@contextlib.contextmanager
def called_plainly() -> Iterator[None]:
    """Reentrant checkpoints call their function meanwhile, and nothing else."""
    module: Any = torch.utils.checkpoint
    theirs = module.CheckpointFunction
    module.CheckpointFunction = _Called
    try:
        yield
    finally:
        module.CheckpointFunction = theirs
