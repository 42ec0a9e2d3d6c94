"""The integer program over intervals, with more and more instants: around its own plans' overflows.

It takes one thread, and runs beside the search for plans.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from planner import clock
from planner.bound.interval_mip import IntervalMip, IntervalPlan
from planner.plan.candidate import Candidate
from planner.plan.problem import Problem
from planner.plan.stages import actions_of
from planner.search.improve import Improver
from planner.search.program.cutting_loop import rounded_candidates, stage_peaks
from planner.search.state import SearchState
from planner.search.stop import Stop
from planner.simulate.simulate import candidate_of

NAME = "interval-program"
"""Name of the programs in statistics."""

MAX_OPS = 1_500
"""Number of operations above which the programs are not worth their time."""

_FIRST_INSTANTS, _MORE_INSTANTS = 3, 3
_SHARE, _MAX_S = 0.6, 20.0
"""Share of the time left for each program, and its most seconds."""

_MIN_S, _POLL_S = 0.5, 0.05


class IntervalSearch:
    """A series of programs.

    `run` may be on another thread; everything else is on the search's.
    """

    def __init__(self, problem: Problem, instants: Sequence[int]) -> None:
        """Prepare the search.

        `instants` are base operations, most important first; without any, nothing is solved.
        """
        self.problem = problem
        self._instants = list(instants[:_FIRST_INSTANTS]) if self.covers(problem) else []
        self._found: list[tuple[list[int], IntervalPlan, Candidate | None]] = []
        self._given = 0
        self._stopped = False
        self._thread: threading.Thread | None = None

    @staticmethod
    def covers(problem: Problem) -> bool:
        """Tell whether there are programs for a problem that are worth their time."""
        return IntervalMip.covers(problem) and len(problem.ops) <= MAX_OPS

    def run(self, deadline: float) -> None:
        """Solve until nothing exceeds the capacity, or until `deadline` (`clock.now`)."""
        while self._instants and not self._stopped:
            left_s = deadline - clock.now()
            if left_s < _MIN_S:
                return
            instants = sorted(self._instants)
            found = IntervalMip(self.problem, instants).solve(
                time_limit_s=min(_SHARE * left_s, _MAX_S)
            )
            if found.plan is None:
                self._instants = []
                self._found.append((instants, found, None))
                return
            staged = candidate_of(self.problem, actions_of(self.problem, found.plan))
            more = _instants_around(staged, self.problem.capacity_bytes, instants)
            self._instants = self._instants + more if more else []
            self._found.append((instants, found, staged))

    def run_beside(self, deadline: float) -> None:
        """Call `run` on its own thread, which does not keep the process alive."""
        if self._instants and not clock.is_counted():
            self._thread = threading.Thread(target=self.run, args=(deadline,), daemon=True)
            self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether the thread is still running."""
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        """Start no more programs; the current one runs to its time limit."""
        self._stopped = True

    def join(self) -> None:
        """Stop, and wait for the current program.

        HiGHS cannot be interrupted, and a process that exits while it runs is aborted.
        """
        self.stop()
        if self._thread is not None:
            self._thread.join()

    def wait(self, state: SearchState, stop: Stop) -> None:
        """Pass results on until `stop`, or until the programs end."""
        while self.is_running and not state.is_settled and stop.left_s > 0:
            time.sleep(_POLL_S)
            self.give(state, stop)
        self.give(state, stop)

    @property
    def nearest(self) -> Candidate | None:
        """The last program's plan; it may exceed the capacity."""
        return next((staged for *_, staged in reversed(self._found) if staged is not None), None)

    def give(self, state: SearchState, stop: Stop) -> None:
        """Pass new results on; plans that do not fit are repaired until `stop`."""
        improver = Improver(state.evaluator, stop)
        with state.ledger.turn_of(NAME):
            while self._given < len(self._found):
                instants, found, staged = self._found[self._given]
                self._given += 1
                if not found.feasible:
                    state.is_impossible = True
                    return
                state.prove(found.bound_us)
                if staged is None or found.solution is None:
                    continue
                state.offer(staged)
                trials = rounded_candidates(
                    state.evaluator, instants, found.solution, is_whole=True
                )
                for trial in trials:
                    state.offer(improver.prune(improver.repair(trial)))


def _instants_around(
    candidate: Candidate, capacity_bytes: int, instants: Sequence[int]
) -> list[int]:
    """Return the stages with the largest excess over the capacity, and the ones before them."""
    worst = stage_peaks(candidate)
    more: list[int] = []
    for op in sorted(worst, key=lambda op: -worst[op]):
        if worst[op] <= capacity_bytes or len(more) >= _MORE_INSTANTS:
            break
        more += [p for p in (op, op - 1) if p >= 0 and p not in instants and p not in more]
    return more
