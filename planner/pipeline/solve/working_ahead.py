"""Work ahead in a second process: judge and solve the next trials while this process lowers a plan."""

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
    """A search, in plain values that can be sent to another process."""

    problem: Problem
    settings: SearchSettings
    start: Solved | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToJudge:
    """A base order in which to judge the arena's fragmentation.

    Attributes:
        problem: in that order, with the whole budget as capacity.
        must_fit: the plan must fit into a device's arena, whose fragmented memory is lost.
        rough: a plan in it; None to search for one within `time_limit_s`.
    """

    problem: Problem
    must_fit: bool
    rough: Solved | None
    time_limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The judgement of a base order, from a rough plan.

    Attributes:
        need: arena that it needs, as a multiple of the budget's; None without a plan.
    """

    rough: Solved
    need: float | None


def judged(task: ToJudge) -> Judged:
    """Make a rough plan if there is none, and compute its need of the arena."""
    rough = task.rough or rough_plan(task.problem, task.time_limit_s)
    if rough.candidate is None:
        return Judged(rough=rough, need=None)
    need = need_of_plan(task.problem, rough.candidate) if task.must_fit else 1.0
    return Judged(rough=rough, need=need)


@dataclass(frozen=True, slots=True)
class _Begun:
    """A task, and its pending result."""

    task: ToSolve | ToJudge
    answer: Future[Solved | Judged]


class WorkingAhead:
    """Results of tasks that will probably be asked for soon.

    Args:
        process: works on them one after the other; None if nothing is done ahead.
    """

    def __init__(self, process: Beside | None) -> None:
        self.process = process
        self._begun: dict[Hashable, _Begun] = {}

    def expect(self, tasks: Sequence[tuple[Hashable, ToSolve | ToJudge]]) -> None:
        """Start these tasks in their order, and drop earlier tasks that have not begun."""
        if self.process is None:
            return
        self._begun = {key: b for key, b in self._begun.items() if not b.answer.cancel()}
        for key, task in tasks:
            if key not in self._begun:
                self._begun[key] = _Begun(task, self.process.begin(_answer_there, task))

    def solved(self, key: Hashable) -> Solved | None:
        """Wait for the result of a `ToSolve`; None if it was not begun, or its process ended."""
        found = self._answer(key)
        assert not isinstance(found, Judged)
        return found

    def judged(self, key: Hashable) -> Judged | None:
        """Wait for the result of a `ToJudge`; None if it was not begun, or its process ended.

        Meanwhile, judge later orders in this process, the last one first.
        """
        begun = self._begun.get(key)
        while begun is not None and begun.answer.running() and self._judges_another():
            pass
        found = self._answer(key)
        assert not isinstance(found, Solved)
        return found

    def end(self) -> None:
        """Give up all pending tasks."""
        for begun in reversed(self._begun.values()):
            assert self.process is not None
            self.process.give_up(begun.answer)
        self._begun = {}

    def _judges_another(self) -> bool:
        """Judge here the last waiting `ToJudge`; tell whether there was one."""
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
    """Tell whether there is a spare core.

    Args:
        workers: threads that a search may use; None for one per core.
    """
    return (workers or os.cpu_count() or 1) > 1


def _answer_there(_: None, task: ToSolve | ToJudge) -> Solved | Judged:
    """Compute a result in another process."""
    if isinstance(task, ToJudge):
        return judged(task)
    return search_for(task.problem)(task.problem, task.settings, start=task.start)
