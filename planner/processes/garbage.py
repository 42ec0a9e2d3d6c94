"""How often Python looks for garbage that refers to itself."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_SELDOM = (100_000, 50, 20)
"""Allocations between two searches, and how many of those look further back. A model is a million objects
that live long: with Python's own 700, looking through them takes longer than half of all stages."""


def collect_seldom() -> None:
    """For the rest of this process."""
    gc.set_threshold(*_SELDOM)


@contextlib.contextmanager
def collected_seldom() -> Iterator[None]:
    """For the length of a call, or of a block; then as before."""
    before = gc.get_threshold()
    if 0 < before[0] < _SELDOM[0]:  # 0: the caller wants none
        gc.set_threshold(*_SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*before)
