"""Read files that others wrote: the one step between a file and values that may be trusted.

A file must be regular, of a bounded size, its text UTF-8, and its JSON of the expected types
(`planner.files.structuring`). Any other file becomes an error of one line that names the file and
the fault. Models have their own checks (`planner.onnxio`), behind the same `read_bytes`.
"""

from __future__ import annotations

import math
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from planner.errors import ModelError, PlannerError

MAX_BYTES = 1 << 62
"""The largest size in bytes that planner computes with, of one tensor or of all together: the sum of
two still fits the 64 bits of the search's arrays."""

MAX_TEXT_BYTES = 1 << 30
"""The largest text file that is read."""

_SHOWN = 40
_NEARLY = 0.8
"""The least similarity of a file's name to the one that was meant (`closest`)."""


def why_not_a_file(path: Path) -> str:
    """Return why `path` cannot be read as a file ("is a folder; name a file"), or "" where it can."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return f"does not exist{_like(path)}"
    except (OSError, ValueError) as error:
        return f"cannot be read: {_reason(error)}"
    if stat.S_ISREG(mode):
        return ""
    if stat.S_ISDIR(mode):
        return "is a folder; name a file"
    return "is no regular file (a pipe, a socket or a device); copy it to a file first"


def _like(path: Path) -> str:
    """Return the end of a message that names the most similar file beside `path`."""
    try:
        names = sorted(each.name for each in path.parent.iterdir())
    except OSError:
        return ""
    return closest(path.name, names, "name there is", most=1, cutoff=_NEARLY)


def read_bytes(
    path: Path,
    *,
    what: str,
    error: type[PlannerError] = ModelError,
    at_most: int = MAX_TEXT_BYTES,
) -> bytes:
    """Read a regular file.

    Args:
        what: the kind of file with its article, for the message: "a plan file".
        error: the type to raise where the file cannot be read.
        at_most: bytes; a larger file is refused before it is read.
    """
    if why := why_not_a_file(path):
        raise error(f"{path} {why}")
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size > at_most:
                raise error(f"{path} is not {what}: it has {size} bytes, more than {at_most}")
            file.seek(0)
            return file.read()
    except OSError as reason:
        raise error(f"{path} cannot be read: {_reason(reason)}") from None


def read_text(path: Path, *, what: str, error: type[PlannerError] = ModelError) -> str:
    """Read a regular file as UTF-8 text; `what` and `error` as for `read_bytes`."""
    data = read_bytes(path, what=what, error=error)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as reason:
        raise error(f"{path} is not {what}: byte {reason.start} is not UTF-8 text") from None


def shown(value: Any) -> str:
    """Return a file's value for a message, in at most 40 characters."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits; too deep
        return f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def closest(wish: str, known: Sequence[str], said: str, *, most: int, cutoff: float = 0.4) -> str:
    """Return the end of a message that names the words most like `wish`; "" where none is.

    Args:
        said: the phrase before them: "are", "names are".
        most: the largest number of words to name.
        cutoff: the least similarity, from 0 to 1 (`difflib.get_close_matches`).
    """
    import difflib

    close = difflib.get_close_matches(wish, known, n=most, cutoff=cutoff)
    return f"; the closest {said} {', '.join(map(repr, close))}" if close else ""


def is_amount(value: float, *, at_most: float = math.inf) -> bool:
    """Tell whether `value` is a finite number from 0 to `at_most`."""
    return 0 <= value <= at_most and value != math.inf


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
