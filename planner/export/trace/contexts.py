"""Contexts of a trace: `torch.autocast`, and activation checkpointing by the module itself.

The trace runs on the CPU, whatever device the module is meant for. On the CPU, `torch.autocast("cuda")`
would turn itself off, because CUDA is not available; the trace uses the CPU's autocast instead. The two
convert different operators: the CPU's leaves a softmax or a layer normalization in the type of its
operand, for example, and CUDA's computes them in float32 (docs.pytorch.org, "Automatic Mixed Precision
package", the op reference).

A function under `torch.utils.checkpoint` is traced as a plain call, because planner decides what to
recompute. With `use_reentrant=True`, PyTorch would run it in an autograd function of its own, for which a
tracer gets no gradients.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.checkpoint
from torch.fx import config


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    """Turn each CUDA autocast created within the block into a CPU autocast of the same type."""
    make = torch.autocast.__init__

    @functools.wraps(make)
    def made(
        self: torch.autocast,
        device_type: str,
        dtype: torch.dtype | None = None,
        *rest: Any,
        **more: Any,
    ) -> None:
        if device_type == "cuda":
            dtype = torch.get_autocast_dtype("cuda") if dtype is None else dtype
            device_type = "cpu"
        make(self, device_type, dtype, *rest, **more)

    torch.autocast.__init__ = made
    try:
        yield
    finally:
        torch.autocast.__init__ = make


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


@contextlib.contextmanager
def without_stacks() -> Iterator[None]:
    """Trace in the block without a Python stack for each node: nothing reads these stacks."""
    recorded = config.do_not_emit_stack_traces
    config.do_not_emit_stack_traces = True
    try:
        yield
    finally:
        config.do_not_emit_stack_traces = recorded
