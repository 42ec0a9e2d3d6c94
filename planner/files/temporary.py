"""Temporary files and folders; planner removes those that a killed planner left behind.

An advisory lock (flock) holds each one for as long as its process lives. The kernel releases it
however the process ends: whoever can lock one knows that its owner is gone. A pid would not tell,
since another container or a later boot reuses it. On file systems without such locks, the names are
others, and nothing is removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from planner.errors import UsageError

NAME = re.compile(r"\.?planner-tmp-[0-9a-f]{16}")
"""Names that may be removed once nobody holds them; a file's name begins with a dot."""

SETTLED = threading.Lock()
"""A lock held while outputs are renamed into place, and while temporary paths are made or removed: a
handler that ends the process at once waits for it, and keeps it."""

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a full disk, an exhausted quota, or a limit on file sizes."""

PLACED: list[Path] = []
"""Outputs that are in place, in the order in which they were renamed."""

_MIN_FREE_BYTES = 1 << 20
"""With less free space than this, a failed write counts as one for want of space."""

_PATIENCE_S = 10.0

_LOCKED, _UNLOCKED = "planner-tmp-", "planner-unlocked-"

_held: dict[Path, int | None] = {}  # this process's files and folders, with their lock's descriptor
_cleared: set[Path] = set()  # folders that this process has looked through

# a thread may hold the lock while another one forks
os.register_at_fork(
    before=SETTLED.acquire, after_in_parent=SETTLED.release, after_in_child=SETTLED.release
)


@contextlib.contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """Yield a new folder in `parent` (default: the system's temporary folder), and remove it at the
    end.

    Raises:
        UsageError: it cannot be made, or its disk is full; the message says what to set.
    """
    try:
        with SETTLED:  # the first call writes a file and removes it
            where = Path(tempfile.gettempdir()) if parent is None else parent
        folder = _made(where, _LOCKED, _make_folder)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(
            f"no temporary folder can be made ({reason}); set TMPDIR to a folder that can be written"
        ) from None
    try:
        yield folder
    except Exception as error:
        if _is_full(where, error):
            raise UsageError(
                f"the disk of the temporary folder {where} is full; set TMPDIR to a folder with more "
                "room"
            ) from error
        raise
    finally:
        _let_go(folder)


@contextlib.contextmanager
def temporary_file(parent: Path) -> Iterator[Path]:
    """Yield an empty file in `parent`, and remove it at the end unless it was renamed.

    Raises:
        OSError: it cannot be made.
    """
    path = _made(parent, f".{_LOCKED}", _make_file)
    try:
        yield path
    finally:
        _let_go(path)


def clear(folder: Path) -> None:
    """Remove files and folders that dead planner processes left in `folder`."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if NAME.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    _remove_abandoned(Path(entry.path))


def remove_all() -> None:
    """Remove all temporary files and folders of this process, which is about to end."""
    for path in list(_held):
        _remove(path)


def _let_go(path: Path) -> None:
    """Remove a path at the end of its block.

    A block that the garbage collector ends may interrupt this thread while it holds the lock; then the
    path is left to `remove_all`.
    """
    if SETTLED.acquire(timeout=_PATIENCE_S):
        try:
            _remove(path)
        finally:
            SETTLED.release()


def _make_folder(path: Path) -> None:
    path.mkdir(mode=0o700)


def _make_file(path: Path) -> None:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def _made(parent: Path, prefix: str, make: Callable[[Path], None]) -> Path:
    """Return a new path with that prefix in `parent`, held by this process."""
    parent = parent.absolute()
    if parent not in _cleared:
        _cleared.add(parent)
        clear(parent)
    while True:
        path = parent / f"{prefix}{secrets.token_hex(8)}"
        with SETTLED:
            _held[path] = None  # before it is there, since Ctrl-C may come at any time
            try:
                make(path)
            except OSError:
                del _held[path]
                raise
            try:
                _held[path] = _locked(path)
            except FileNotFoundError:
                del _held[path]
                continue  # another planner removes it as abandoned
            if _held[path] is not None:
                return path
            free = path.with_name(path.name.replace(_LOCKED, _UNLOCKED))
            _held[free] = None
            path.rename(free)
            del _held[path]
            return free


def _locked(path: Path) -> int | None:
    """Return a descriptor that holds a lock on `path`; None where the file system has no locks.

    Raises:
        FileNotFoundError: it is gone, or another planner holds it to remove it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise FileNotFoundError(path) from None
    except OSError:
        os.close(descriptor)
        return None
    if not _is_at(descriptor, path):
        os.close(descriptor)
        raise FileNotFoundError(path)
    return descriptor


def _remove_abandoned(path: Path) -> None:
    """Remove a path that nobody holds, unless another user owns it or it is a link."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if status.st_uid == os.geteuid() and _is_at(descriptor, path):
            _delete(path)
    finally:
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    """Tell whether the open file is still the one at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _remove(path: Path) -> None:
    """Remove `path` if it is still this process's: after a rename it is not."""
    descriptor = _held.get(path)
    if descriptor is None or _is_at(descriptor, path):
        _delete(path)
    _held.pop(path, None)
    if descriptor is not None:
        os.close(descriptor)


def _delete(path: Path) -> None:
    with contextlib.suppress(OSError):  # the next planner tries again
        if path.is_dir() and not path.is_symlink():
            moved = path.with_name(f"{_LOCKED}{secrets.token_hex(8)}")
            _held[moved] = None
            try:
                path.rename(moved)  # a thread that still writes into it by name no longer finds it
            except OSError:  # the disk is full
                shutil.rmtree(path, ignore_errors=True)
            else:
                shutil.rmtree(moved, ignore_errors=True)
            del _held[moved]
        else:
            path.unlink()


def _is_full(folder: Path, error: Exception) -> bool:
    """Tell whether a write failed for want of space; ONNX Runtime and numpy do not say so."""
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return True
    try:
        return shutil.disk_usage(folder).free < _MIN_FREE_BYTES
    except OSError:
        return False
