"""What a model would take if its numbers were stored in another way: in half, or sparsely.

Whole-graph low precision and sparsity change a model's results, and planner does not make such models.
What they would save can be read off the graph: the same operations in the same order, with other sizes.

    bf16, fp16    every floating-point tensor takes 2 bytes an element: parameters, optimizer state,
                  activations, gradients
    sparse=R      of each parameter with two or more dims, a share R of the elements is kept, in
                  compressed sparse rows; of its optimizer state, the same elements

Compressed sparse rows hold, for a tensor of `rows` times `columns` elements, its kept values, a column
index for each, and `rows + 1` row pointers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, get_args

from planner.errors import UsageError
from planner.files.reading import shown
from planner.graph.categories import updated_value_of
from planner.graph.model import Category, Operation, Tensor, TrainingGraph

Half = Literal["bf16", "fp16"]
HALVES: tuple[Half, ...] = get_args(Half)
HALF_BYTES = 2
INDEX_BYTES = 4
"""Of a column index, and of a row pointer: 32 bits, as PyTorch and cuSPARSE have them by default."""

_WIDE = {"float": 4, "float32": 4, "double": 8, "float64": 8}
"""Floating-point types that are wider than half, and their bytes."""

_EXAMPLES = "bf16, fp16, sparse=0.3, or two of them with a comma: bf16,sparse=0.3"


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """One question.

    Attributes:
        text: as it was asked.
        half: the type of every floating-point tensor; None for those that the model has.
        kept: share of a parameter's elements that is kept, above 0 and at most 1; None for all of
            them, stored as they are.
    """

    text: str
    half: Half | None = None
    kept: Fraction | None = None

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is assumed, one sentence each."""
        found = [
            "the operations and their order are those of the model as it is; kernels' workspace is "
            "counted as it is there"
        ]
        if self.half is not None:
            found.append(
                f"{self.half}: every floating-point tensor takes {HALF_BYTES} bytes an element, "
                "parameters, optimizer state, activations and gradients alike, with no copy of "
                "anything in 32 bits; integers and booleans stay as they are"
            )
        if self.kept is not None:
            found.append(
                f"sparse: of each parameter with two or more dims {_percent(self.kept)} of the elements "
                f"are kept, in compressed sparse rows: their values, {INDEX_BYTES} bytes of column "
                f"index each, {INDEX_BYTES} bytes a row and {INDEX_BYTES} more; a row is all that "
                "shares the first index"
            )
            found.append(
                "sparse: optimizer state, new parameters and new state hold values at the same places, "
                "with no indices of their own; gradients, activations and parameters of one dim are "
                "dense"
            )
        return tuple(found)


def parse_what_if(text: str) -> WhatIf:
    """`"bf16"`, `"sparse=0.3"`, `"fp16,sparse=0.3"`.

    Raises:
        UsageError: it is none of these.
    """
    half: Half | None = None
    kept: Fraction | None = None
    for part in (part.strip() for part in text.split(",")):
        name, _, value = part.partition("=")
        if part in HALVES and half is None:
            half = part
        elif name.strip() == "sparse" and kept is None:
            kept = _share(value.strip(), text)
        else:
            raise UsageError(f"--as {shown(text)} is not one of {_EXAMPLES}")
    return WhatIf(text=text, half=half, kept=kept)


def _share(value: str, text: str) -> Fraction:
    plain = len(value) <= 12 and value.replace(".", "", 1).isascii()
    plain = plain and value.replace(".", "", 1).isdigit()
    share = Fraction(value) if plain else Fraction(0)
    if not 0 < share <= 1:
        raise UsageError(
            f"--as {shown(text)}: the share of elements that is kept lies above 0 and is at most 1, "
            "as in sparse=0.3"
        )
    return share


def stored_as(graph: TrainingGraph, what_if: WhatIf) -> TrainingGraph:
    """The same graph with the sizes that its tensors would have.

    Raises:
        UsageError: nothing in it would change.
    """
    parents = {t.name: t for t in graph.tensors}
    tensors = tuple(_stored(tensor, parents, what_if) for tensor in graph.tensors)
    if all(a.bytes == b.bytes for a, b in zip(tensors, graph.tensors, strict=True)):
        what = (
            "parameter with two or more dims"
            if what_if.half is None
            else "floating-point tensor of more than 16 bits"
        )
        raise UsageError(
            f"--as {shown(what_if.text)} changes nothing: the model has no {what}; leave it out"
        )
    operations = tuple(_in_place_where_equal(op, tensors) for op in graph.operations)
    return replace(graph, tensors=tensors, operations=operations)


def _stored(tensor: Tensor, parents: Mapping[str, Tensor], what_if: WhatIf) -> Tensor:
    size, wide = tensor.bytes, _WIDE.get(tensor.dtype)
    if wide is None:
        return tensor
    item, count = wide, math.prod(tensor.shape)
    if what_if.half is not None:
        item, size = HALF_BYTES, tensor.bytes // wide * HALF_BYTES
    if what_if.kept is not None and len(tensor.shape) >= 2:
        values = math.ceil(count * what_if.kept)
        if tensor.category is Category.PARAMETER:
            size = values * (item + INDEX_BYTES) + (tensor.shape[0] + 1) * INDEX_BYTES
        elif _is_of_parameter(tensor, parents):
            size = values * item
    return replace(tensor, bytes=size, dtype=what_if.half or tensor.dtype)


def _is_of_parameter(tensor: Tensor, parents: Mapping[str, Tensor]) -> bool:
    """Whether it is optimizer state, or the new value of that or of a parameter."""
    if tensor.category is Category.OPTIMIZER_STATE:
        return True
    parent = parents.get(updated_value_of(tensor.name) or "")
    of = (Category.PARAMETER, Category.OPTIMIZER_STATE)
    return tensor.is_output and parent is not None and parent.category in of


def _in_place_where_equal(op: Operation, tensors: Sequence[Tensor]) -> Operation:
    """Without the pairs that are no longer of one size: a Cast from 32 bits to an integer's, say."""
    pairs = tuple((a, b) for a, b in op.inplace if tensors[a].bytes == tensors[b].bytes)
    return op if pairs == op.inplace else replace(op, inplace=pairs)


def _percent(share: Fraction) -> str:
    return f"{float(share * 100):g}%"
