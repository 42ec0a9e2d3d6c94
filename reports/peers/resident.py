"""By how much a process grows while it does something: what the system saw, whoever allocated it."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

from planner.running.alone_worker import status_bytes

_CLEAR = Path("/proc/self/clear_refs")


def growth(call: Callable[[], object]) -> int | None:
    """Bytes by which resident memory exceeded, at its most, what it was before the call; None where the
    system does not say (Linux does)."""
    gc.collect()
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        _CLEAR.write_text("5")  # restart the high-water mark
        before = status_bytes("VmRSS")
        call()
        return max(0, status_bytes("VmHWM") - before)
    except (OSError, AttributeError):
        return None
