"""A library that ONNX Runtime loads: asynchronous swaps, and a memory pool of exactly a budget.

A session loads it by `options.register_custom_ops_library(str(library_path()))`. Its settings are
entries of the session, added before that: `planner.pool_bytes`, `planner.page_bytes`,
`planner.check_swaps`, `planner.link_mbps`, `planner.link_jitter_us`. docs/native.md says what each does.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from planner.errors import UsageError
from planner.native.building import SOURCES, library_name


def is_built() -> bool:
    """Whether the library of these sources is there."""
    return (SOURCES / library_name()).is_file()


def library_path() -> Path:
    """Where the library is.

    Raises:
        UsageError: it is not there, or what is there was built from other sources.
    """
    path = SOURCES / library_name()
    if path.is_file():
        return path
    found = any(SOURCES.glob("libplanner_native.*.so"))
    why = "was built from other sources" if found else "is not built"
    raise UsageError(
        f"planner's native library {why}: run `python -m planner.native`, which needs a C++ compiler, or "
        "the package ziglang (pip install ziglang)"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What the swaps of this process did, in all its sessions.

    Attributes:
        swaps_out: copies out that began; swaps_in: copies in that ended, those of LoadIn too.
        live_slots: host slots that hold a swap now; slots: all that exist; slot_bytes: of these.
        violations: what `planner.check_swaps` found; 0 unless there is a fault.
        waits: waits of the CPU's compute thread for a copy; waited_us: their time.
        copied_views: SwapInDone that had to copy: its output has a buffer of its own.
        abandoned: swaps that a failed run or a closed session left, or that `drain` ended.
    """

    swaps_out: int
    swaps_in: int
    live_slots: int
    slots: int
    slot_bytes: int
    violations: int
    waits: int
    waited_us: int
    copied_views: int
    abandoned: int


def counts() -> Counts:
    """The counters of the library in this process."""
    names = [field.name for field in fields(Counts)]
    values = (ctypes.c_int64 * len(names))()
    there = _library().planner_native_counts(values, len(names))
    assert there == len(names), (there, names)
    return Counts(**dict(zip(names, values, strict=True)))


def drain() -> int:
    """End the swaps that a failed run left, so that the next run is not refused; how many there were.

    No run may be under way: its swaps would end too, and it would fail.
    """
    return _library().planner_native_drain()


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(library_path()))
    library.planner_native_counts.argtypes = [ctypes.POINTER(ctypes.c_int64), ctypes.c_int64]
    library.planner_native_counts.restype = ctypes.c_int64
    library.planner_native_drain.restype = ctypes.c_int64
    return library
