"""What the depth-first search for offsets keeps: an instance, and a state a level, as arrays."""

from __future__ import annotations

import enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from planner.pack.instance import Ints

Flags = npt.NDArray[np.uint8]
Digests = npt.NDArray[np.uint64]

NEVER = 1 << 60  # above any offset in units
# rows of `Levels.buffers`: the floor (the offset, where placed), and what is known of it
FLOOR, STATUS = 0, 1
PLACED, LOOSE, HELD = 0, 1, 2
# rows of `Levels.sections`: open units and buffers that cover the section before, too; the level that
# cut its part off; the lowest floor, whose, and the next; the same for tops; how many can be lowest
REST, BRIDGES, ORIGIN, LOW, LOW_OF, LOW_2, TOP, TOP_OF, TOP_2, CHOICES = range(10)

OUT_OF_STATES, PACKED_ALL, EXHAUSTED = 0, 1, 2


class Pick(enum.IntEnum):
    """Which buffer is decided about next; the static order breaks ties."""

    LOWEST = 0
    FEWEST_CHOICES = 1  # of a section in which the fewest buffers can be lowest, then the lowest


class Tables(NamedTuple):
    """An instance within a capacity, in units. `beside` and `member` are ragged lists, flat: the
    buffers beside i are `beside[beside_at[i]:beside_at[i + 1]]`."""

    first: Ints
    last: Ints
    size: Ints
    alignment: Ints
    highest: Ints
    kind: Ints  # the same for buffers that only their number tells apart
    beside_at: Ints
    beside: Ints
    member_at: Ints
    member: Ints
    capacity: np.int64


class Levels(NamedTuple):
    """The states from the root down to the one at hand, one a level, and scratch.

    Attributes:
        buffers: [levels, 2, buffers]; sections: [levels, 10, sections]: see the rows above.
        begin, end: the sections of the part that is searched at a level, half-open.
        is_root: whether the part is searched from this level on.
        chosen, is_free: the buffer decided about, and whether its place costs nothing, so that
            there is no other branch.
        digest: of the state as it was entered.
        touched: sections to look at again.
        cursor: the level at hand; whether it may still come to something; whether it is new.
        failed: digests of failed states, at their place modulo the length.
    """

    buffers: Ints
    sections: Ints
    begin: Ints
    end: Ints
    is_root: Flags
    chosen: Ints
    is_free: Flags
    digest: Digests
    touched: Flags
    cursor: Ints
    failed: Digests
