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
        inputs: by position: the axis that is cut; None for what is read whole, or absent.
        outputs: by position: the axis that is cut; None where nobody wants it, or chunks make parts.
        is_partial: each chunk makes a part of the result, and these are added up.
        is_mean: such parts are means of the chunks' rows, to be weighted by their number.
        exact: the kernel works out each row by itself, so that no bit depends on the chunks.
    """

    inputs: Axes
    outputs: Axes
    is_partial: bool = False
    is_mean: bool = False
    exact: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A node, and what is known of its values.

    Attributes:
        inputs: shapes by position; None for what is absent.
        outputs: shapes by position; None for what nobody wants.
        constants: elements of inputs that are known before the model runs, by position.
        opset: version of the ONNX operator set.
    """

    node: ir.Node
    inputs: tuple[Shape | None, ...]
    outputs: tuple[Shape | None, ...]
    constants: Mapping[int, np.ndarray]
    opset: int

    @property
    def made(self) -> Shape:
        """Shape of the first output."""
        shape = self.outputs[0]
        assert shape is not None
        return shape

    def read(self, place: int) -> Shape:
        """Shape of an input that is there."""
        shape = self.inputs[place]
        assert shape is not None
        return shape

    def has(self, place: int) -> bool:
        """Whether an input is there."""
        return place < len(self.inputs) and self.inputs[place] is not None

    def integer(self, name: str, default: int = 0) -> int:
        """An attribute."""
        found = self.node.attributes.get(name)
        return default if found is None else found.as_int()

    def numbers(self, place: int, attribute: str = "") -> tuple[int, ...] | None:
        """Integers that an input or an attribute holds; () where neither is there, None where they are
        not known."""
        if self.has(place):
            found = self.constants.get(place)
            return None if found is None else tuple(int(v) for v in found.reshape(-1))
        older = self.node.attributes.get(attribute) if attribute else None
        return () if older is None else tuple(older.as_ints())
