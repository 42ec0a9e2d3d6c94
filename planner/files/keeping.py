"""The user's cache folder, for files that are made once and kept."""

from __future__ import annotations

import os
from pathlib import Path

from planner.errors import UsageError
from planner.files.temporary import temporary_folder


def cache_folder() -> Path:
    """Return the cache folder, and make it where it does not exist.

    Raises:
        UsageError: it cannot be made, or other users may write to it.
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
    """Return the file `name` of the cache folder, and write it where it does not exist.

    Args:
        renew: write it even where it exists.

    Raises:
        UsageError: see `cache_folder`.
        OSError: it cannot be written.
    """
    path = cache_folder() / name
    if renew or not path.exists():
        with temporary_folder(path.parent) as folder:
            written = folder / name
            written.write_bytes(content)
            os.replace(written, path)
    return path
