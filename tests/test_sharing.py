"""Calls shared out between two processes: every task is answered once, whatever happens beside."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from planner.processes.sharing import share_out

from planner.errors import UsageError
from planner.processes.workers import Beside, beside

Found = dict[int, tuple[int, int]]


def doubled(_: None, number: int) -> tuple[int, int]:
    """Twice a number, and the process that found it."""
    time.sleep(0.02)  # so that there is time for both
    return 2 * number, os.getpid()


def refused(_: None, number: int) -> tuple[int, int]:
    raise UsageError(f"{number} is refused")


def ended(_: None, parent: int) -> int:
    if os.getpid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    return parent


def asleep(_: None, seconds: float) -> None:
    time.sleep(seconds)


def shared(count: int, helper: Beside | None) -> Found:
    """What is noted of so many tasks."""
    found: Found = {}

    def note(task: int, answer: tuple[int, int]) -> None:
        assert task not in found
        found[task] = answer

    share_out(iter(range(count)), doubled, note, helper)
    return found


@pytest.fixture(scope="module")
def helper() -> Iterator[Beside]:
    with beside() as process:
        process.begin(doubled, 0).result()  # it is up
        yield process


@pytest.mark.parametrize("count", [0, 1, 2, 3, 12])
def test_every_task_is_answered_once(count: int, helper: Beside) -> None:
    for process in (None, helper):
        found = shared(count, process)
        assert {task: answer for task, (answer, _) in found.items()} == {
            number: 2 * number for number in range(count)
        }
        pids = {pid for _, pid in found.values()}
        assert (len(pids) > 1) == (process is not None and count > 1)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 12])
def test_of_two_tasks_the_first_is_away_before_the_second_is_made(
    count: int, helper: Beside
) -> None:
    made: list[int] = []
    seen: dict[int, int] = {}

    def tasks() -> Iterator[int]:
        for number in range(count):
            made.append(number)
            yield number

    def note(task: int, answer: tuple[int, int]) -> None:
        assert answer[0] == 2 * task and task not in seen
        seen[task] = answer[1]

    share_out(tasks(), doubled, note, helper, at_least=count)
    assert sorted(seen) == made == list(range(count))
    if count:
        assert (seen[0] == os.getpid()) == (count == 1)


def test_what_is_not_begun_beside_is_done_here() -> None:
    with beside() as busy:
        busy.begin(asleep, 600)
        assert {pid for _, pid in shared(3, busy).values()} == {os.getpid()}


def test_where_the_process_beside_is_ended_all_is_done_here() -> None:
    found: list[int] = []
    with beside() as lost:
        share_out(iter([os.getpid()] * 4), ended, lambda _, answer: found.append(answer), lost)
    assert found == [os.getpid()] * 4


def test_an_error_ends_it(helper: Beside) -> None:
    with pytest.raises(UsageError, match="is refused"):
        share_out(iter(range(4)), refused, lambda *_: None, helper)
    assert helper.begin(doubled, 1).result()[0] == 2  # it can be asked again
