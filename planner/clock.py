"""The clock of a search: the machine's clock, or one that counts the work done.

On a busy machine, a search by the machine's clock has less time and finds another plan. A counted
clock advances by the work done: an action replayed, a pivot of a linear program, CP-SAT's own
deterministic time. Each unit is worth about the seconds that it takes on one core, and a time limit
means about the same on both clocks. The same question has the same answer on any machine, under any
load.

A search on a counted clock runs on one thread of one process, since the machine decides which of two
threads ends first. It leaves out work that cannot be counted (integer programs of HiGHS).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

_LOOK_S = 2e-5
"""Seconds for a look at a counted clock: a loop that only looks at the clock ends too."""

SIMULATED_S = 4e-6
"""Seconds for an action that `planner.simulate` replays."""

COMPILED_S = 3e-8
"""Seconds for an operation in a schedule that compiled code writes or replays."""

REPAIRED_S = 2e-6
"""Seconds for an operation in a round of repair."""

CLOSED_S = 3e-7
"""Seconds for an operation in the chain of recomputes that brings a tensor back."""

PART_S = 0.02
"""Seconds to turn a part of a plan into a model for CP-SAT."""

MOVED_S = 1e-7
"""Seconds for an operation in an order that is tried."""

EVICTED_S = 7e-8
"""Seconds for a tensor that is looked at before one is dropped, and for a run of an operation."""

CUT_S = 3e-7
"""Seconds for an arc in a minimum cut."""

COLUMN_S = 3e-5
"""Seconds for a column of a small linear program."""

PIVOT_S = 2e-8
"""Seconds for a coefficient, in a pivot of a linear program."""

SOLVER_S = 8.0
"""Seconds for a unit of CP-SAT's deterministic time."""

FITTED_S = 2e-7
"""Seconds for a unit of an order whose arena is replayed."""

GROWN_S = 1e-5
"""Seconds for a node that is considered for a region of chunks."""

LOWERED_S = 3e-4
"""Seconds for an operation of a model that is written and read back."""

_one_at_a_time = threading.RLock()
_counts: list[float] = []
"""Seconds counted by the open `counting` block; empty while the machine's clock is in use."""


def now() -> float:
    """Return seconds since some moment: by `time.monotonic`, or as counted."""
    if not _counts:
        return time.monotonic()
    spend(_LOOK_S)
    return _counts[-1]


def spend(seconds: float) -> None:
    """Advance a counted clock by the work done; do nothing to the machine's clock."""
    if _counts:
        _counts[-1] += seconds


def is_counted() -> bool:
    """Tell whether the clock counts work."""
    return bool(_counts)


@contextlib.contextmanager
def counting(*, is_asked: bool = True) -> Iterator[None]:
    """Count work, from 0, until the block ends; the process has one such block at a time.

    Args:
        is_asked: False leaves the clock as it is.
    """
    if not is_asked:
        yield
        return
    with _one_at_a_time:
        _counts.append(0.0)
        try:
            yield
        finally:
            _counts.pop()
