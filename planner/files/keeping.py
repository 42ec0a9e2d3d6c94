"""The user's own folder for what is made once and kept for the next time."""

from __future__ import annotations

import os
from pathlib import Path

from planner.errors import UsageError
from planner.files.temporary import temporary_folder


def cache_folder() -> Path:
    """The folder; made where there is none.

    Raises:
        UsageError: it cannot be made, or others could write what is loaded from it.
    """
    base = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(base) if base else Path.home() / ".cache") / "planner"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise UsageError(f"cannot make {folder} ({error}); set XDG_CACHE_HOME") from error
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise UsageError(f"{folder} is not this user's alone to write; set XDG_CACHE_HOME")
    return folder


def keep(name: str, content: bytes, *, renew: bool = False) -> Path:
    """The file `name` of the cache folder, written now where it is not there yet.

    Args:
        renew: write it in any case.

    Raises:
        UsageError: as `cache_folder`.
        OSError: it cannot be written.
    """
    path = cache_folder() / name
    if renew or not path.exists():
        with temporary_folder(path.parent) as folder:
            written = folder / name
            written.write_bytes(content)
            os.replace(written, path)
    return path
