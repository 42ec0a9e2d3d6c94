"""The clock that a search looks at: the machine's, or one that counts the work done.

With the machine's clock, a busy machine gives a search less time to find a plan, and another plan comes
of it. A counted clock goes on by what the search has done: an action replayed, a pivot of a linear
program, the solver's own deterministic time. Each is worth about the seconds that it takes on one core,
so that a time limit means about the same; and the same question has the same answer on any machine, under
any load.

A search that counts runs on one thread, and in one process: which of two ends first is the machine's to
say. What cannot be counted (integer programs of HiGHS) is left out.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

_LOOK_S = 2e-5
"""What a look at a counted clock takes, so that no loop that only looks goes on for ever."""

SIMULATED_S = 4e-6
"""Of an action that `planner.simulate` replays."""

COMPILED_S = 3e-8
"""Of an operation in a schedule that compiled code writes or replays."""

REPAIRED_S = 2e-6
"""Of an operation in a round of repair."""

CLOSED_S = 3e-7
"""Of an operation in the chain that brings a tensor back."""

PART_S = 0.02
"""Of a part of a plan that is made a model for CP-SAT."""

MOVED_S = 1e-7
"""Of an operation in an order that is tried."""

CUT_S = 3e-7
"""Of an arc in a minimum cut."""

COLUMN_S = 3e-5
"""Of a column in a small linear program."""

PIVOT_S = 2e-8
"""Of a coefficient, in a pivot of a linear program."""

SOLVER_S = 8.0
"""Of a unit of CP-SAT's deterministic time."""

FITTED_S = 2e-7
"""Of a unit of an order whose arena is replayed."""

GROWN_S = 1e-5
"""Of a node that is looked at for a region of chunks."""

LOWERED_S = 3e-4
"""Of an operation of a model that is written and read back."""

_one_at_a_time = threading.RLock()
_counts: list[float] = []
"""Seconds that were counted; none where the machine's clock is looked at."""


def now() -> float:
    """Seconds since some moment: of `time.monotonic`, or those counted."""
    if not _counts:
        return time.monotonic()
    spend(_LOOK_S)
    return _counts[-1]


def spend(seconds: float) -> None:
    """Have a counted clock go on by what was done; the machine's goes on by itself."""
    if _counts:
        _counts[-1] += seconds


def is_counted() -> bool:
    """Whether work is counted."""
    return bool(_counts)


@contextlib.contextmanager
def counting(*, is_asked: bool = True) -> Iterator[None]:
    """Count work, from 0, as long as the block lasts; one such block of the process at a time.

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
