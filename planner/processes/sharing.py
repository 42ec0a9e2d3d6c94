"""Share calls out between this process and a helper process."""

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
    """Make one call after the other until no task is left: here, and one at a time in the helper
    process.

    Calls that the helper has not begun when all else is done are made here, and so are its calls
    where the system has killed it.

    Args:
        tasks: an iterator; it is advanced while earlier calls are still at work.
        call: called in both processes, never returns None; it, its task and its answer can be pickled.
        note: called with each task and its answer, in the order in which the answers come.
        helper: the helper process; None where all calls are made here.
        at_least: the least number of tasks. Of two, the helper works on the first while the second is
            made; a single one is done here.
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
