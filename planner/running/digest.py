"""Digests of a run's results."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt


def digest_of(array: npt.NDArray[Any]) -> str:
    """Return a digest of an array's type, shape and bits; of its texts, where it has strings."""
    array = np.ascontiguousarray(array)
    found = hashlib.blake2b(f"{array.dtype} {array.shape}".encode(), digest_size=16)
    if array.dtype.kind == "O":
        found.update(repr(array.tolist()).encode())
    else:
        found.update(array.reshape(-1).view(np.uint8).data)
    return found.hexdigest()
