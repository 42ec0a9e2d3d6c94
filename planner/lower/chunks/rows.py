"""Ways in which an operation can be split into chunks of rows.

A *way* names an axis of inputs and outputs: the operation, run on the same stretch of all these axes,
makes that stretch of its outputs. An input without an axis is read whole by every chunk. An output
without one is a partial result: the chunks' results are added up.

    Gemm   A[rows, K] · B[K, N]      rows of A make rows of the product        (0, None) → 0
           A[K, M]ᵀ · B[K, N]        where the rows are summed over,           (0, 0) → added up
                                     as in the gradient of a weight

`planner.lower.chunks.row_rules` knows the ways of each operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

Shape = tuple[int, ...]
Axes = tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way in which an operation can be split.

    Attributes:
        inputs: by position, the axis that is cut; None for an input that is read whole or absent.
        outputs: by position, the axis that is cut; None for an unused output or a partial result.
        is_partial: whether each chunk makes a partial result, and these are added up.
        is_mean: whether partial results are means of the chunks' rows, to be weighted by their number.
        exact: whether the kernel computes each row by itself, and chunks change no bit.
    """

    inputs: Axes
    outputs: Axes
    is_partial: bool = False
    is_mean: bool = False
    exact: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A node, and the known properties of its values.

    Attributes:
        inputs: shapes by position; None for an absent input.
        outputs: shapes by position; None for an unused output.
        constants: elements of constant inputs, by position.
        opset: version of the ONNX operator set.
    """

    node: ir.Node
    inputs: tuple[Shape | None, ...]
    outputs: tuple[Shape | None, ...]
    constants: Mapping[int, np.ndarray]
    opset: int

    @property
    def made(self) -> Shape:
        """The shape of the first output."""
        shape = self.outputs[0]
        assert shape is not None
        return shape

    def read(self, place: int) -> Shape:
        """Return the shape of an input that is present."""
        shape = self.inputs[place]
        assert shape is not None
        return shape

    def has(self, place: int) -> bool:
        """Tell whether an input is present."""
        return place < len(self.inputs) and self.inputs[place] is not None

    def integer(self, name: str, default: int = 0) -> int:
        """Return an integer attribute."""
        return self.node.attributes.get_int(name, default)

    def numbers(self, place: int, attribute: str = "") -> tuple[int, ...] | None:
        """Return the integers of an input or an attribute; () where neither is present, None where
        unknown."""
        if self.has(place):
            found = self.constants.get(place)
            return None if found is None else tuple(int(v) for v in found.reshape(-1))
        return tuple(self.node.attributes.get_ints(attribute, ()))
