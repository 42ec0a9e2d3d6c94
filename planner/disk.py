"""Swaps to a disk: tensors leave the CPU's memory for a file in a folder.

A session's file has no name (`planner/native/swap/file_store.cpp`), and goes with its process. The
session, not the model, chooses the folder: the one that the script names, or `PLANNER_DISK`, or
`TMPDIR`, or else `/var/tmp`, since `/tmp` is memory on many systems. The prices of a plan are
measured in the folder that the user names. The measurement copies as the library does: pieces of 1
MiB, one after the other, past the system's cache (O_DIRECT; open(2)). Data that was just written does
not come from memory then.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from planner.errors import UsageError
from planner.units import format_bytes, parse_bytes

VARIABLE = "PLANNER_DISK"
"""The environment variable with the folder of sessions that name none."""

RESERVE_BYTES = 1 << 30
"""Free space of a disk that planner leaves to other programs."""

Kind = Literal["direct", "cached", "memory"]
Rate = Annotated[float, Meta(ge=1, le=1e15)]

_IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_PIECE_BYTES, _SMALL_BYTES, _SMALL_PIECES = 1 << 20, 4096, 64
_MOST_BYTES, _MOST_S = 256 << 20, 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """The measured speed of the disk of a folder, from which a plan's copies are priced.

    `planner/plan/planfile.md` describes the fields.
    """

    write_bytes_per_s: Rate
    read_bytes_per_s: Rate
    latency_us: Annotated[float, Meta(ge=0, le=1e9)]
    folder: str
    kind: Kind

    @property
    def least_bytes(self) -> int:
        """The least bytes worth a swap; smaller tensors spend most of the copy's time on latency."""
        return int(self.latency_us * max(self.write_bytes_per_s, self.read_bytes_per_s) / 1e6)

    @property
    def speeds(self) -> str:
        """Both speeds, for people."""
        write, read = (
            format_bytes(int(v)) for v in (self.write_bytes_per_s, self.read_bytes_per_s)
        )
        return f"{write}/s written and {read}/s read"


def default_folder() -> Path:
    """Return the folder of sessions that name none."""
    for name in (VARIABLE, "TMPDIR"):
        if os.environ.get(name):
            return Path(os.environ[name])
    lasting = Path("/var/tmp")
    return lasting if os.access(lasting, os.W_OK) else Path(tempfile.gettempdir())


@contextlib.contextmanager
def swapping_to(folder: str) -> Iterator[None]:
    """Make sessions of the block that name no folder swap to this one, in child processes too; ""
    changes none."""
    before = os.environ.get(VARIABLE)
    if folder:
        os.environ[VARIABLE] = folder
    try:
        yield
    finally:
        if folder:
            os.environ.pop(VARIABLE)
            os.environ.update({} if before is None else {VARIABLE: before})


def remark_on(kind: Kind, folder: Path | str) -> str:
    """Return a warning about swaps to a folder without direct I/O; "" where the folder has it."""
    if kind == "direct":
        return ""
    if kind == "memory":
        return f"{folder} is memory (tmpfs), not a disk: swapping to it saves no memory"
    return (
        f"the file system of {folder} has no direct I/O: swaps go through the system's cache and "
        "may stay in memory, so the speeds may not be those of a disk"
    )


def kind_of(folder: Path) -> Kind:
    """Tell how files of a folder are read and written.

    Raises:
        UsageError: `folder` is no folder, or no file can be made there.
    """
    with _file_in(folder) as (_, kind):
        return kind


def room_in(folder: Path, asked: str | None) -> int:
    """Return the bytes that swaps may take in a folder.

    Args:
        asked: an upper limit, `"200GB"`; None for all free space.

    Raises:
        UsageError: no space is free, or the size cannot be parsed.
    """
    free = _free(folder) - RESERVE_BYTES
    if free <= 0:
        raise UsageError(
            f"--disk {folder}: the disk has no free space beyond the "
            f"{format_bytes(RESERVE_BYTES)} that planner leaves unused: make room, or name "
            "another folder"
        )
    return free if asked is None else min(free, parse_bytes(asked, what="--disk-budget"))


def measured(folder: Path) -> Disk:
    """Measure the disk of a folder; takes at most about 3 s and 256 MiB.

    Raises:
        UsageError: `folder` is no folder, or no file can be made or written there.
    """
    size = min(_MOST_BYTES, _free(folder) // 4) // _PIECE_BYTES * _PIECE_BYTES
    if not size:
        raise UsageError(
            f"--disk {folder}: the disk has too little free space to be measured: make "
            "room, or name another folder"
        )
    with _file_in(folder) as (file, kind), mmap.mmap(-1, _PIECE_BYTES) as piece:
        piece.write(os.urandom(_PIECE_BYTES))  # no file system makes it smaller
        small = memoryview(piece)[:_SMALL_BYTES]
        try:
            _rate(file, os.pwritev, piece, size)  # a warm-up: the first write allocates
            write = _rate(file, os.pwritev, piece, size)
            read = _rate(file, os.preadv, piece, size)
            latency_s = _piece_s(file, os.pwritev, small), _piece_s(file, os.preadv, small)
        except OSError as error:
            raise UsageError(f"--disk {folder}: {error.strerror}") from None
        finally:
            small.release()
    return Disk(
        write_bytes_per_s=write,
        read_bytes_per_s=read,
        latency_us=1e6 * statistics.mean(latency_s),
        folder=str(folder),
        kind=kind,
    )


Move = Callable[[int, list[mmap.mmap | memoryview], int], int]


def _rate(file: int, move: Move, piece: mmap.mmap, size: int) -> float:
    """Return the bytes a second of 1-MiB pieces moved one after the other, within a time limit."""
    began, done = time.perf_counter(), 0
    while done < size and time.perf_counter() - began < _MOST_S:
        if move(file, [piece], done) != _PIECE_BYTES:
            raise OSError(0, "a piece of 1 MiB was not copied whole")
        done += _PIECE_BYTES
    return done / (time.perf_counter() - began)


def _piece_s(file: int, move: Move, small: memoryview) -> float:
    """Return the median seconds that a small piece takes."""
    found: list[float] = []
    for at in range(_SMALL_PIECES):
        began = time.perf_counter()
        move(file, [small], at * _SMALL_BYTES)
        found.append(time.perf_counter() - began)
    return statistics.median(found)


@contextlib.contextmanager
def _file_in(folder: Path) -> Iterator[tuple[int, Kind]]:
    """Yield a file without a name, and how it is read and written."""
    try:
        file, name = tempfile.mkstemp(prefix="planner-swap-", dir=folder)
    except OSError as error:
        raise _unusable(folder, error) from None
    try:
        os.unlink(name)
        is_direct = _make_direct(file)
        in_memory = _system_of(os.fstat(file).st_dev) in _IN_MEMORY
        yield file, "memory" if in_memory else "direct" if is_direct else "cached"
    finally:
        os.close(file)


def _unusable(folder: Path, error: OSError) -> UsageError:
    return UsageError(
        f"swaps cannot go to {folder}: {error.strerror}; name a folder that can be written to (--disk, "
        f"disk= or {VARIABLE})"
    )


def _free(folder: Path) -> int:
    """Return the free bytes of a folder's disk."""
    try:
        return shutil.disk_usage(folder).free
    except OSError as error:
        raise _unusable(folder, error) from None


def _make_direct(file: int) -> bool:
    """Make a file's reads and writes bypass the system's cache; return False where that cannot be
    done."""
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_DIRECT)
    except OSError:
        return False
    return True


def _system_of(device: int) -> str:
    """Return the type of a mounted file system (proc_pid_mountinfo(5)); "" where it is unknown."""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    for line in lines:
        before, _, after = line.partition(" - ")
        if before.split()[2] == number:
            return after.split()[0]
    return ""
