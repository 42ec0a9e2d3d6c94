"""Temporary files and folders: what a killed planner leaves behind, the next one removes.

Each is held by an advisory lock (flock) for as long as its process lives, and the kernel lets go of
it however the process ends. So whoever can lock one knows that its owner is gone: no pid is compared,
which another container or a later boot would give to somebody else. Where a file system has no such
locks, the names are others, and nothing is removed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from planner.errors import UsageError

if sys.platform != "win32":
    import fcntl

NAME = re.compile(r"\.?planner-tmp-[0-9a-f]{16}")
"""What may be removed once nobody holds it; a file's name begins with a dot."""

SETTLED = threading.Lock()
"""Held while outputs are renamed into place: whoever ends the process at once waits for it."""

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a disk, a quota or a limit on files that is reached."""

PLACED: list[Path] = []
"""Outputs that are in place, in the order in which they were put there."""

_MIN_FREE_BYTES = 1 << 20
"""With less room than this, a failed write is taken to have failed for that."""

_LOCKED, _UNLOCKED = "planner-tmp-", "planner-unlocked-"

_held: dict[Path, int | None] = {}  # what this process has made, and the descriptor that holds it
_cleared: set[Path] = set()  # folders that this process has looked through


@contextlib.contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """A folder of one's own in `parent` (the system's for temporary files), removed at the end.

    Raises:
        UsageError: it cannot be made, or its disk is full; what to set is said.
    """
    try:
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
        _remove(folder)


@contextlib.contextmanager
def temporary_file(parent: Path) -> Iterator[Path]:
    """An empty file in `parent`; removed at the end, unless it was renamed.

    Raises:
        OSError: it cannot be made.
    """
    path = _made(parent, f".{_LOCKED}", _make_file)
    try:
        yield path
    finally:
        _remove(path)


def clear(folder: Path) -> None:
    """Remove what planners that are gone have left in `folder`."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if NAME.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    _remove_abandoned(Path(entry.path))


def remove_all() -> None:
    """Remove everything that this process has made: it is about to end."""
    for path in list(_held):
        _remove(path)


def _make_folder(path: Path) -> None:
    path.mkdir(mode=0o700)


def _make_file(path: Path) -> None:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def _made(parent: Path, prefix: str, make: Callable[[Path], None]) -> Path:
    """A new path of that prefix in `parent`, held by this process."""
    parent = parent.absolute()
    if parent not in _cleared:
        _cleared.add(parent)
        clear(parent)
    while True:
        path = parent / f"{prefix}{secrets.token_hex(8)}"
        make(path)
        try:
            descriptor = _locked(path)
        except FileNotFoundError:
            continue  # another planner took it for abandoned before it was locked
        if descriptor is None:
            free = path.with_name(path.name.replace(_LOCKED, _UNLOCKED))
            path = path.rename(free)
        _held[path] = descriptor
        return path


def _locked(path: Path) -> int | None:
    """A descriptor that holds `path`; None where the file system has no locks.

    Raises:
        FileNotFoundError: it is gone.
    """
    if sys.platform == "win32":
        return None
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        os.close(descriptor)
        return None
    if not _is_at(descriptor, path):
        os.close(descriptor)
        raise FileNotFoundError(path)
    return descriptor


def _remove_abandoned(path: Path) -> None:
    """Remove what nobody holds; nothing of another user's, and no link."""
    if sys.platform == "win32":
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if status.st_uid == os.geteuid() and _is_at(descriptor, path):
            _delete(path)
    finally:
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _remove(path: Path) -> None:
    """Remove `path` if it is this process's still: once renamed, it is not."""
    descriptor = _held.pop(path, None)
    try:
        if descriptor is None or _is_at(descriptor, path):
            _delete(path)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _delete(path: Path) -> None:
    with contextlib.suppress(OSError):  # the next planner tries again
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def _is_full(folder: Path, error: Exception) -> bool:
    """Whether a write failed for want of room; ONNX Runtime and numpy do not say so."""
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return True
    try:
        return shutil.disk_usage(folder).free < _MIN_FREE_BYTES
    except OSError:
        return False
