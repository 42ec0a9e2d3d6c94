"""Calls in processes of their own: answers, errors, and processes that are ended from outside."""

from __future__ import annotations

import os
import signal

import pytest

from planner.errors import MemoryLimitError, UsageError
from planner.workers import workers


def scaled(factor: int, number: int) -> tuple[int, int]:
    """What the process computed, and which it was."""
    print("this is not among the answers")
    return factor * number, os.getpid()


def refused(_: int, number: int) -> int:
    raise UsageError(f"{number} is refused")


def killed(_: int, number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_calls_are_answered_by_processes_that_end_with_the_block():
    with workers(2, 10) as run:
        found = sorted(run(scaled, range(6)))
        again = sorted(run(scaled, [7]))
    assert [number for number, _ in found] == [0, 10, 20, 30, 40, 50]
    assert [number for number, _ in again] == [70]
    processes = {pid for _, pid in found + again}
    assert os.getpid() not in processes
    assert not any(map(is_alive, processes))


def test_an_error_is_raised_here():
    with pytest.raises(UsageError, match="3 is refused"), workers(1, 0) as run:
        list(run(refused, [3]))


def test_a_process_that_is_ended_from_outside_is_said_and_ends_the_others():
    with pytest.raises(MemoryLimitError, match="ended from outside"), workers(2, 0) as run:
        list(run(killed, range(5)))
