"""`torch.autocast` while a step is traced.

The trace runs on the CPU, whatever device the module is meant for. There `torch.autocast("cuda")` turns
itself off, as CUDA is not available; traced, it is the CPU's. The two do not convert the same operators:
the CPU's leaves a softmax or a layer normalization in the type of its operand, for one, where CUDA's
computes them in float32 (docs.pytorch.org, "Automatic Mixed Precision package", the op reference).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    """Every `torch.autocast` made meanwhile is the CPU's, in the type that it would have had."""
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
