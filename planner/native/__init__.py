"""The native library in C++: the search's inner loop, and asynchronous swaps and memory pools for
sessions.

`planner.native.calls` calls the search (`search/`). No thread starts and no device is touched until a
session of ONNX Runtime loads the library, by
`options.register_custom_ops_library(str(library_path()))`. Its settings are entries of the session,
added before that: `planner.pool_bytes`, `planner.page_bytes`, `planner.spill_bytes`,
`planner.disk_folder`, `planner.disk_bytes`, `planner.check_swaps`, `planner.link_mbps`,
`planner.link_jitter_us`. docs/native.md says what each does.
"""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from planner.errors import UsageError
from planner.native.building import SOURCES, library_name

DEVICE_PAGE_BYTES = 2 << 20
"""The pages of a device's pool: the granularity of CUDA's memory, to which it rounds up smaller ones."""


def is_built() -> bool:
    """Tell whether the library of these sources is built."""
    return (SOURCES / library_name()).is_file()


def library_path() -> Path:
    """Return the path of the library.

    Raises:
        UsageError: it is not built, or it was built from other sources.
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
    """Counters of swaps in this process, over all its sessions.

    Attributes:
        swaps_out: copies out that began, StoreOut's included; swaps_in: copies in that ended, LoadIn's
            included.
        live_slots: slots that hold a swap now; slots: all slots; slot_bytes: host memory of all slots.
        file_bytes: bytes of the files that hold slots; staging_bytes: memory of the buffers through which
            tensors outside a pool are written to them.
        violations: faults that `planner.check_swaps` found.
        waits: waits of the CPU's compute thread for a copy; waited_us: their time.
        copied_views: SwapInDone nodes that had to copy, since their output has a buffer of its own.
        abandoned: swaps that a failed run or a closed session left, or that `drain` ended.
    """

    swaps_out: int
    swaps_in: int
    live_slots: int
    slots: int
    slot_bytes: int
    file_bytes: int
    staging_bytes: int
    violations: int
    waits: int
    waited_us: int
    copied_views: int
    abandoned: int


def counts() -> Counts:
    """Return the library's counters in this process."""
    names = [field.name for field in fields(Counts)]
    values = (ctypes.c_int64 * len(names))()
    there = library().planner_native_counts(values, len(names))
    assert there == len(names), (there, names)
    return Counts(**dict(zip(names, values, strict=True)))


def drain(*, here: bool = False) -> int:
    """End the swaps that a failed run left, so that the next run is accepted; return their number.

    No run may be under way: its swaps would end too, and it would fail.

    Args:
        here: end only swaps of runs on this thread; other threads may have runs under way then.
    """
    return library().planner_native_drain(here)


def page_locked(size_bytes: int) -> memoryview | None:
    """Allocate page-locked host memory, which a GPU copies from and to at the full speed of its link.

    Its values are undefined; it lasts as long as the view and what shares its memory.

    Args:
        size_bytes: at least 1.

    Returns:
        None without a CUDA driver, without a CUDA context on this thread, or without enough memory.
    """
    native = library()
    at = native.planner_native_page_locked(size_bytes)
    if not at:
        return None
    block = (ctypes.c_uint8 * size_bytes).from_address(at)
    weakref.finalize(block, native.planner_native_page_locked_free, at).atexit = False
    return memoryview(block)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPool:
    """The state of a memory pool of this process.

    Attributes:
        pool_bytes: size of the pool; page_bytes: size of a page.
        asked_bytes: sum of the requests in use now; asked_most_bytes: its peak.
        pages: pages in use now; pages_most: their peak.
        mappings: how often separate pages were mapped together.
        refusals: requests that did not fit.
        spilled_bytes: requests that did not fit, served from outside the pool, in use now;
            spilled_most_bytes: their peak.
    """

    pool_bytes: int
    page_bytes: int
    asked_bytes: int
    asked_most_bytes: int
    pages: int
    pages_most: int
    mappings: int
    refusals: int
    spilled_bytes: int
    spilled_most_bytes: int


def pool(*, device: bool = False) -> MemoryPool | None:
    """Return the pool of the CPU session that was created last, or of a CUDA device; None where there
    is none."""
    names = [field.name for field in fields(MemoryPool)]
    values = (ctypes.c_int64 * len(names))()
    if not (there := library().planner_native_pool(device, values, len(names))):
        return None
    assert there == len(names), (there, names)
    return MemoryPool(**dict(zip(names, values, strict=True)))


def restart_pool_peaks(*, device: bool = False) -> None:
    """Restart the pool's peaks and its counts of mappings and refusals."""
    library().planner_native_pool_restart(device)


def device_pool_options(pool_bytes: int, page_bytes: int = DEVICE_PAGE_BYTES) -> dict[str, str]:
    """Return options of the CUDA provider that take its memory from a pool of `pool_bytes` bytes.

    The process has one such pool, for all sessions with such options. The device rounds the page up to
    its granularity. ONNX Runtime's arena, `gpu_mem_limit` and `has_user_compute_stream` are unused with
    these options. They have not run on a GPU yet.

    Raises:
        UsageError: this process has a device pool of another size that is in use.
    """
    native = library()
    if native.planner_native_device_pool(pool_bytes, page_bytes):
        raise UsageError(
            f"this process already uses a device pool of another size than {pool_bytes} bytes: "
            "close its sessions, or use another process"
        )
    functions = {"alloc": "alloc", "free": "free", "empty_cache": "empty"}
    return {
        f"gpu_external_{option}": str(
            ctypes.cast(native[f"planner_native_device_{name}"], ctypes.c_void_p).value
        )
        for option, name in functions.items()
    }


def why_no_compiler() -> str:
    """Return why fused nodes cannot run on CUDA, or "" where they can.

    The reason is a missing driver, or no NVRTC on the loader's path or beside onnxruntime.
    """
    return library().planner_native_why_no_compiler().decode()


@cache
def library() -> ctypes.CDLL:
    """Load the library into this process.

    Raises:
        UsageError: see `library_path`; or it does not load on this machine.
    """
    path = library_path()
    try:
        native = ctypes.CDLL(str(path))
    except OSError as error:
        raise UsageError(
            f"planner's native library does not load ({error}): delete {path} and run "
            "`python -m planner.native`"
        ) from None
    native.planner_native_counts.argtypes = [ctypes.POINTER(ctypes.c_int64), ctypes.c_int64]
    native.planner_native_counts.restype = ctypes.c_int64
    native.planner_native_drain.argtypes = [ctypes.c_int64]
    native.planner_native_drain.restype = ctypes.c_int64
    native.planner_native_page_locked.argtypes = [ctypes.c_int64]
    native.planner_native_page_locked.restype = ctypes.c_void_p
    native.planner_native_page_locked_free.argtypes = [ctypes.c_void_p]
    native.planner_native_page_locked_free.restype = None
    native.planner_native_device_pool.argtypes = [ctypes.c_int64, ctypes.c_int64]
    native.planner_native_device_pool.restype = ctypes.c_int64
    native.planner_native_why_no_compiler.argtypes = []
    native.planner_native_why_no_compiler.restype = ctypes.c_char_p
    native.planner_native_pool.argtypes = [
        ctypes.c_int64,
        ctypes.POINTER(ctypes.c_int64),
        ctypes.c_int64,
    ]
    native.planner_native_pool.restype = ctypes.c_int64
    native.planner_native_pool_restart.argtypes = [ctypes.c_int64]
    native.planner_native_pool_restart.restype = None
    return native
