"""What a search for a plan asks of a process beside it: trials that are expected to come next, judged and
solved while this one lowers a plan.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from planner.pipeline.solve.fitting import need_of_plan
from planner.pipeline.solve.serial_first import search_for
from planner.plan.problem import Problem
from planner.plan.solved import Solved
from planner.portfolio.race import rough_plan
from planner.processes.workers import Beside, answer_of
from planner.search.state import SearchSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ToSolve:
    """One search: plain values, which another process can be given."""

    problem: Problem
    settings: SearchSettings
    start: Solved | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToJudge:
    """A base order of which is to be known how the arena breaks up in it.

    Attributes:
        problem: in that order, with the whole budget for a capacity.
        own_memory: of the target: memory of a device that lies in pieces is lost.
        rough: a plan in it; None where one is to be looked for, for `time_limit_s`.
    """

    problem: Problem
    own_memory: bool
    rough: Solved | None
    time_limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What a rough plan tells.

    Attributes:
        need: how many times the arena of the budget it needs; None where there is no plan.
    """

    rough: Solved
    need: float | None


def judged(task: ToJudge) -> Judged:
    """Make a rough plan, if there is none, and see what it asks of the arena."""
    rough = task.rough or rough_plan(task.problem, task.time_limit_s)
    if rough.candidate is None:
        return Judged(rough=rough, need=None)
    need = need_of_plan(task.problem, rough.candidate) if task.own_memory else 1.0
    return Judged(rough=rough, need=need)


@dataclass(frozen=True, slots=True)
class _Begun:
    """A question, and its answer to come."""

    task: ToSolve | ToJudge
    answer: Future[Solved | Judged]


class WorkingAhead:
    """Answers to questions that are expected to be asked soon.

    Args:
        process: where they are looked for, one after the other; None where nothing is done ahead.
    """

    def __init__(self, process: Beside | None) -> None:
        self.process = process
        self._begun: dict[Hashable, _Begun] = {}

    def expect(self, tasks: Sequence[tuple[Hashable, ToSolve | ToJudge]]) -> None:
        """Have these worked on in their order, in place of what was expected before and not begun yet."""
        if self.process is None:
            return
        self._begun = {key: b for key, b in self._begun.items() if not b.answer.cancel()}
        for key, task in tasks:
            if key not in self._begun:
                self._begun[key] = _Begun(task, self.process.begin(_answer_there, task))

    def solved(self, key: Hashable) -> Solved | None:
        """The answer to a `ToSolve`, waited for; None if it was not begun, or its process was ended."""
        found = self._answer(key)
        assert not isinstance(found, Judged)
        return found

    def judged(self, key: Hashable) -> Judged | None:
        """The same for a `ToJudge`. While it is worked on there, what is to be judged after it is judged
        here, the last of it first."""
        begun = self._begun.get(key)
        while begun is not None and begun.answer.running() and self._judges_another():
            pass
        found = self._answer(key)
        assert not isinstance(found, Solved)
        return found

    def end(self) -> None:
        """Give up what is still being done: nobody will ask for it."""
        for begun in reversed(self._begun.values()):
            assert self.process is not None
            self.process.give_up(begun.answer)
        self._begun = {}

    def _judges_another(self) -> bool:
        """Judge here the last of what is to be judged there and waits for its turn; whether any does."""
        for key, begun in reversed(self._begun.items()):
            if isinstance(begun.task, ToJudge) and begun.answer.cancel():
                here: Future[Solved | Judged] = Future()
                here.set_result(judged(begun.task))
                self._begun[key] = _Begun(begun.task, here)
                return True
        return False

    def _answer(self, key: Hashable) -> Solved | Judged | None:
        begun = self._begun.pop(key, None)
        return None if begun is None else answer_of(begun.answer)


def may_work_ahead(workers: int | None) -> bool:
    """Whether there is a core for it.

    Args:
        workers: threads that a search may have; None for one on each core.
    """
    return (workers or os.cpu_count() or 1) > 1


def _answer_there(_: None, task: ToSolve | ToJudge) -> Solved | Judged:
    """An answer, as a call to another process."""
    if isinstance(task, ToJudge):
        return judged(task)
    return search_for(task.problem)(task.problem, task.settings, start=task.start)
