"""What is worked on ahead is what would have been found here, and nobody waits for what nobody asks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from planner.pipeline.solve import working_ahead
from planner.pipeline.solve.serial_first import search_for
from planner.pipeline.solve.working_ahead import (
    Judged,
    ToJudge,
    ToSolve,
    WorkingAhead,
    judged,
    may_work_ahead,
)
from planner.processes.workers import Beside, beside
from planner.search.state import SearchSettings
from reports.solver.build import with_budget
from reports.solver.synthetic import irregular

PROBLEM = with_budget(irregular(40), 80, "recompute", overlap=False)
SOLVE = ToSolve(problem=PROBLEM, settings=SearchSettings(limit_s=60, workers=1), start=None)
JUDGE = ToJudge(problem=PROBLEM, must_fit=True, rough=None, time_limit_s=60)
ENDLESS = ToSolve(
    problem=with_budget(irregular(250), 55, "recompute", overlap=False),
    settings=SearchSettings(limit_s=600, workers=1),
    start=None,
)


@pytest.fixture(scope="module")
def process() -> Iterator[Beside]:
    """What imports what it needs once for several tests: that takes longest."""
    with beside() as found:
        yield found


def test_answers_are_those_that_would_be_found_here(process: Beside) -> None:
    here = search_for(PROBLEM)(PROBLEM, SOLVE.settings)
    ahead = WorkingAhead(process)
    ahead.expect([("solve", SOLVE), ("judge", JUDGE)])
    time.sleep(0.5)  # the first is begun by then, and not cancelled
    found = ahead.solved("solve")
    ahead.expect([("judge", JUDGE)])
    time.sleep(0.5)
    known = ahead.judged("judge")
    ahead.end()
    assert found is not None and found.candidate is not None and here.candidate is not None
    assert found.candidate.time_us == pytest.approx(here.candidate.time_us)
    expected = judged(JUDGE)
    if known is not None:  # else it was still waiting for its turn
        assert known.need == expected.need
    assert expected.need is not None and expected.need >= 0.9


def test_what_is_not_begun_is_done_by_who_asks(process: Beside) -> None:
    ahead = WorkingAhead(process)
    assert ahead.solved("never expected") is None
    ahead.expect([("first", ENDLESS), ("second", SOLVE)])
    time.sleep(0.2)
    assert ahead.solved("second") is None
    ahead.expect([])
    ahead.end()
    alone = WorkingAhead(None)
    alone.expect([("first", SOLVE)])
    assert alone.solved("first") is None
    alone.end()


def test_who_waits_judges_what_comes_last_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    here: list[ToJudge] = []

    def noted(task: ToJudge) -> Judged:
        here.append(task)
        return judged(task)

    monkeypatch.setattr(working_ahead, "judged", noted)
    orders = [replace(JUDGE, time_limit_s=60 + number) for number in range(3)]
    with beside() as process:
        ahead = WorkingAhead(process)
        ahead.expect(list(enumerate(orders)))
        time.sleep(0.2)  # the first is under way: the process imports what it needs
        answers = [ahead.judged(number) for number in range(3)]
        ahead.end()
    assert here == [orders[2], orders[1]]
    assert {answer.need for answer in answers if answer is not None} == {judged(JUDGE).need}
    assert None not in answers


def test_a_search_is_given_up_at_the_end(process: Beside) -> None:
    ahead = WorkingAhead(process)
    ahead.expect([("endless", ENDLESS)])
    time.sleep(1)
    begun = time.monotonic()
    ahead.end()
    assert time.monotonic() - begun < 300


def test_one_thread_works_on_nothing_ahead() -> None:
    assert not may_work_ahead(1)
    assert may_work_ahead(2)
