"""Calls shared out between this process and one beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

from planner.processes.workers import Beside, answer_of

T = TypeVar("T")
R = TypeVar("R")


def share_out(
    tasks: Iterator[T],
    call: Callable[[None, T], R],
    note: Callable[[T, R], None],
    helper: Beside | None,
    *,
    at_least: int = 1,
) -> None:
    """Make one call after the other until there are no more tasks: here, and one at a time beside.

    What the process beside has not begun by the time that all else is done is done here, as it is where
    the system has ended that process.

    Args:
        tasks: the next is asked for before answers are there that are still worked on.
        call: made here and there, gives no None; it, its task and its answer can be pickled.
        note: told each answer, in the order in which they come.
        helper: the process beside; None where all is done here.
        at_least: so many tasks there are. Of two, the first is worked on beside while the second is made;
            one alone is done here.
    """
    away: tuple[T, Future[R]] | None = None
    try:
        if helper is not None and at_least > 1 and (first := next(tasks, None)) is not None:
            away = first, helper.begin(call, first)
        while (task := next(tasks, None)) is not None or away is not None:
            if helper is not None and away is None and (second := next(tasks, None)) is not None:
                away = second, helper.begin(call, second)
            if task is not None:
                note(task, call(None, task))
            if away is not None and (task is None or away[1].done()):
                (other, begun), away = away, None
                found = answer_of(begun)
                note(other, call(None, other) if found is None else found)
    finally:
        if helper is not None and away is not None:
            helper.give_up(away[1])
