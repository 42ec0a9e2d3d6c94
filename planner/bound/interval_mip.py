"""The integer program over instants, interval by interval: a tighter bound without copies.

Interval i lies between instant i and the next one: after base operation p_i, up to and including
p_(i+1); the last one ends with the base order. A recompute that `planner.bound.lp` counts once,
however often it happens, is decided for every interval here, as Checkmate (Jain et al., MLSys 2020)
does for every operation:

    x[m,i]    operation m runs again in interval i, at least once
    res[t,i]  tensor t is on the device just behind p_i
    h[t,i]    the same copy of t is there throughout interval i
    A[m,i]    m runs again behind p_i: the largest of x[m,i], x[m,i+1], ...

    minimise  Σ c_m x[m,i]
    res[t,i] + x[producer of t,i] >= 1              a base operation in interval i reads t, made before
    res[t,i] + x[producer of t,i] >= x[m,i]         m reads t, made before
    res[t,i+1] <= res[t,i] + x[producer of t,i]
    h[t,i] >= res[t,i+1] - x[producer of t,i]
    res[t,i] + A[producer of t,i] >= 1 or A[m,i]    likewise, for everything behind p_i

and memory, at each instant, while any base operation of an interval runs, and while any runs again:

    Σ s_t res[t,i]                       <= capacity - bytes that p_i itself holds
    Σ s_t h[t,i] + Σ s_t (1 - x[producer of t,i]) <= capacity - bytes that base operation q itself holds
    Σ s_t h[t,i]                         <= capacity - bytes that m itself holds, if x[m,i]

The second sum is over the tensors that a later base operation of the interval reads and one before
q made. Tensors that the operation itself touches are left out of the sums. Every schedule that
first runs the operations in base order gives a feasible point of no greater cost, so the value
bounds them all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from planner.bound.instants import held_at
from planner.bound.lp import LpSolution
from planner.bound.program import LinearProgram
from planner.plan.problem import Problem
from planner.plan.stages import Run, StageSchedule

_Terms = list[tuple[int, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalPlan:
    """The result of the program.

    Attributes:
        feasible: False if no schedule of the class fits.
        bound_us: no plan adds less time than this to the base order; proved even if time ran out.
        solution: its plan in the form of a fractional one, for rounding; None if none was found in
            time.
        plan: the same by stages, with runs as late as their interval allows; it may exceed the
            capacity.
    """

    feasible: bool
    bound_us: float
    solution: LpSolution | None = None
    plan: StageSchedule | None = None


class IntervalMip:
    """The program over some instants of a problem without copies.

    Attributes:
        instants: in base order.
    """

    def __init__(self, problem: Problem, instants: Iterable[int]) -> None:
        """Build the program.

        Raises:
            ValueError: the problem allows copies, or there is no instant.
        """
        if not self.covers(problem):
            raise ValueError("this program does not model copies")
        self.problem = problem
        self.instants = sorted(set(instants))
        if not self.instants:
            raise ValueError("no instant")
        count = len(problem.ops)
        self._ends = [*self.instants[1:], count - 1]
        self._own = [frozenset((*op.inputs, *op.outputs)) for op in problem.ops]
        self._size = [t.bytes / max(1, problem.capacity_bytes) for t in problem.tensors]
        self._last = [max(t.uses, default=-1) for t in problem.tensors]
        kept = [0] * count
        for t in problem.tensors:
            if t.to_end:
                kept[t.producer] += t.bytes
        self._kept_before = list(accumulate(kept, initial=0))
        self._rows = LinearProgram()
        self._integers: list[int] = []
        self._runs: list[dict[int, int]] = [{} for _ in self.instants]
        self._resident: list[dict[int, int]] = [{} for _ in self.instants]
        self._behind: list[dict[int, int]] = [{} for _ in self.instants]
        self._variables()
        for i in range(len(self.instants)):
            self._needs(i)
            self._memory(i)

    @staticmethod
    def covers(problem: Problem) -> bool:
        """Tell whether the program covers all of the problem's options."""
        return problem.allow_recompute and not problem.allow_swap

    # -- what may happen ---------------------------------------------------------------------

    def _variables(self) -> None:
        problem, rows = self.problem, self._rows
        unit = 1.0 / max(1e-9, problem.base_duration_us)
        serves = self._serves()
        last_run = [-1] * len(problem.tensors)  # the last interval with a run that reads it
        for i, (a, end) in enumerate(zip(self.instants, self._ends, strict=True)):
            for m in range(end):
                op = problem.ops[m]
                since = max(a, m)
                if not op.recomputable or serves[m] <= since:
                    continue
                if self._held_again(m, since) > problem.capacity_bytes:
                    continue
                self._runs[i][m] = self._whole(op.duration_us * unit)
                for t in op.inputs:
                    last_run[t] = i
        for i, a in enumerate(self.instants):
            for t, tensor in enumerate(problem.tensors):
                wanted = self._last[t] > a or last_run[t] >= i
                if tensor.producer <= a and wanted and not tensor.to_end:
                    self._resident[i][t] = self._whole()
        self._behind[-1] = self._runs[-1]
        for i in range(len(self.instants) - 2, -1, -1):
            here, later = self._runs[i], self._behind[i + 1]
            for m in sorted(here.keys() | later.keys()):
                if m > self.instants[i]:
                    continue
                behind = self._behind[i][m] = rows.variable()
                parts = [which[m] for which in (here, later) if m in which]
                for part in parts:
                    rows.at_most([(part, 1.0), (behind, -1.0)], 0.0)
                rows.at_most([(behind, 1.0), *((part, -1.0) for part in parts)], 0.0)

    def _serves(self) -> list[int]:
        """Return the last base operation that a run of each operation may be for; -1 if none."""
        problem = self.problem
        serves = [-1] * len(problem.ops)
        for m in range(len(problem.ops) - 1, -1, -1):
            for t in problem.ops[m].outputs:
                for u in problem.tensors[t].uses:
                    again = serves[u] if problem.ops[u].recomputable else -1
                    serves[m] = max(serves[m], u, again)
        return serves

    def _held_again(self, m: int, since: int) -> int:
        """Return the least bytes held while `m` runs again, at any time after base operation `since`.

        Graph outputs made before `since` are included.
        """
        problem, op = self.problem, self.problem.ops[m]
        size = problem.fixed_bytes + op.workspace_bytes + self._kept_before[since]
        for t in self._own[m]:
            tensor = problem.tensors[t]
            if not (tensor.to_end and tensor.producer < since):
                size += tensor.bytes
        return size - sum(problem.tensors[t].bytes for t in {b for _, b in op.inplace})

    # -- rows --------------------------------------------------------------------------------

    def _there(self, i: int, t: int, runs: Mapping[int, int]) -> _Terms:
        """Return the terms of -(t is resident after instant i, or is made again)."""
        producer = self.problem.tensors[t].producer
        found = [self._resident[i].get(t), runs.get(producer)]
        return [(v, -1.0) for v in found if v is not None]

    def _needs(self, i: int) -> None:
        """Require that inputs read in interval i, or after its instant, are resident or made again."""
        problem, rows = self.problem, self._rows
        a, end = self.instants[i], self._ends[i]
        in_stretch: set[int] = set()
        for u in range(a + 1, end + 1):
            in_stretch.update(problem.ops[u].inputs)
        for t in self._resident[i]:
            if t in in_stretch:
                rows.at_most(self._there(i, t, self._runs[i]), -1.0)
            elif self._last[t] > a:
                rows.at_most(self._there(i, t, self._behind[i]), -1.0)
        kinds = [self._runs[i]] if self._behind[i] is self._runs[i] else []
        for runs in kinds or [self._runs[i], self._behind[i]]:
            for m, variable in runs.items():
                for t in problem.ops[m].inputs if m <= a else ():
                    if t in self._resident[i]:
                        rows.at_most([(variable, 1.0), *self._there(i, t, runs)], 0.0)

    def _memory(self, i: int) -> None:
        problem, rows, size = self.problem, self._rows, self._size
        a, end = self.instants[i], self._ends[i]
        resident, runs = self._resident[i], self._runs[i]
        held = [(v, size[t]) for t, v in resident.items() if t not in self._own[a]]
        self._within(held, problem.capacity_bytes - held_at(problem, a))
        following = self._resident[i + 1] if i + 1 < len(self.instants) else {}
        through: dict[int, int] = {}
        for t, variable in following.items():
            producer = problem.tensors[t].producer
            if producer <= a:
                rows.at_most([(variable, 1.0), *self._there(i, t, runs)], 0.0)
            if producer < end:
                kept = through[t] = rows.variable()
                again = [(runs[producer], -1.0)] if producer in runs else []
                rows.at_most([(variable, 1.0), (kept, -1.0), *again], 0.0)
        self._base_runs(i, through)
        self._second_runs(i, {t: v for t, v in through.items() if problem.tensors[t].producer <= a})

    def _base_runs(self, i: int, through: Mapping[int, int]) -> None:
        """Bound memory while the base operations of interval i run, except the next instant's."""
        problem, size = self.problem, self._size
        a, end = self.instants[i], self._ends[i]
        if i + 1 == len(self.instants):
            end += 1
        reads: dict[int, int] = {}  # the last base operation of the interval that reads a tensor
        for u in range(a + 1, min(end + 1, len(problem.ops))):
            reads.update(dict.fromkeys(problem.ops[u].inputs, u))
        candidates = [
            (t, problem.tensors[t].producer)
            for t in sorted(reads.keys() | through.keys())
            if size[t] and not problem.tensors[t].to_end
        ]
        for q in range(a + 1, end):
            room = problem.capacity_bytes - held_at(problem, q)
            terms: _Terms = []
            for t, producer in candidates:
                if producer >= q or t in self._own[q]:
                    continue
                if reads.get(t, -1) > q:
                    room -= problem.tensors[t].bytes
                    if producer in self._runs[i]:
                        terms.append((self._runs[i][producer], -size[t]))
                elif t in through:
                    terms.append((through[t], size[t]))
            self._within(terms, room)

    def _second_runs(self, i: int, through: Mapping[int, int]) -> None:
        """Bound memory while operations from before instant i run again in interval i."""
        problem, rows, size = self.problem, self._rows, self._size
        capacity, a = problem.capacity_bytes, self.instants[i]
        most = sum(problem.tensors[t].bytes for t in through)
        total: int | None = None
        for m, variable in self._runs[i].items():
            if m > a:
                continue
            own = self._held_again(m, a)
            if own + most <= capacity:
                continue
            if total is None:  # at least the sum of all, as a share of it, and thus at most 1
                total = rows.variable()
                scale = most / max(1, capacity)
                rows.at_most([*((v, size[t]) for t, v in through.items()), (total, -scale)], 0.0)
            fixed = problem.fixed_bytes + self._kept_before[a]
            mine = [(v, -size[t]) for t, v in through.items() if t in self._own[m]]
            needs = (variable, (own - fixed) / max(1, capacity))
            self._within([(total, most / max(1, capacity)), needs, *mine], capacity - fixed)

    def _whole(self, cost: float = 0.0) -> int:
        """Add a 0-1 variable."""
        self._integers.append(self._rows.variable(cost))
        return self._integers[-1]

    def _within(self, terms: _Terms, room_bytes: int) -> None:
        """Require that terms, in shares of the capacity, are at most `room_bytes`.

        No row is added if they always are.
        """
        room = room_bytes / max(1, self.problem.capacity_bytes)
        if sum(c for _, c in terms if c > 0) > room:
            self._rows.at_most(terms, room)

    # -- answer ------------------------------------------------------------------------------

    def solve(self, *, time_limit_s: float) -> IntervalPlan:
        """Solve by HiGHS, on one thread."""
        answer = self._rows.integer(self._integers, time_limit_s=time_limit_s)
        if answer.is_impossible:
            return IntervalPlan(feasible=False, bound_us=0.0)
        base_us = self.problem.base_duration_us
        bound_us = max(0.0, answer.bound * base_us) if math.isfinite(answer.bound) else 0.0
        if answer.values is None:
            return IntervalPlan(feasible=True, bound_us=bound_us)
        values = answer.values.tolist()
        solution = LpSolution(
            feasible=True,
            extra_us=max(0.0, answer.objective * base_us),
            bound_us=bound_us,
            resident=self._values(self._resident, values),
            swapped={},
            rerun=self._values(self._behind, values),
        )
        return IntervalPlan(
            feasible=True, bound_us=bound_us, solution=solution, plan=self._plan(values)
        )

    def _values(
        self, variables: Sequence[Mapping[int, int]], values: Sequence[float]
    ) -> dict[tuple[int, int], float]:
        pairs = zip(self.instants, variables, strict=True)
        return {(key, p): values[v] for p, here in pairs for key, v in here.items()}

    def _plan(self, values: Sequence[float]) -> StageSchedule:
        """Return the solution as a schedule.

        Each run goes just before the first operation of its interval that reads a missing output of
        it, or to the interval's end.
        """
        problem = self.problem
        again: set[Run] = set()
        for i, (a, end) in enumerate(zip(self.instants, self._ends, strict=True)):
            runs = {m for m, v in self._runs[i].items() if values[v] > 0.5}
            there = {t for t, v in self._resident[i].items() if values[v] > 0.5}
            stage: dict[int, int] = {}
            for m in sorted(runs, reverse=True):
                readers = [
                    stage.get(u, u)
                    for t in problem.ops[m].outputs
                    if t not in there
                    for u in problem.tensors[t].uses
                    if u in stage or max(a, m) < u <= end
                ]
                stage[m] = (min if m <= a else max)(readers, default=end)
            again.update((q, m) for m, q in stage.items() if q > m)
        return StageSchedule(reruns=frozenset(again), back=frozenset())
