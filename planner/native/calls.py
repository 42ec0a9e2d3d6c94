"""Calls of the native library's functions with numpy arrays.

A C++ struct of arrays and whole numbers is passed as words of 8 bytes, in the order of its fields: an
array's address and its length, a number's value.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np

from planner.native import library

_NO_MEMORY = -(1 << 63)


def words(fields: Iterable[np.ndarray | int]) -> ctypes.Array[ctypes.c_void_p]:
    """Build a C++ struct of these fields. It holds only addresses: the arrays must outlive it."""
    made: list[int] = []
    for field in fields:
        if isinstance(field, np.ndarray):
            assert field.flags.c_contiguous, "an array of the library's has no gaps"
            made += (field.__array_interface__["data"][0], field.size)
        else:
            made.append(int(field))
    return (ctypes.c_void_p * len(made))(*made)


def address(array: np.ndarray) -> ctypes.c_void_p:
    """Return the address of an array, for a function that fills it."""
    return ctypes.c_void_p(array.__array_interface__["data"][0])


def random_words(rng: np.random.Generator) -> tuple[int, int]:
    """Return the fields of the struct `Random`: numpy's documented interface to a bit generator from
    C."""
    interface = rng.bit_generator.ctypes
    return interface.state_address, ctypes.cast(interface.next_double, ctypes.c_void_p).value or 0


@cache
def function(name: str) -> Callable[..., int]:
    """Return a library function that returns a whole number and releases the GIL while it runs.

    Raises:
        UsageError: the library is not built; the message says what to do.
        MemoryError: raised by the returned function, where memory did not suffice.
    """
    found: Any = library()[name]
    found.restype = ctypes.c_int64
    found.errcheck = _checked
    return found


def _checked(result: int, *_: Any) -> int:
    if result == _NO_MEMORY:
        raise MemoryError("planner's native library could not get the memory that it needs")
    return result
