"""How functions are compiled, and whether they are already."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

INNER: dict[str, Any] = {
    "cache": True,
    "nogil": True,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
"""Options of `numba.njit` for what compiled code alone calls: with no way in from Python it compiles in
less time."""


def is_compiled(function: Callable[..., Any]) -> bool:
    """Whether numba has a cached version of a compiled function's present source.

    numba lists the versions of a function in an index file of its own (`numba/core/caching.py`).
    """
    compiled: Any = function
    source = Path(compiled.py_func.__code__.co_filename)
    folder = Path(compiled.stats.cache_path)
    name = f"{source.stem}.{compiled.py_func.__qualname__}-*.nbi"
    written = source.stat().st_mtime
    return any(index.stat().st_mtime >= written for index in folder.glob(name))
