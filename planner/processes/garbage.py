"""The thresholds of Python's cyclic garbage collector."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_SELDOM = (100_000, 50, 20)
"""Thresholds of the three generations. A model is a million objects that live long: with Python's
default of 700, collections take longer than half of all stages."""


def collect_seldom() -> None:
    """Collect garbage seldom for the rest of this process."""
    gc.set_threshold(*_SELDOM)


@contextlib.contextmanager
def collected_seldom() -> Iterator[None]:
    """Collect garbage seldom for the length of a call or a block; restore the thresholds afterwards."""
    before = gc.get_threshold()
    if 0 < before[0] < _SELDOM[0]:  # 0: the caller wants none
        gc.set_threshold(*_SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*before)
