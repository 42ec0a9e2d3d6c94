"""`torch.autocast` while a step is traced.

The trace runs on the CPU, whatever device the module is meant for. On the CPU, `torch.autocast("cuda")`
would turn itself off, because CUDA is not available; the trace uses the CPU's autocast instead. The two
convert different operators: the CPU's leaves a softmax or a layer normalization in the type of its
operand, for example, and CUDA's computes them in float32 (docs.pytorch.org, "Automatic Mixed Precision
package", the op reference).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch


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
