"""Calls of the library's functions with arrays of numpy's.

A C++ struct of arrays and whole numbers is handed over as words of 8 bytes: an array's address and its
length, a number's value, in the order of the fields.
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
    """A struct of these fields. It holds addresses alone: the arrays must outlive it."""
    made: list[int] = []
    for field in fields:
        if isinstance(field, np.ndarray):
            assert field.flags.c_contiguous, "an array of the library's has no gaps"
            made += (field.__array_interface__["data"][0], field.size)
        else:
            made.append(int(field))
    return (ctypes.c_void_p * len(made))(*made)


def address(array: np.ndarray) -> ctypes.c_void_p:
    """Where an array begins, for a function that fills it."""
    return ctypes.c_void_p(array.__array_interface__["data"][0])


def random_words(rng: np.random.Generator) -> tuple[int, int]:
    """The fields of the struct `Random`: numpy's documented way into a bit generator from C."""
    interface = rng.bit_generator.ctypes
    return interface.state_address, ctypes.cast(interface.next_double, ctypes.c_void_p).value or 0


@cache
def function(name: str) -> Callable[..., int]:
    """A function of the library that returns a whole number, and lets other threads run meanwhile.

    Raises:
        UsageError: the library is not built; the message says what to do.
        MemoryError: when called: there was not enough.
    """
    found: Any = library()[name]
    found.restype = ctypes.c_int64
    found.errcheck = _checked
    return found


def _checked(result: int, *_: Any) -> int:
    if result == _NO_MEMORY:
        raise MemoryError("planner's native library could not have the memory that it needs")
    return result
