"""The whole of a small problem whose copies run beside the operations.

The runs and gaps are those of `planner.exact.gaps`, all free. Every run has a start and an end;
copies out and in are intervals, disjoint on each engine; and memory in use is an interval of time
too:

    a gap in which a tensor is held     from the run that opens it to the run that closes it
    a run that lets its tensor go       while it runs
    a copy in                           from its start to the run that it is for
    a copy out that ends later          from the last run that read the tensor to its end

All of them share the capacity. The schedule lists the actions by their starts. A copy that starts
while an operation runs is listed before or after it: in the replay (`planner.simulate.streams`) it
starts no sooner than the end of the actions listed before it, and a copy in holds its memory from
its place in the list. The solution is therefore a bound, and the better of both schedules an
answer.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ortools.sat.python import cp_model
from ortools.sat.python import cp_model_helper as cmh

from planner.exact.gaps import Event, GapModel, Literal, negated
from planner.exact.solving import SOLVED, solve_interruptibly
from planner.plan.problem import Action, ActionKind, Problem
from planner.plan.stages import MemoryProfile, Run, overwritten

TIME_UNITS = 1_000_000
"""Number of time units in the base duration. Durations are rounded up."""

Time = cp_model.IntVar | int
Truth = cmh.Literal | bool


@dataclass(frozen=True, slots=True)
class _Transfer:
    """One copy: its tensor, and for a copy in the run that it is for."""

    tensor: int
    start: cp_model.IntVar
    present: Truth
    run: Run | None = None


class OverlapModel(GapModel):
    """A schedule in time whose makespan is minimised.

    Args:
        free: runs that may take place besides the base runs, including those of the plan.
        starts_us: start times of runs and copies of the plan, as a hint; see `starts_of`.
    """

    def __init__(
        self,
        problem: Problem,
        held: MemoryProfile,
        free: Collection[Run],
        *,
        starts_us: dict[tuple[ActionKind, int, Run | None], float],
    ) -> None:
        super().__init__(problem, held, free, range(len(problem.tensors)))
        self.decisions = tuple(self.hints)
        self.hint_all()
        self.unit_us = max(problem.base_duration_us, 1e-9) / TIME_UNITS
        self.starts_us = starts_us
        copies_us = sum(problem.swap_out_us(t) + problem.swap_in_us(t) for t in self.hosted)
        reruns_us = sum(problem.ops[m].duration_us for _, m in self.reruns)
        slack = 2 * len(self.reruns) + 4 * len(problem.tensors) + 2 * len(problem.ops)
        self.horizon = 2 * slack + self._units(problem.base_duration_us + reruns_us + 4 * copies_us)
        self.start: dict[Run, cp_model.IntVar] = {}
        self.end: dict[Run, Time] = {}
        self._runs()
        self.outs: dict[int, _Transfer] = {}
        self.ins: list[_Transfer] = []
        self.memory: list[cp_model.IntervalVar] = []
        self.bytes: list[int] = []
        self._copies()
        for t, tensor in enumerate(problem.tensors):
            if tensor.bytes:
                self._hold(t)
        for run in self.start:
            present = self._truth(self.reruns.get(run, True))
            self._use(self.start[run], self.end[run], present, problem.ops[run[1]].workspace_bytes)
        capacity = problem.capacity_bytes - problem.fixed_bytes
        self.cp.add_cumulative(self.memory, self.bytes, capacity)
        self.cp.minimize(self.makespan)

    def _truth(self, literal: Literal) -> Truth:
        """Convert a literal to the solver's modelling API."""
        if isinstance(literal, bool):
            return literal
        variable = self.cp.get_bool_var_from_proto_index(max(literal, ~literal))
        return variable if literal >= 0 else variable.negated()

    def _units(self, us: float) -> int:
        return math.ceil(us / self.unit_us - 1e-9)

    def _time(self, hint_us: float | None) -> cp_model.IntVar:
        variable = self.cp.new_int_var(0, self.horizon, "")
        self.hints.append(0)
        if hint_us is not None:
            self.cp.add_hint(variable, self._units(hint_us))
        return variable

    # -- engines -----------------------------------------------------------------------------

    def _runs(self) -> None:
        """Add the runs, one after the other; a run that does not take place takes no time."""
        order = sorted({*self.held.runs, *self.reruns})
        total: list[cp_model.LinearExprT] = []
        for run in order:
            units = self._units(self.problem.ops[run[1]].duration_us)
            self.start[run] = self._time(self.starts_us.get((ActionKind.RUN, run[1], run)))
            taken = units * self._truth(self.reruns[run]) if run in self.reruns else units
            total.append(taken)
            end = self.cp.new_int_var(0, self.horizon, "")
            self.hints.append(0)
            self.cp.add(end == self.start[run] + taken)
            self.end[run] = end
        for a, b in pairwise(order):
            self.cp.add(self.start[b] >= self.end[a])
        self.makespan = self.cp.new_int_var(0, self.horizon, "makespan")
        self.hints.append(0)
        self.cp.add(self.makespan >= self.end[order[-1]])
        self.cp.add(self.makespan >= sum(total))

    def _copies(self) -> None:
        problem, cp = self.problem, self.cp
        engines: tuple[list[cp_model.IntervalVar], list[cp_model.IntervalVar]] = ([], [])
        for t, literal in sorted(self.hosted.items()):
            present = self._truth(literal)
            producer = problem.tensors[t].producer
            start = self._time(self.starts_us.get((ActionKind.SWAP_OUT, t, None)))
            units = self._units(problem.swap_out_us(t))
            self.outs[t] = _Transfer(t, start, present)
            engines[0].append(cp.new_optional_fixed_size_interval_var(start, units, present, ""))
            cp.add(start >= self.end[producer, producer]).only_enforce_if(present)
            cp.add(self.makespan >= start + units).only_enforce_if(present)
        for (run, t), literal in sorted(self.fetches.items(), key=lambda item: item[0]):
            if literal is False:
                continue
            present = self._truth(literal)
            start = self._time(self.starts_us.get((ActionKind.SWAP_IN, t, run)))
            units = self._units(problem.swap_in_us(t))
            self.ins.append(_Transfer(t, start, present, run))
            when = [] if present is True else [present]
            end = start + units
            engines[1].append(
                cp.new_fixed_size_interval_var(start, units, "")
                if present is True
                else cp.new_optional_fixed_size_interval_var(start, units, present, "")
            )
            cp.add(end <= self.start[run]).only_enforce_if(*when)
            cp.add(start >= self._out_end(t)).only_enforce_if(*when)
            # listed after the reads of the previous copy, which it would serve otherwise
            events = self.events[t]
            k = next(i for i, e in enumerate(events) if e.run == run)
            for event in reversed(events[:k]):
                literals = when if event.runs is True else [*when, self._truth(event.runs)]
                cp.add(start >= self.start[event.run]).only_enforce_if(*literals)
                if event.runs is True:
                    break
            self._use(start, self.start[run], present, problem.tensors[t].bytes)
        for engine in engines:
            cp.add_no_overlap(engine)

    def _out_end(self, t: int) -> cp_model.LinearExprT:
        return self.outs[t].start + self._units(self.problem.swap_out_us(t))

    # -- memory ------------------------------------------------------------------------------

    def _use(self, start: Time, end: Time, present: Truth, size: int) -> None:
        """Take `size` bytes in `[start, end)`, if present."""
        if present is False or not size:
            return
        length = self.cp.new_int_var(0, self.horizon, "")
        self.hints.append(0)
        if present is True:
            interval = self.cp.new_interval_var(start, length, end, "")
        else:
            interval = self.cp.new_optional_interval_var(start, length, end, present, "")
        self.memory.append(interval)
        self.bytes.append(size)

    def _all(self, *literals: Truth) -> Truth:
        """Return a literal that is true if all of these are; it may be true otherwise, too."""
        if any(x is False for x in literals):
            return False
        open_ = [x for x in literals if x is not True]
        if len(open_) < 2:
            return open_[0] if open_ else True
        both = self.cp.new_bool_var("")
        self.hints.append(0)
        self.cp.add_bool_or([both, *(x.negated() for x in open_ if not isinstance(x, bool))])
        return both

    def _hold(self, t: int) -> None:
        """Add the intervals in which tensor t takes memory, each with the condition for it.

        After each event the tensor stays until the next one if it is held in that gap. A run that
        reads a copy which is not held afterwards keeps it until the run ends. A copy to the host
        keeps its source until the copy ends.
        """
        problem, events = self.problem, self.events[t]
        tensor = problem.tensors[t]
        if tensor.to_end:
            self._use(self.start[events[0].run], self.horizon, True, tensor.bytes)
        first: Truth = not tensor.to_end  # whether the copy of the base run is still the one held
        for k, event in enumerate(events):
            following = events[k + 1].run if k + 1 < len(events) else None
            after = self._truth(event.after)
            if following is not None:
                self._use(self.start[event.run], self.start[following], after, tensor.bytes)
            overwrites = not event.makes and t in overwritten(problem, event.run[1])
            is_first = k == 0 and tensor.to_end
            if not overwrites and not is_first:
                # a graph output's first copy is present anyway
                here = event.before if tensor.to_end and not event.makes else True
                runs = self._truth(event.runs)
                released = self._all(runs, self._truth(here), self._truth(negated(event.after)))
                self._use(self.start[event.run], self.end[event.run], released, tensor.bytes)
            if t in self.outs:
                self._while_copied_out(t, event, first, overwrites)
                first = self._all(first, after)

    def _while_copied_out(self, t: int, event: Event, first: Truth, overwrites: bool) -> None:
        """Hold a dropped tensor until it is copied out, and produce it again only after that."""
        host, cp = self.outs[t], self.cp
        out_end = self._out_end(t)
        if event.makes and event.run in self.reruns:
            cp.add(out_end <= self.start[event.run]).only_enforce_if(
                host.present, self._truth(self.reruns[event.run])
            )
        let_go = self._all(first, self._truth(negated(event.after)), host.present)
        if isinstance(let_go, bool):
            return
        if overwrites:
            cp.add(out_end <= self.start[event.run]).only_enforce_if(let_go)
            return
        until = cp.new_int_var(0, self.horizon, "")
        self.hints.append(0)
        cp.add(until >= out_end).only_enforce_if(let_go)
        self._use(self.end[event.run], until, let_go, self.problem.tensors[t].bytes)

    def start_from_plan(self, solver: cp_model.CpSolver) -> None:
        """Hint every variable, with times that `solver` finds for the plan's own decisions.

        If it finds none, the hints stay as they are.
        """
        fixed = self.cp.clone()
        for index, value in enumerate(self.decisions):
            fixed.add(fixed.get_int_var_from_proto_index(index) == value)
        if solve_interruptibly(solver, fixed) not in SOLVED:
            return
        self.cp.clear_hints()
        for index, value in enumerate(solver.response_proto.solution):
            self.cp.add_hint(self.cp.get_int_var_from_proto_index(index), value)

    # -- answer ------------------------------------------------------------------------------

    def schedules(self, solver: cp_model.CpSolver) -> tuple[list[Action], ...]:
        """Return the two schedules of a solution, ordered by starts.

        They list a copy in that starts while an operation runs before or after that operation. They
        list copies out before it, where they start as soon as possible.
        """

        def holds(literal: Truth) -> bool:
            return literal if isinstance(literal, bool) else solver.boolean_value(literal)

        taken = [
            r for r in self.start if r not in self.reruns or holds(self._truth(self.reruns[r]))
        ]
        taken.sort(key=lambda run: (solver.value(self.start[run]), run))
        begun = [solver.value(self.start[run]) for run in taken]
        runs = [
            (place, 2, 0, Action(kind=ActionKind.RUN, target=run[1]))
            for place, run in enumerate(taken)
        ]
        outs: list[tuple[int, int, int, Action]] = []
        for copy in self.outs.values():
            if holds(copy.present):
                producer = self.problem.tensors[copy.tensor].producer
                at = solver.value(copy.start)
                place = max(bisect_right(begun, at) - 1, taken.index((producer, producer)) + 1)
                action = Action(kind=ActionKind.SWAP_OUT, target=copy.tensor)
                outs.append((place, 0, at, action))
        listed: tuple[list[Action], ...] = ()
        for find in (lambda at: bisect_right(begun, at) - 1, lambda at: bisect_left(begun, at)):
            ins = [
                (find(at), 1, at, Action(kind=ActionKind.SWAP_IN, target=copy.tensor))
                for copy in self.ins
                if holds(copy.present)
                for at in (solver.value(copy.start),)
            ]
            ordered = sorted([*runs, *outs, *ins], key=lambda x: x[:3])
            listed += ([action for *_, action in ordered],)
        return listed

    def bound_us(self, solver: cp_model.CpSolver) -> float:
        """Return a lower bound on every schedule of the model, less the effect of rounding up."""
        most_actions = len(self.start) + len(self.outs) + len(self.ins)
        return max(0.0, solver.best_objective_bound - most_actions) * self.unit_us


def starts_of(
    problem: Problem, actions: Sequence[Action], start_us: Sequence[float]
) -> dict[tuple[ActionKind, int, Run | None], float]:
    """Return the start of each run and copy of a schedule, by (kind, target, run).

    For a copy in, the run is the one that it is for; for a copy out, None.
    """
    starts: dict[tuple[ActionKind, int, Run | None], float] = {}
    waiting: dict[int, float] = {}
    stage = 0
    for action, at in zip(actions, start_us, strict=True):
        if action.kind is ActionKind.SWAP_OUT:
            starts[action.kind, action.target, None] = at
        elif action.kind is ActionKind.SWAP_IN:
            waiting[action.target] = at
        else:
            run = (stage, action.target)
            starts[action.kind, action.target, run] = at
            for t in problem.ops[action.target].inputs:
                if t in waiting:
                    starts[ActionKind.SWAP_IN, t, run] = waiting.pop(t)
            stage += action.target == stage
    return starts
