"""The runs and tensors of a part of a plan as 0-1 variables: see `planner.exact.part`.

A search builds thousands of these models, and objects of the solver's modelling API took most of
the time. Variables are therefore numbers here, and rows are written straight into the solver's
message.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ortools.sat.python import cp_model

from planner.plan.problem import Problem
from planner.plan.stages import MemoryProfile, Run, may_swap, overwritten

Literal = int
"""A 0-1 variable's number, `~number` for its negation, as in the solver's message, or a bool."""


@dataclass(slots=True)
class Event:
    """One event of one tensor: `run` makes or reads it.

    `runs` is True for a fixed run; `before` and `after` say whether the tensor is held in the gaps
    around it, `fetched` whether it is copied in for this run.
    """

    run: Run
    makes: bool
    runs: Literal
    before: Literal = False
    after: Literal = False
    fetched: Literal = False


class GapModel:
    """Variables for the free runs that take place, and for the gaps in which each tensor is held.

    Attributes:
        cp: the model. hints: by variable, its value in the plan (`hint_all` adds them).
        reruns: variables of the free runs. events: by tensor, in order.
        fetches: by run and tensor, whether it is copied in for the run. hosted: by tensor, whether it
            is copied out.
    """

    def __init__(
        self, problem: Problem, held: MemoryProfile, free: Collection[Run], tensors: Collection[int]
    ) -> None:
        """Make the variables and the constraints that tie a tensor's events to each other.

        Args:
            held: the plan's profile; its plan is the hint.
            free: runs that may be added or left out.
            tensors: tensors whose events are free; those that a free run touches are, too.
        """
        self.problem = problem
        self.held = held
        self.plan = held.plan
        self.cp = cp_model.CpModel()
        self.hints: list[int] = []
        self._variables, self._rows = self.cp.proto.variables, self.cp.proto.constraints
        self.reruns: dict[Run, Literal] = {}
        self.free_runs: dict[int, list[Run]] = {}
        for run in sorted(free):
            self.reruns[run] = self._bool(run in self.plan.reruns)
            self.free_runs.setdefault(run[1], []).append(run)
        self.free_stages = {q for q, _ in self.reruns}
        ops = [problem.ops[m] for m in self.free_runs]
        self.tensors = sorted({*tensors, *(t for op in ops for t in (*op.inputs, *op.outputs))})
        self.fetches: dict[tuple[Run, int], Literal] = {}
        self.hosted: dict[int, Literal] = {}
        self.swapped_now = {t for _, t in self.plan.back}
        self.events = {t: self._events(t) for t in self.tensors}
        for t in self.tensors:
            self._chain(t)
        self._only_useful()

    def hint_all(self) -> None:
        """Add the plan's value of every variable as a hint."""
        hint = self.cp.proto.solution_hint
        hint.vars.extend(list(range(len(self.hints))))
        hint.values.extend(self.hints)

    def _variable(self, most: int, hint: int) -> int:
        """Add a variable between 0 and `most`."""
        self._variables.add().domain.extend((0, most))
        self.hints.append(hint)
        return len(self.hints) - 1

    def _bool(self, hint: bool) -> Literal:
        return self._variable(1, int(hint))

    def _clause(self, *literals: Literal) -> None:
        """Require that at least one literal holds; constants are folded."""
        open_: list[Literal] = []
        for x in literals:
            if x is True:
                return
            if x is not False:
                open_.append(x)
        self._rows.add().bool_or.literals.extend(open_)

    def _events(self, t: int) -> list[Event]:
        """Return the fixed and free runs that touch a tensor, in order."""
        tensor = self.problem.tensors[t]
        runs: dict[Run, Literal] = {self.held.runs[i]: True for i in self.held.touched[t]}
        for m in {tensor.producer, *tensor.uses}:
            for run in self.free_runs.get(m, ()):
                runs[run] = self.reruns[run]
        return [
            Event(run, run[1] == tensor.producer, literal)
            for run, literal in sorted(runs.items(), key=lambda item: item[0])
        ]

    def _chain(self, t: int) -> None:
        """Add the variables of one tensor, and the relations between neighbouring gaps."""
        tensor, events = self.problem.tensors[t], self.events[t]
        swappable = self.problem.allow_swap and may_swap(self.problem, t)
        gaps = self._gaps(t, swappable)
        for k, event in enumerate(events):
            event.after = gaps[k]
            if k == 0:
                continue
            before = event.before = gaps[k - 1]
            if event.makes:
                self._clause(negated(before), negated(event.runs))
                self._clause(negated(event.after), before, event.runs)
                self._clause(negated(before), event.after)
                continue
            if tensor.to_end:
                for made in events[1:k]:
                    if made.makes:
                        self._clause(negated(event.runs), negated(made.runs), before)
            else:
                if swappable and before is not True:
                    event.fetched = self._fetch(t, event)
                self._clause(negated(event.runs), before, event.fetched)
            self._clause(negated(event.after), before, event.fetched)
            self._clause(negated(before), event.after, event.runs)

    def _gaps(self, t: int, swappable: bool) -> list[Literal]:
        """Return whether a tensor is held after each event; a constant if the next event decides it.

        For a `to_end` tensor, this is about its copies after the first. Hints follow the plan.
        """
        to_end, events = self.problem.tensors[t].to_end, self.events[t]
        first_made = next((k for k, e in enumerate(events) if k and e.makes), len(events))
        first_copy = next(
            (k for k, e in enumerate(events) if k and e.makes and e.run in self.plan.reruns),
            len(events),
        )
        gaps: list[Literal] = [False] * len(events)
        read_later = wanted = False
        for k in range(len(events) - 1, 0, -1):
            event = events[k]
            read_later = read_later or not event.makes
            if event.run in self.held.index:
                wanted = not event.makes and (event.run, t) not in self.plan.back
            if not read_later or (event.makes and event.runs is True):
                continue
            if to_end:
                if k - 1 >= first_made:
                    gaps[k - 1] = self._bool(wanted and k - 1 >= first_copy)
            elif event.runs is True and (not swappable or self._adjacent(t, events[k - 1], event)):
                gaps[k - 1] = True
            else:
                gaps[k - 1] = self._bool(wanted)
        return gaps

    def _adjacent(self, t: int, a: Event, b: Event) -> bool:
        """Tell whether dropping a tensor between two runs frees nothing.

        That is so if no other run can lie between, and the first run does not write over it.
        """
        if a.run not in self.held.index or b.run[0] in self.free_stages:
            return False
        if t in overwritten(self.problem, a.run[1]):
            return False
        return self.held.index[a.run] + 1 == self.held.index[b.run]

    def _fetch(self, t: int, event: Event) -> Literal:
        """Return whether a tensor is copied in for a run; for a fixed run, exactly if it is not held."""
        if t not in self.hosted:
            self.hosted[t] = self._bool(t in self.swapped_now)
        if event.runs is True:
            fetched = negated(event.before)
        else:
            fetched = self._bool((event.run, t) in self.plan.back)
            self._clause(negated(fetched), event.runs)
            self._clause(negated(fetched), negated(event.before))
        self._clause(negated(fetched), self.hosted[t])
        self.fetches[event.run, t] = fetched
        return fetched

    def _only_useful(self) -> None:
        """Require that a run takes place only if one of its outputs is read."""
        made: dict[Run, list[Literal]] = {}
        for events in self.events.values():
            for event in events:
                if event.makes and event.run in self.reruns:
                    made.setdefault(event.run, []).append(event.after)
        for run, literal in self.reruns.items():
            self._clause(negated(literal), *made.get(run, ()))


def negated(literal: Literal) -> Literal:
    """Return the negation of a literal or constant."""
    return not literal if isinstance(literal, bool) else ~literal
