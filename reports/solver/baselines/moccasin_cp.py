"""MOCCASIN: constraint programming over retention intervals.

After Bartan, Li, Teague, Lott and Dilkina, "Moccasin: Efficient Tensor Rematerialization for Neural
Networks", ICML 2023, arXiv:2304.14463. Each node has up to two retention intervals [start, end]:
its computation, and how long its output stays. The input topological order is staged: in stage q
node q runs for the first time, after any of the nodes before it that run again, in their order, so
that node k may run at

    event(q, k) = q·(q + 1)/2 + k        k <= q

and all starts differ. The first interval of node q starts at event(q, q); a second one is optional.

    memory       Σ of the sizes of active intervals <= capacity, at every event        (cumulative)
    precedence   where an interval of v starts, some active interval of each input of v that started
                 earlier has not ended
    order        the first interval of a node ends no later than its second one starts

Phase 1 minimizes the larger of the peak and the capacity, from the plan that recomputes nothing;
phase 2 fixes the capacity and minimizes the total duration, from the plan of phase 1. The paper
leaves precedence to the solver's reservoir constraint; here each reader chooses, by a Boolean, the
interval that serves it.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from ortools.sat.python import cp_model

from planner.plan.problem import Action, ActionKind, Problem
from reports.solver.baselines.outcome import Outcome, outcome
from reports.solver.build import base_peak

_COST_UNITS = 10_000_000


def solve_moccasin(
    problem: Problem, *, time_limit_s: float, workers: int = 2, seed: int = 0
) -> Outcome:
    """Solve both phases within the time limit.

    Args:
        problem: one tensor an operation, no workspace, nothing in place; swaps are not used.

    Raises:
        ValueError: the problem has what the model does not know.
    """
    _check(problem)
    start = time.monotonic()
    model = _Model(problem)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = seed
    # else Ctrl-C ends this process without a word from then on
    solver.parameters.catch_sigint_signal = False

    def left() -> float:
        return max(0.1, time_limit_s - (time.monotonic() - start))

    solver.parameters.max_time_in_seconds = left()
    model.minimize_peak()
    status = solver.solve(model.cp)
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    said = f"phase 1: {solver.status_name(status).lower()}"
    if not found or solver.value(model.peak) > model.capacity:
        return outcome(
            problem,
            None,
            status=f"{said}, over the budget" if found else said,
            bound_us=None,
            optimal=False,
            seconds=time.monotonic() - start,
        )
    actions = model.actions(solver)
    model.minimize_time(solver)
    solver.parameters.max_time_in_seconds = left()
    status = solver.solve(model.cp)
    bound_us = None
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        actions = model.actions(solver)
        bound_us = problem.base_duration_us + max(0.0, solver.best_objective_bound) / model.units
    return outcome(
        problem,
        actions,
        status=f"phase 2: {solver.status_name(status).lower()}",
        bound_us=bound_us,
        optimal=status == cp_model.OPTIMAL,
        seconds=time.monotonic() - start,
    )


def _check(problem: Problem) -> None:
    for op in problem.ops:
        if len(op.outputs) != 1 or op.workspace_bytes or op.inplace:
            raise ValueError(
                f"operation {op.name!r}: the model knows one output, no workspace, nothing in place"
            )


@dataclass(frozen=True, slots=True)
class _Interval:
    """An interval of a tensor; `active` is None for the first one, which is always active."""

    start: cp_model.IntVar | int
    end: cp_model.IntVar
    active: cp_model.IntVar | None


class _Model:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.cp = cp_model.CpModel()
        self.count = len(problem.ops)
        self.horizon = _event(self.count, 0)
        self.tensors = [problem.tensors[op.outputs[0]] for op in problem.ops]
        self.unit_bytes = math.gcd(*(t.bytes for t in self.tensors)) or 1
        self.capacity = (problem.capacity_bytes - problem.fixed_bytes) // self.unit_bytes
        # durations as whole units, exactly where they are whole numbers
        whole = all(float(op.duration_us).is_integer() for op in problem.ops)
        self.units = 1.0 if whole else _COST_UNITS / problem.base_duration_us
        self.intervals = [self._intervals_of(k) for k in range(self.count)]
        for k in range(self.count):
            for interval in self.intervals[k]:
                self._inputs(k, interval)
        self.peak = self._memory()

    def _intervals_of(self, k: int) -> list[_Interval]:
        cp, first, tensor = self.cp, _event(k, k), self.tensors[k]
        end = cp.new_int_var(first, self.horizon - 1, f"end_{k}")
        cp.add_hint(end, _event(tensor.uses[-1], tensor.uses[-1]) if tensor.uses else first)
        if tensor.to_end:
            cp.add(end == self.horizon - 1)
        intervals = [_Interval(first, end, None)]
        op = self.problem.ops[k]
        if not (tensor.uses and op.recomputable and self.problem.allow_recompute):
            return intervals
        stages = [_event(q, k) for q in range(k + 1, self.count)]
        start = cp.new_int_var_from_domain(cp_model.Domain.from_values(stages), f"again_{k}")
        again_end = cp.new_int_var(stages[0], self.horizon - 1, f"again_end_{k}")
        active = cp.new_bool_var(f"active_{k}")
        cp.add(start <= again_end)
        if not tensor.to_end:
            cp.add(end <= start).only_enforce_if(active)
        for variable, value in ((start, stages[0]), (again_end, stages[0]), (active, 0)):
            cp.add_hint(variable, value)
        return [*intervals, _Interval(start, again_end, active)]

    def _inputs(self, k: int, reader: _Interval) -> None:
        cp = self.cp
        for t in self.problem.ops[k].inputs:
            served = self.intervals[self.problem.tensors[t].producer]
            if len(served) == 1:
                constraint = cp.add(served[0].end >= reader.start)
                if reader.active is not None:
                    constraint.only_enforce_if(reader.active)
                continue
            second = served[1]
            assert second.active is not None
            by_second = cp.new_bool_var(f"second_{t}_{k}_{reader.active is not None}")
            cp.add_hint(by_second, 0)
            when = [] if reader.active is None else [reader.active]
            cp.add(served[0].end >= reader.start).only_enforce_if(by_second.negated(), *when)
            cp.add_implication(by_second, second.active)
            cp.add(second.start + 1 <= reader.start).only_enforce_if(by_second, *when)
            cp.add(second.end >= reader.start).only_enforce_if(by_second, *when)

    def _memory(self) -> cp_model.IntVar:
        cp = self.cp
        intervals: list[cp_model.IntervalVar] = []
        demands: list[int] = []
        for k, own in enumerate(self.intervals):
            for interval in own:
                start, stop = interval.start, interval.end + 1
                if interval.active is None:
                    made = cp.new_interval_var(start, stop - start, stop, f"kept_{k}")
                else:
                    size = cp.new_int_var(1, self.horizon, f"size_{k}")
                    cp.add_hint(size, 1)
                    made = cp.new_optional_interval_var(
                        start, size, stop, interval.active, f"kept_again_{k}"
                    )
                intervals.append(made)
                demands.append(self.tensors[k].bytes // self.unit_bytes)
        fixed = self.problem.fixed_bytes
        most = max(self.capacity, -(-(base_peak(self.problem) - fixed) // self.unit_bytes))
        peak = cp.new_int_var(self.capacity, most, "peak")
        cp.add_hint(peak, most)
        cp.add_cumulative(intervals, demands, peak)
        return peak

    def minimize_peak(self) -> None:
        """Run phase 1: minimize the peak."""
        self.cp.minimize(self.peak)

    def minimize_time(self, solver: cp_model.CpSolver) -> None:
        """Run phase 2: minimize the time, starting from the plan in `solver`."""
        values = [
            (v, solver.value(v))
            for v in map(self.cp.get_int_var_from_proto_index, range(len(self.cp.proto.variables)))
        ]
        self.cp.clear_hints()
        for variable, value in values:
            self.cp.add_hint(variable, value)
        self.cp.add(self.peak == self.capacity)
        self.cp.minimize(
            sum(
                round(op.duration_us * self.units) * interval.active
                for op, own in zip(self.problem.ops, self.intervals, strict=True)
                for interval in own
                if interval.active is not None
            )
        )

    def actions(self, solver: cp_model.CpSolver) -> list[Action]:
        """Return the plan's actions: active intervals by their starts."""
        runs = [
            (solver.value(interval.start), k)
            for k, own in enumerate(self.intervals)
            for interval in own
            if interval.active is None or solver.boolean_value(interval.active)
        ]
        return [Action(kind=ActionKind.RUN, target=k) for _, k in sorted(runs)]


def _event(stage: int, node: int) -> int:
    return stage * (stage + 1) // 2 + node
