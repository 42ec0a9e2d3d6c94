"""The decisions of a plan: keep, drop or swap, per gap.

A decision belongs to a gap: the stretch between two consecutive events of a tensor (its production
and its base uses; gap g opens at event g). Undecided gaps keep their tensor.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

Gap = tuple[int, int]
"""(tensor index, index of the event that opens the gap)."""


class Choice(enum.IntEnum):
    """The fate of a tensor in a gap."""

    DROP = 1
    SWAP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """All decisions of one plan.

    Attributes:
        gaps: DROP or SWAP per gap; absent gaps keep.
        extended: tensors kept beyond their last base use, for recomputes that read them.
        released: gaps in which a tensor brought back early, for another recompute, is dropped again
            instead of waiting for its next base use.
        early: by gap, the base operation before which the tensor comes back, instead of just in
            time.
    """

    gaps: Mapping[Gap, Choice] = field(default_factory=dict)
    extended: Set[int] = frozenset()
    released: Set[Gap] = frozenset()
    early: Mapping[Gap, int] = field(default_factory=dict)
