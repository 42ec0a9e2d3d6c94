"""Calls in processes of their own: answers, errors, and processes that are ended from outside."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from planner.errors import MemoryLimitError, UsageError
from planner.processes.children import quiet
from planner.processes.workers import beside, workers


def scaled(factor: int, number: int) -> tuple[int, int]:
    """What the process computed, and which it was."""
    print("this is not among the answers")
    return factor * number, os.getpid()


def refused(_: int, number: int) -> int:
    raise UsageError(f"{number} is refused")


def unforeseen(_: int, numbers: dict[str, int]) -> int:
    return numbers["missing"]


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


def test_an_unforeseen_error_says_where_it_was_raised():
    with pytest.raises(KeyError) as raised, workers(1, 0) as run:
        list(run(unforeseen, [{}]))
    assert "in unforeseen" in "".join(raised.value.__notes__)


class PickledIn:
    """A task that says in which thread it was pickled."""

    def __init__(self, thread: int = 0) -> None:
        self.thread = thread

    def __reduce__(self) -> tuple[type[PickledIn], tuple[int]]:
        return PickledIn, (threading.get_ident(),)


def thread_of(_: object, task: PickledIn) -> int:
    return task.thread


def test_a_task_is_pickled_before_its_caller_goes_on():
    """A problem whose ranges the caller looked up meanwhile changed size half-way."""
    here = threading.get_ident()
    with beside() as helper, workers(1, 0) as run:
        assert helper.begin(thread_of, PickledIn()).result() == here
        assert list(run(thread_of, [PickledIn()])) == [here]


def test_a_process_that_is_ended_from_outside_is_said_and_ends_the_others():
    with pytest.raises(MemoryLimitError, match="was killed, probably"), workers(2, 0) as run:
        list(run(killed, range(5)))


def doubled(_: None, number: int) -> tuple[int, int]:
    return 2 * number, os.getpid()


def test_one_process_beside_answers_and_ends_with_the_block():
    with beside() as helper:
        first = helper.begin(doubled, 1)
        second = helper.begin(doubled, 2)
        (one, pid), (two, same) = first.result(), second.result()
    assert (one, two) == (2, 4)
    assert pid == same != os.getpid()
    assert not is_alive(pid)


def test_an_error_beside_is_raised_where_the_answer_is_asked_for():
    with beside() as helper:
        refusal = helper.begin(refused, 3)
        with pytest.raises(UsageError, match="3 is refused"):
            refusal.result()


def test_a_process_beside_that_was_ended_is_said():
    with beside() as helper:
        lost = helper.begin(killed, 0)
        with pytest.raises(MemoryLimitError, match="was killed, probably"):
            lost.result()


def test_nothing_is_done_beside_while_it_is_paused():
    with beside() as helper:
        helper.begin(doubled, 0).result()  # it is up
        with quiet():
            answer = helper.begin(doubled, 1)
            with pytest.raises(TimeoutError):
                answer.result(timeout=0.5)
        assert answer.result()[0] == 2


def test_a_call_that_is_under_way_ends_with_the_block():
    with beside() as helper:
        helper.begin(asleep, 600)
    # that the block was left at all is the proof: nothing waited for the answer


def asleep(_: None, seconds: float) -> None:
    time.sleep(seconds)
