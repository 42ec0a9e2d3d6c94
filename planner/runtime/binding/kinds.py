"""Types and shapes of a session's inputs and outputs, and the arrays that fit them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper

from planner.errors import UsageError
from planner.files.reading import closest

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedKind:
    """Name, type and shape of an input or output.

    Attributes:
        onnx_type: ONNX's number of its element type.
        dims: its dims; an open one is a name, or None.
    """

    name: str
    onnx_type: int
    dims: tuple[int | str | None, ...]

    @staticmethod
    def of(item: Any) -> FeedKind:
        """Return the kind of a session's input or output.

        Raises:
            UsageError: `item` is no tensor of numbers.
        """
        text = item.type.removeprefix("tensor(").removesuffix(")")
        number = getattr(TensorProto, text.upper(), None)
        if not item.type.startswith("tensor(") or number in (None, TensorProto.STRING):
            raise UsageError(
                f"{item.name!r} is {item.type}: planner.bind keeps tensors of numbers; use session.run"
            )
        return FeedKind(name=item.name, onnx_type=number, dims=tuple(item.shape))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type of an array of this kind."""
        return np.dtype(helper.tensor_dtype_to_np_dtype(self.onnx_type))

    @property
    def is_open(self) -> bool:
        """Whether it has open dims."""
        return not all(isinstance(dim, int) for dim in self.dims)

    def _fits(self, shape: Sequence[int]) -> bool:
        """Tell whether an array of this shape has its dims."""
        return len(self.dims) == len(shape) and all(
            not isinstance(dim, int) or dim == size
            for dim, size in zip(self.dims, shape, strict=True)
        )

    def empty(self, otherwise: str = "name it among the results") -> Array:
        """Allocate an array of this kind.

        Args:
            otherwise: the error's advice if it has open dims.

        Raises:
            UsageError: the kind has open dims.
        """
        shape = [dim for dim in self.dims if isinstance(dim, int)]
        if self.is_open:
            raise UsageError(f"{self.name!r} has open dims {list(self.dims)}: {otherwise}")
        return np.empty(shape, self.dtype)

    def checked(self, value: Array) -> Array:
        """Return the value as a contiguous array.

        Raises:
            UsageError: the value is no array of this type and shape.
        """
        array = np.asarray(value)
        if array.dtype != self.dtype:
            raise UsageError(
                f"{self.name!r} is an array of {array.dtype}, and the session reads {self.dtype}: "
                f"convert it (.astype({str(self.dtype)!r}))"
            )
        if not self._fits(array.shape):
            raise UsageError(
                f"{self.name!r} has the shape {list(array.shape)}, and the session reads "
                f"{list(self.dims)}"
            )
        return array if array.flags.c_contiguous else np.array(array, order="C")

    def check_updates(self, before: FeedKind, shape: Sequence[int]) -> None:
        """Raise UsageError unless an output like this can be fed as the input `before` of this shape."""
        if self.onnx_type != before.onnx_type or not self._fits(shape):
            raise UsageError(
                f"the output {self.name!r} ({self.dtype}, {list(self.dims)}) cannot be the next value of "
                f"the input {before.name!r} ({before.dtype}, {list(shape)}): name the pairs (updates=)"
            )


def check_known(names: Any, known: Mapping[str, Any], what: str) -> None:
    """Raise UsageError if a name is not among those that a session has."""
    strange = next((name for name in names if name not in known), None)
    if strange is not None:
        close = closest(strange, list(known), "are", most=3)
        raise UsageError(f"there is no {what} {strange!r}{close}")
