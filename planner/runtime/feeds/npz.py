"""Read arrays of an `.npz` from an unknown source.

Nothing is unpickled, and no data is read before its type and shape are known to be the expected ones.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from planner.errors import UsageError
from planner.files.reading import why_not_a_file

_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}

Check = Callable[[str, "np.dtype[Any]", tuple[int, ...]], None]


def read_arrays(path: Path, names: Iterable[str], check: Check) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays called `names`.

    Args:
        check: called with name, type and shape of each array before its data is read; may raise.

    Raises:
        UsageError: the file is no `.npz`, an array is missing, or its data is damaged.
    """
    if why := why_not_a_file(path):
        raise UsageError(f"{path} {why}")
    found: dict[str, npt.NDArray[Any]] = {}
    archive = _opened(path)
    with archive:
        for name in names:
            member = f"{name}.npy"
            if member not in archive.namelist():
                raise UsageError(f"{path} has no array for the model's input {name!r}")
            check(name, *_header(archive, member, path))
            found[name] = _data(archive, member, path)
    return found


def _opened(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise UsageError(
            f"{path} cannot be read as an .npz of arrays ({error}); write it with numpy.savez"
        ) from None


def _header(
    archive: zipfile.ZipFile, member: str, path: Path
) -> tuple[np.dtype[Any], tuple[int, ...]]:
    try:
        with archive.open(member) as file:
            shape, _, dtype = _HEADERS[npy.read_magic(file)](file)
    except Exception as error:  # zip's and numpy's errors are of a dozen kinds
        raise _damaged(path, member, error) from None
    return dtype, shape


def _data(archive: zipfile.ZipFile, member: str, path: Path) -> npt.NDArray[Any]:
    try:
        with archive.open(member) as file:
            array = npy.read_array(file, allow_pickle=False)
            if file.read(1):
                raise ValueError("more data than its shape says")
    except MemoryError:
        raise UsageError(f"{path}: there is not enough memory for {member}") from None
    except Exception as error:  # as above
        raise _damaged(path, member, error) from None
    return array


def _damaged(path: Path, member: str, error: Exception) -> UsageError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return UsageError(f"{path}: {member} cannot be read as an array ({reason})")
