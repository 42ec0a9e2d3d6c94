"""The clock of a search, which counts the work done.

On a busy machine, a search by the machine's clock has less time and finds another plan. A counted
clock advances by the work done: an action replayed, a pivot of a linear program, CP-SAT's own
deterministic time. Each unit is worth about the seconds that it takes on one core, and a time limit
means about the same on both clocks. The same question has the same answer, on any machine, under any
load, if the search ends by itself or by its counted limit.

A command keeps its time limit in seconds, too: once that has passed on the machine's clock, a capped
count follows the machine's clock, and every search that is due by the limit ends.

A search on a counted clock runs on one thread of one process, since the machine decides which of two
threads ends first. Outside of `counting`, the clock is the machine's.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

_LOOK_S = 2e-5
"""Seconds for a look at a counted clock: a loop that only looks at the clock ends too."""

SIMULATED_S = 2.5e-6
"""Seconds for an action that `planner.simulate` replays."""

COMPILED_S = 2e-8
"""Seconds for an operation in a schedule that compiled code writes or replays."""

REPAIRED_S = 1.2e-6
"""Seconds for an operation in a round of repair."""

CLOSED_S = 2e-7
"""Seconds for an operation in the chain of recomputes that brings a tensor back."""

PART_S = 0.012
"""Seconds to turn a part of a plan into a model for CP-SAT."""

MOVED_S = 6e-8
"""Seconds for an operation in an order that is tried."""

EVICTED_S = 4e-8
"""Seconds for a tensor that is looked at before one is dropped, and for a run of an operation."""

CUT_S = 2e-7
"""Seconds for an arc in a minimum cut."""

COLUMN_S = 2e-5
"""Seconds for a column of a small linear program."""

PIVOT_S = 1.2e-8
"""Seconds for a coefficient, in a pivot of a linear program."""

SOLVER_S = 4.5
"""Seconds for a unit of CP-SAT's deterministic time."""

FITTED_S = 1.2e-7
"""Seconds for a unit of an order whose arena is replayed."""

GROWN_S = 6e-6
"""Seconds for a node that is considered for a region of chunks."""

LOWERED_S = 3e-4
"""Seconds for an operation of a model that is written and read back."""


@dataclass(slots=True)
class _Count:
    """The work counted in a `counting` block.

    Attributes:
        until: when the count begins to follow the machine's clock (`time.monotonic`).
        then_s: the count at that moment, at least.
    """

    is_capped: bool
    seconds: float = 0.0
    until: float = math.inf
    then_s: float = 0.0


_count: ContextVar[_Count | None] = ContextVar("count", default=None)


def now() -> float:
    """Return seconds since some moment: as counted or, outside of `counting`, by `time.monotonic`."""
    count = _count.get()
    if count is None:
        return time.monotonic()
    count.seconds += _LOOK_S
    late_s = time.monotonic() - count.until
    if late_s > 0:
        count.seconds = max(count.seconds, count.then_s + late_s)
    return count.seconds


def spend(seconds: float) -> None:
    """Advance a counted clock by the work done; do nothing to the machine's clock."""
    count = _count.get()
    if count is not None:
        count.seconds += seconds


def is_counted() -> bool:
    """Tell whether the clock counts work."""
    return _count.get() is not None


def is_capped() -> bool:
    """Tell whether the clock counts work, and `cap` limits the machine's seconds."""
    count = _count.get()
    return count is not None and count.is_capped


def cap(seconds: float, due_s: float | None = None) -> None:
    """Let a capped count follow the machine's clock once so many seconds have passed there.

    An earlier cap no longer holds.

    Args:
        due_s: the count is then at least so many seconds from here; None for as many as the machine's.
    """
    count = _count.get()
    if count is not None and count.is_capped:
        count.until = time.monotonic() + seconds
        count.then_s = count.seconds + (seconds if due_s is None else due_s)


def machine_s(limit_s: float) -> float:
    """Return the machine's seconds for work that does not look at this clock; infinite for no limit.

    Before the cap they are the seconds until then, 0.05 at least.

    Args:
        limit_s: limit of the work by this clock.
    """
    count = _count.get()
    if count is None:
        return limit_s
    left_s = count.until - time.monotonic()
    return max(0.05, left_s) if left_s > 0 else limit_s


@contextlib.contextmanager
def counting(*, is_capped: bool = False) -> Iterator[None]:
    """Count work, from 0, until the block ends, in this thread.

    Args:
        is_capped: `cap` limits the machine's seconds.
    """
    token = _count.set(_Count(is_capped=is_capped))
    try:
        yield
    finally:
        _count.reset(token)
