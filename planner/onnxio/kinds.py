"""Types of values: a tensor with an element type and a shape, or a sequence of tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx_ir as ir

from planner.onnxio.dims import Shape

SEQUENCE = "sequence"

_KEY = "planner.items"
GRANULARITY_BYTES = 256
"""ONNX Runtime's arenas round every buffer up to this, those of pinned memory too (bfc_arena.h,
`kMinAllocationSize`)."""

PAGE_BYTES = 4096
"""Of the pool on the CPU."""

_STRING_BITS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """An upper bound on the content of a sequence.

    Attributes:
        dtype: element type of its items.
        shapes: shapes of its items, in order; None where their number is unknown.
        bytes: rounded bytes of all items.
    """

    dtype: ir.DataType
    shapes: tuple[Shape, ...] | None
    bytes: int


def is_sequence(value: ir.Value) -> bool:
    """Tell whether a value is a sequence, or an optional one."""
    kind = value.type
    if isinstance(kind, ir.OptionalType):
        kind = kind.elem_type
    return isinstance(kind, ir.SequenceType)


def items_of(value: ir.Value) -> Items | None:
    """Return the items that inference found for a sequence; None where it found none."""
    found = value.meta.get(_KEY)
    return found if isinstance(found, Items) else None


def set_items(value: ir.Value, items: Items) -> None:
    """Record the items of a sequence."""
    value.meta[_KEY] = items


def bits_of(dtype: ir.DataType) -> int:
    """Return the bits of an element.

    A string has 32 bytes, as ONNX Runtime counts it (`sizeof(std::string)`); the text of a long one
    lies outside of that. The type UNDEFINED stands for values that are counted in bytes.
    """
    if dtype == ir.DataType.STRING:
        return _STRING_BITS
    return 8 if dtype == ir.DataType.UNDEFINED else dtype.bitwidth


def rounded(shape: Shape, dtype: ir.DataType) -> int:
    """Bytes of an item, rounded up as an arena does below a page, and as the pool does from one on."""
    size = -(-math.prod(shape) * bits_of(dtype) // 8)
    unit = GRANULARITY_BYTES if size < PAGE_BYTES else PAGE_BYTES
    return max(1, -(-size // unit)) * unit


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueType:
    """Element type and static shape of a value.

    A sequence has the type UNDEFINED, and one dim, its bytes
    (`planner.onnxio.shape_rules.sequences`).
    """

    dtype: ir.DataType
    shape: Shape

    @property
    def bytes(self) -> int:
        """The size in bytes, with sub-byte types packed."""
        return -(-math.prod(self.shape) * bits_of(self.dtype) // 8)

    @property
    def called(self) -> str:
        """The type's name, as in `planner.graph.model.Tensor`."""
        return SEQUENCE if self.dtype == ir.DataType.UNDEFINED else self.dtype.name.lower()
