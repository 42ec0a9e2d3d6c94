"""A library in C++: the search's inner loop, and what sessions of ONNX Runtime load: asynchronous swaps,
and a memory pool of exactly a budget.

`planner.native.calls` calls the search (`search/`). No thread is started and no device touched until a
session loads the library, by `options.register_custom_ops_library(str(library_path()))`. Its settings are
entries of the session, added before that: `planner.pool_bytes`, `planner.page_bytes`,
`planner.spill_bytes`, `planner.disk_folder`, `planner.disk_bytes`, `planner.check_swaps`,
`planner.link_mbps`, `planner.link_jitter_us`. docs/native.md says what each does.
"""

from __future__ import annotations

import ctypes
import weakref
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
        swaps_out: copies out that began, those of StoreOut too; swaps_in: copies in that ended, those of
            LoadIn too.
        live_slots: slots that hold a swap now; slots: all that exist; slot_bytes: host memory of these.
        file_bytes: of the files that slots lie in; staging_bytes: memory by way of which tensors go there
            that do not lie in a pool.
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
    file_bytes: int
    staging_bytes: int
    violations: int
    waits: int
    waited_us: int
    copied_views: int
    abandoned: int


def counts() -> Counts:
    """The counters of the library in this process."""
    names = [field.name for field in fields(Counts)]
    values = (ctypes.c_int64 * len(names))()
    there = library().planner_native_counts(values, len(names))
    assert there == len(names), (there, names)
    return Counts(**dict(zip(names, values, strict=True)))


def drain(*, here: bool = False) -> int:
    """End the swaps that a failed run left, so that the next run is not refused; how many there were.

    No run may be under way: its swaps would end too, and it would fail.

    Args:
        here: those of runs on this thread alone; others may then be under way.
    """
    return library().planner_native_drain(here)


def page_locked(size_bytes: int) -> memoryview | None:
    """Page-locked memory on the host, which a GPU copies from and to at the full speed of its link.

    Its values are undefined; it lasts as long as the view and what shares its memory.

    Args:
        size_bytes: at least 1.

    Returns:
        None where there is no driver of CUDA's, none of its contexts on this thread, or no such memory.
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
    """A memory pool of this process.

    Attributes:
        pool_bytes: its size; page_bytes: of a page.
        asked_bytes: sum of the requests that are in use now; asked_most_bytes: at the most.
        pages: pages taken now; pages_most: at the most.
        mappings: how often pages that lie apart were mapped together.
        refusals: requests that did not fit.
        spilled_bytes: of those that did not fit, served from elsewhere, now; spilled_most_bytes: at the
            most.
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
    """The pool of the session on the CPU that was created last, or of a CUDA device; None where this
    process has none."""
    names = [field.name for field in fields(MemoryPool)]
    values = (ctypes.c_int64 * len(names))()
    if not (there := library().planner_native_pool(device, values, len(names))):
        return None
    assert there == len(names), (there, names)
    return MemoryPool(**dict(zip(names, values, strict=True)))


def restart_pool_peaks(*, device: bool = False) -> None:
    """Count what was taken at the most, mappings and refusals from now on."""
    library().planner_native_pool_restart(device)


def device_pool_options(pool_bytes: int, page_bytes: int = 2 << 20) -> dict[str, str]:
    """Options of the CUDA provider that have its memory come from a pool of so many bytes.

    The device rounds the page up to its granularity. ONNX Runtime's arena, `gpu_mem_limit` and
    `has_user_compute_stream` are not used beside these options. Not run on a GPU yet.

    Raises:
        UsageError: this process has a device pool of another size that is in use.
    """
    native = library()
    if native.planner_native_device_pool(pool_bytes, page_bytes):
        raise UsageError(
            f"this process has a pool on the device of another size than {pool_bytes} bytes, and it "
            "is in use: close its sessions, or use a process of its own"
        )
    functions = {"alloc": "alloc", "free": "free", "empty_cache": "empty"}
    return {
        f"gpu_external_{option}": str(
            ctypes.cast(native[f"planner_native_device_{name}"], ctypes.c_void_p).value
        )
        for option, name in functions.items()
    }


def why_no_compiler() -> str:
    """Why fused nodes cannot run on CUDA: no driver, or no NVRTC on the loader's path or beside
    onnxruntime; "" where they can."""
    return library().planner_native_why_no_compiler().decode()


@cache
def library() -> ctypes.CDLL:
    """The library, loaded into this process.

    Raises:
        UsageError: see `library_path`, or it does not load here.
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
