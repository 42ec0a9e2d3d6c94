"""Runs of a session on NumPy arrays of every tensor type.

`InferenceSession.run` exchanges no bfloat16 and no float8 with NumPy
(onnxruntime/python/onnxruntime_pybind_mlvalue.cc). Here such arrays have the types of `ml_dtypes`, and
their bytes are handed over as they are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import ml_dtypes
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import onnxruntime as ort

Array = npt.NDArray[Any]

_TYPES: dict[str, tuple[int, np.dtype[Any]]] = {
    "tensor(bfloat16)": (16, np.dtype(ml_dtypes.bfloat16)),
    "tensor(float8e4m3fn)": (17, np.dtype(ml_dtypes.float8_e4m3fn)),
    "tensor(float8e4m3fnuz)": (18, np.dtype(ml_dtypes.float8_e4m3fnuz)),
    "tensor(float8e5m2)": (19, np.dtype(ml_dtypes.float8_e5m2)),
    "tensor(float8e5m2fnuz)": (20, np.dtype(ml_dtypes.float8_e5m2fnuz)),
}
"""ONNX's number and the arrays' element type of each type that ONNX Runtime does not exchange with NumPy.

`onnx` is not imported for the numbers: a script's first session would wait for it.
"""


def run_arrays(
    session: ort.InferenceSession,
    feeds: Mapping[str, Array],
    names: Sequence[str] | None = None,
    run_options: ort.RunOptions | None = None,
) -> list[Any]:
    """Run a session once on the CPU; return its results as `session.run` does.

    Args:
        feeds: by input name. An input of a type that NumPy lacks takes bare bytes, too (`is_raw`).
        names: of the results; by default all outputs.

    Raises:
        TypeError: such an input is fed an array of another type. Errors of ONNX Runtime are raised
            as they are.
    """
    narrow = _narrow_inputs(session)
    if narrow is None:
        return list(session.run(names, dict(feeds), run_options))
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, _value(name, array, narrow.get(name)))
    for name in [item.name for item in session.get_outputs()] if names is None else names:
        binding.bind_output(name)
    session.run_with_iobinding(binding, run_options)
    return [to_numpy(value) for value in binding.get_outputs()]


def to_numpy(value: Any) -> Array:
    """Return a copy of an `OrtValue` on the host."""
    if value.data_type() not in _TYPES:
        return np.array(value.numpy())
    made = np.empty(value.shape(), _TYPES[value.data_type()][1])
    ctypes.memmove(made.ctypes.data, value.data_ptr(), made.nbytes)
    return made


def is_raw(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Tell whether arrays of type `given` hold elements of a type that NumPy lacks as bare bytes.

    `numpy.load` returns such arrays for what `numpy.save` wrote.
    """
    return is_narrow(wanted) and given.type is np.void and given.itemsize == wanted.itemsize


def is_narrow(dtype: np.dtype[Any]) -> bool:
    """Tell whether it is one of the floats that `ml_dtypes` adds to NumPy and ONNX Runtime has."""
    return any(dtype == narrow for _, narrow in _TYPES.values())


def storable(array: Array) -> Array:
    """Return a view of the same memory with an element type that ONNX Runtime takes from NumPy."""
    return array if array.dtype.isbuiltin == 1 else array.view(f"u{array.dtype.itemsize}")


_NARROW_INPUTS: WeakKeyDictionary[ort.InferenceSession, dict[str, str] | None] = WeakKeyDictionary()
"""Found once for each session: a run that is timed does not ask for every type."""


def _narrow_inputs(session: ort.InferenceSession) -> dict[str, str] | None:
    """Return the types of a session's inputs that NumPy lacks; None if no output has one either."""
    if session not in _NARROW_INPUTS:
        found = {item.name: item.type for item in session.get_inputs() if item.type in _TYPES}
        is_plain = not found and all(o.type not in _TYPES for o in session.get_outputs())
        _NARROW_INPUTS[session] = None if is_plain else found
    return _NARROW_INPUTS[session]


def _value(name: str, array: Array, kind: str | None) -> Any:
    """Return an `OrtValue` of the array's elements.

    Args:
        kind: the input's type if NumPy lacks it; otherwise None.
    """
    import onnxruntime as ort

    if kind is None:
        return ort.OrtValue.ortvalue_from_numpy(array)
    number, dtype = _TYPES[kind]
    if array.dtype != dtype and not is_raw(array.dtype, dtype):
        raise TypeError(
            f"input {name!r} is an array of {array.dtype}, and the session reads {dtype}"
        )
    plain = np.asarray(array, order="C").view(f"u{dtype.itemsize}")
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(plain, number)
