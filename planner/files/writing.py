"""File names as callers give them, and checks of output paths before any work is done."""

from __future__ import annotations

import os
from pathlib import Path

from planner.errors import UsageError
from planner.files.reading import shown

FileName = str | os.PathLike[str]
"""A file's name, as a caller may give it."""


def path_or_none(name: FileName | None) -> Path | None:
    """Return the path of an optional file."""
    return None if name is None else Path(name)


def check_writable(path: Path, *, force: bool) -> None:
    """Raise UsageError unless a new file can be written at `path`.

    The folder must exist and be writable, and the file must not exist unless `force` is set.
    """
    folder = path.parent
    if not os.path.isdir(folder):
        raise UsageError(f"output folder {folder} does not exist")
    most = os.pathconf(folder, "PC_NAME_MAX")
    if (length := len(os.fsencode(path.name))) > most:
        raise UsageError(
            f"output name {shown(path.name)} is {length} bytes long; {folder} takes at most {most}"
        )
    if path.is_dir():
        raise UsageError(f"output {path} is a folder; name a file")
    if os.path.islink(path) and not os.path.exists(path):
        raise UsageError(f"output {path} is a link that leads nowhere; remove it first")
    if path.exists() and not path.is_file():
        raise UsageError(f"output {path} is no regular file; name another")
    if path.exists() and not force:
        raise UsageError(f"output {path} exists; pass -f/--force to overwrite it")
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise UsageError(f"output {path} cannot be written")
