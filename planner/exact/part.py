"""A part of a plan as a 0-1 program: some runs are free, everything else is fixed.

    rerun[r]   a free run takes place
    held[t,k]  tensor t is on the device between its k-th and (k+1)-th event
    in[t,k]    it is copied in just before event k, a run that may read it
    host[t]    it is copied out

The events of a tensor are the runs that make or read it, including free ones. Only tensors that
free runs touch have events; all others are a number of bytes at each place of the axis, and so is
the span between two events. One row for each event bounds the memory:

    Σ s_t held[t, gap of t here] + bytes of the event itself <= capacity - all others' bytes
    minimise  Σ c_m rerun[r] + Σ in_t in[t,k] + Σ out_t host[t]  (+ a price for excess)

A copy lives from where it is made to its last reader, as in the simulator: held[t,k] falls only
where t is read, and rises only where t is made. The rows are those of the frontier-advancing
formulation of Jain et al. ("Checkmate", MLSys 2020), over events instead of pairs of stages and
operations, and with any number of runs.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from ortools.sat.python import cp_model

from planner.exact.gaps import Event, GapModel, Literal, negated
from planner.plan.problem import Problem
from planner.plan.stages import (
    MemoryProfile,
    Run,
    StageSchedule,
    moves_freely,
    overwritten,
    readers_of,
)

COST_UNITS = 10_000_000
"""Number of objective units in the base duration."""

_PRICE_UNITS = 100
"""Objective units per unit of cost, for models in which prices of bytes are small."""

_MAX_WEIGHT = 1 << 40
"""Largest objective weight of a run, a copy or a step of excess; the objective has 64 bits.

Costs beyond 100,000 times the step are not distinguished.
"""

_EXCESS_STEPS = 100_000
"""Number of steps of excess in the capacity."""

_FALSE, _TRUE = -1, -2
_LEAST, _MOST = -(1 << 62), 1 << 62
_Terms = list[tuple[Literal, int]]


@dataclass(slots=True)
class _Excess:
    """A variable for steps above the capacity, at a number of stages."""

    variable: int
    stages: int


class _PartState:
    """The bytes of the model's tensors in the current gap of each."""

    def __init__(self, sizes: npt.NDArray[np.int64], unit: int) -> None:
        self.sizes = sizes
        self.units = sizes // unit
        self.variable = np.full(len(sizes), _FALSE, dtype=np.int64)
        self.stale = True

    def set(self, slot: int, literal: Literal) -> None:
        """Set whether one tensor is held."""
        if isinstance(literal, bool):
            self.variable[slot] = _TRUE if literal else _FALSE
        else:
            self.variable[slot] = literal
        self.stale = True

    def refresh(self) -> None:
        """Compute the terms of the memory row anew if a tensor's literal has changed.

        `variables` and `row_units` are the terms with a variable, `most` is the sum of their bytes,
        and `constant` that of the tensors that are held in any case.
        """
        if not self.stale:
            return
        chosen = self.variable >= 0
        self.variables = self.variable[chosen]
        self.row_units = self.units[chosen]
        self.most = int(self.sizes[chosen].sum())
        self.constant = int(self.sizes[self.variable == _TRUE].sum())
        self.stale = False


class PartModel(GapModel):
    """The model of one part of a plan.

    Args:
        held: the bytes of the plan along its axis.
        free: runs to decide on; the plan's other runs stay. They are recomputes, of operations that
            may run again.
        tensors: tensors to decide on besides those that free runs touch.
        price: makes the capacity soft: the cost, in base durations, of an excess as large as the
            capacity at each stage's fullest moment.
    """

    def __init__(
        self,
        problem: Problem,
        held: MemoryProfile,
        free: Collection[Run],
        *,
        tensors: Collection[int] = (),
        price: float | None = None,
    ) -> None:
        super().__init__(problem, held, free, tensors)
        self.price = price
        self.excess: list[_Excess] = []
        self.excess_at: dict[int, _Excess] = {}
        self.rows = 0
        self.planned = np.array(self.hints, dtype=np.int64)
        self._memory()
        self._objective()
        self.hint_all()

    def _memory(self) -> None:
        problem = self.problem
        self.axis = self.held.live.copy()
        for t in self.tensors:
            for start, end in self.held.spans(t, first=False):
                self.axis[start:end] -= problem.tensors[t].bytes
        for run in self.reruns:
            if run in self.held.index:
                self.axis[2 * self.held.index[run] + 1] -= problem.ops[run[1]].workspace_bytes
        self.unit = max(
            1,
            math.gcd(
                *(problem.tensors[t].bytes for t in self.tensors),
                *(problem.ops[m].workspace_bytes for m in self.free_runs),
            ),
        )
        self.step = max(1, problem.capacity_bytes // (_EXCESS_STEPS * self.unit))
        self.all_bytes = sum(2 * problem.tensors[t].bytes for t in self.tensors)
        self.all_bytes += sum(problem.ops[m].workspace_bytes for m in self.free_runs)
        touching: dict[Run, list[tuple[int, Event]]] = {}
        slot = {t: i for i, t in enumerate(t for t in self.tensors if problem.tensors[t].bytes)}
        for t in slot:
            for event in self.events[t]:
                touching.setdefault(event.run, []).append((t, event))
        sizes = np.array([problem.tensors[t].bytes for t in slot], dtype=np.int64)
        state = _PartState(sizes, self.unit)
        done = 0
        for run in sorted(touching):
            listed = run in self.held.index
            place = self.held.index[run] if listed else bisect_left(self.held.runs, run)
            spared = overwritten(problem, run[1])
            plain = run not in self.reruns and not any(
                e.makes or e.fetched is not False or t in spared for t, e in touching[run]
            )
            until = 2 * place + (2 if plain else 1)
            if plain or spared or until > done + 1:  # otherwise the run's own row covers the gap
                self._row(state, (), done, until)
            if not plain:
                for t, _ in touching[run]:
                    state.set(slot[t], False)
                moment = 2 * place + listed
                self._row(state, self._at(run, touching[run], spared), moment, moment + 1)
            done = 2 * place + (2 if listed else 0)
            for t, event in touching[run]:
                state.set(slot[t], event.after)
        self._row(state, (), done, len(self.axis))

    def _at(self, run: Run, events: Iterable[tuple[int, Event]], spared: Collection[int]) -> _Terms:
        """Return the memory terms of the tensors that a run touches, while it runs."""
        problem = self.problem
        terms: _Terms = []
        for t, event in events:
            size = problem.tensors[t].bytes
            if event.makes:
                is_first = problem.tensors[t].to_end and run[0] == run[1]
                terms += [(event.before, size), (False if is_first else event.runs, size)]
            elif t in spared:
                terms.append((event.after, size))
            elif event.runs is True and event.fetched is not False:
                terms.append((True, size))
            else:
                terms += [(event.before, size), (event.fetched, size)]
        if run in self.reruns:
            terms.append((self.reruns[run], problem.ops[run[1]].workspace_bytes))
        return terms

    def _row(
        self, state: _PartState, terms: Iterable[tuple[Literal, int]], start: int, end: int
    ) -> None:
        """Add the memory row of `[start, end)` of the axis, within which nothing changes."""
        others = self.axis[start:end]
        if not len(others):
            return
        state.refresh()
        most = state.most
        constant = state.constant + sum(size for x, size in terms if x is True)
        room = self.problem.capacity_bytes - int(others.max()) - constant
        extra = [(x, size) for x, size in terms if not isinstance(x, bool) and size]
        most += sum(size for _, size in extra)
        if most <= room or (self.price is not None and not most):
            return
        variables = [*state.variables.tolist(), *(i for i, _ in extra)]
        sizes = [*state.row_units.tolist(), *(size // self.unit for _, size in extra)]
        if self.price is not None:
            now = int(state.row_units @ self.planned[state.variables])
            now += sum(size // self.unit for i, size in extra if self.planned[i])
            variables.append(self._excess(start, end, now - room // self.unit, constant + most))
            sizes.append(-self.step)
        row = self._rows.add().linear
        row.vars.extend(variables)
        row.coeffs.extend(sizes)
        row.domain.extend([_LEAST, room // self.unit])
        self.rows += 1

    def _excess(self, start: int, end: int, now: int, most: int) -> int:
        """Return the variable for the steps above the capacity in a row.

        It is that of the row's stage, or a new one for several stages. `now` is the plan's number
        of units.
        """
        first, last = (self.held.runs[i // 2][0] for i in (start, end - 1))
        excess = self.excess_at.get(first) if first == last else None
        if excess is None:
            above = self.axis[start:end] + most > self.problem.capacity_bytes
            stages = {self.held.runs[(start + int(i)) // 2][0] for i in np.flatnonzero(above)}
            limit = (int(self.held.live.max()) + self.all_bytes) // (self.step * self.unit) + 1
            excess = _Excess(self._variable(limit, 0), len(stages))
            self.excess.append(excess)
            if first == last:
                self.excess_at[first] = excess
        steps = -(-now // self.step)
        self.hints[excess.variable] = max(self.hints[excess.variable], steps)
        return excess.variable

    # -- objective and answer ----------------------------------------------------------------

    def _objective(self) -> None:
        problem = self.problem
        unit = COST_UNITS / max(problem.base_duration_us, 1e-9)
        costs = [(x, problem.ops[m].duration_us) for (_, m), x in self.reruns.items()]
        costs += [(x, problem.swap_in_us(t)) for (_, t), x in self.fetches.items()]
        costs += [(x, problem.swap_out_us(t)) for t, x in self.hosted.items()]
        fixed = math.floor(sum(us for x, us in costs if x is True) * unit)
        costs = [(x, us) for x, us in costs if not isinstance(x, bool)]
        self.terms = len(costs)
        self.fixed_units = fixed
        self.cost: dict[int, int] = {}  # by variable
        self.cost_units = 0  # of no variable
        for x, us in costs:
            # rounded down, to keep the bound valid
            weight = min(math.floor(us * unit), _MAX_WEIGHT)
            if x < 0:  # 1 - variable
                x, weight, self.cost_units = ~x, -weight, self.cost_units + weight
            self.cost[x] = self.cost.get(x, 0) + weight
        total, scale = dict(self.cost), 1
        if self.price is not None:
            scale = _PRICE_UNITS
            price = self.price * COST_UNITS * self.step * self.unit / problem.capacity_bytes
            weight = max(1, round(min(price * _PRICE_UNITS, _MAX_WEIGHT)))
            total = {x: scale * units for x, units in total.items()}
            total.update((e.variable, weight * e.stages) for e in self.excess)
        objective = self.cp.proto.objective
        objective.vars.extend(list(total))
        objective.coeffs.extend(list(total.values()))
        objective.offset = scale * self.cost_units

    def add_latest(self) -> None:
        """Exclude plans in which a run could as well take place a stage later.

        That is so if nothing in its stage reads its outputs, and all of its inputs are still
        present then (`latest`). Some optimum remains, provided that every later stage of a useful
        free run is free too.
        """
        before = {(e.run, t): e.before for t, events in self.events.items() for e in events}
        for (q, m), runs in self.reruns.items():
            inputs = self.problem.ops[m].inputs
            readers = readers_of(self.problem, m)
            if (q + 1, m) not in self.reruns or q in readers or not moves_freely(self.problem, m):
                continue
            here = [(q, u) for u in readers]
            if any(run in self.held.index and run not in self.reruns for run in here):
                continue
            read = [self.reruns[run] for run in here if run in self.reruns]
            gone = [negated(before[(q + 1, m), t]) for t in inputs]
            self._clause(negated(runs), *read, *gone)

    def add_bound(self, bound_us: float) -> None:
        """Add a proven bound on the time of any plan, for a model in which everything is free.

        Every cost is rounded down by less than a unit.
        """
        added = (bound_us - self.problem.base_duration_us) / self.problem.base_duration_us
        units = int(added * COST_UNITS) - self.terms - self.fixed_units
        if units > 0:
            row = self._rows.add().linear
            row.vars.extend(list(self.cost))
            row.coeffs.extend(list(self.cost.values()))
            row.domain.extend([units - self.cost_units, _MOST])

    def bound_us(self, solver: cp_model.CpSolver) -> float:
        """Return a lower bound on the time of every solution."""
        units = max(0.0, solver.best_objective_bound) + self.fixed_units
        return self.problem.base_duration_us * (1 + units / COST_UNITS)

    def plan_of(self, solver: cp_model.CpSolver) -> StageSchedule:
        """Return the plan of a solution."""

        values = list(solver.response_proto.solution)

        def holds(literal: Literal) -> bool:
            if isinstance(literal, bool):
                return literal
            return bool(values[literal]) if literal >= 0 else not values[~literal]

        mine = set(self.tensors)
        reruns = self.plan.reruns.difference(self.reruns)
        back = {(run, t) for run, t in self.plan.back if t not in mine}
        return StageSchedule(
            reruns=reruns.union(run for run, x in self.reruns.items() if holds(x)),
            back=frozenset(back.union(key for key, x in self.fetches.items() if holds(x))),
        )
