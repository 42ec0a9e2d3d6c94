"""Activation checkpointing by the module itself, while a step is traced.

A function under `torch.utils.checkpoint` is traced as a plain call, because planner decides what to
recompute. With `use_reentrant=True`, PyTorch would run it in an autograd function of its own, for which a
tracer gets no gradients.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch.utils.checkpoint


class _Called:
    """Replacement of `torch.utils.checkpoint.CheckpointFunction`."""

    @staticmethod
    def apply(function: Callable[..., Any], _preserve_rng_state: bool, *args: Any) -> Any:
        """Call the function and return its result."""
        return function(*args)


@contextlib.contextmanager
def called_plainly() -> Iterator[None]:
    """Make reentrant checkpoints call their function directly within the block."""
    module: Any = torch.utils.checkpoint
    theirs = module.CheckpointFunction
    module.CheckpointFunction = _Called
    try:
        yield
    finally:
        module.CheckpointFunction = theirs
