"""The LP over instants: a bound on the time of every plan, and a fractional plan to round.

An instant p is the moment at which base operation p runs. A tensor that is needed after p must be
resident at p, be on the host at p, or be computed again after p; the same holds for the inputs of each
operation that runs again:

    minimise    Σ_m c_m R[m] + Σ_t out_t O[t] + Σ_(t,g) in_t W[t,g]
    res[t,p] + A[prod t,p] + W[t, gap at p] >= 1          t used after p
    res[t,p] + A[prod t,p] + W[t, gap at p] >= A[m,p]     t an input of m, m < p
    Σ_t s_t res[t,p] <= capacity - bytes that p itself holds
    R[m] >= A[m,p],  O[t] >= W[t,g],  all in [0, 1]

Copies that run beside the operations cost no time themselves. W then has one variable per instant, and
`planner.bound.copy_times` adds the time of the copies.

Inputs of p are resident. The optimum is a lower bound for every schedule whose first executions follow
the base order, with any number of recomputes and swaps: each of these schedules gives a feasible point (A
= executed again after p, res = resident at p) of no greater cost. In-place outputs are credited in full,
which keeps the bound valid.

An operation that runs again after p, or a tensor needed after p, also does so after each earlier instant.
The LP leaves out the rows that say this: with them the simplex took up to 20 times as long on training
graphs of 1,200 to 2,100 operations with 12 instants, and the bounds did not change.
`planner.bound.column_generation` has them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from planner.bound.copy_times import CopyTimes
from planner.bound.instants import held_at, needed_at
from planner.bound.program import Floats, LinearProgram
from planner.plan.decisions import Gap
from planner.plan.problem import Problem

BOUND_CLASS = (
    "schedules that first run the operations in this base order, with any number of recomputes "
    "and swaps"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LpSolution:
    """The optimum of the LP over some instants.

    Attributes:
        extra_us: time that this solution adds to the base order.
        bound_us: lower bound on the time that any plan adds to the base order.
        feasible: False where some instant cannot meet the capacity at all.
        resident, swapped: values of res and W, by tensor and instant. rerun: A, by operation and instant.
        price_us: microseconds by which one more byte of capacity lowers the bound, by instant: the dual
            price of the instant's capacity row. Empty for integer programs, which have no duals.
    """

    feasible: bool
    extra_us: float
    bound_us: float
    resident: dict[tuple[int, int], float]
    swapped: dict[tuple[int, int], float]
    rerun: dict[tuple[int, int], float]
    price_us: dict[int, float] = field(default_factory=dict)


INFEASIBLE = LpSolution(
    feasible=False, extra_us=0.0, bound_us=0.0, resident={}, swapped={}, rerun={}
)


class InstantLp:
    """An LP to which instants are added one by one."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.program = LinearProgram()
        self.scale = 1.0 / max(1e-9, problem.base_duration_us)
        self.instants: list[int] = []
        self.rerun_any: dict[int, int] = {}
        self.swap_gap: dict[Gap, int] = {}
        self.swap_any: dict[int, int] = {}
        self.swapped: dict[tuple[int, int], int] = {}
        self.resident: dict[tuple[int, int], int] = {}
        self.rerun: dict[tuple[int, int], int] = {}
        self.memory: dict[int, int] = {}
        self.objective: list[tuple[int, float]] = []
        self.times: CopyTimes | None = None
        if problem.overlap and problem.allow_swap:
            self.times = CopyTimes(self.program, problem)

    def add(self, p: int) -> None:
        """Add the instant at base operation p."""
        if p in self.instants:
            return
        self.instants.append(p)
        problem, program = self.problem, self.program
        used_after, reruns, wanted = needed_at(problem, p)
        after = set(used_after)
        for m in reruns:
            variable = program.variable()
            self.rerun[m, p] = variable
            if m not in self.rerun_any:
                self.rerun_any[m] = self._paid(problem.ops[m].duration_us)
            program.at_least([(self.rerun_any[m], 1.0), (variable, -1.0)], 0.0)
        scale = 1.0 / max(1, problem.capacity_bytes)
        memory: list[tuple[int, float]] = []
        back: dict[int, list[tuple[int, float]]] = {}
        for t in wanted:
            res = program.variable()
            self.resident[t, p] = res
            memory.append((res, problem.tensors[t].bytes * scale))
            back[t] = [(res, 1.0)]
            producer = problem.tensors[t].producer
            if (producer, p) in self.rerun:
                back[t].append((self.rerun[producer, p], 1.0))
            swap = self._swap(t, p)
            if swap is not None:
                self.swapped[t, p] = swap
                back[t].append((swap, 1.0))
            if t in after:
                program.at_least(back[t], 1.0)
        for m in reruns:
            for t in problem.ops[m].inputs:
                if t in back:
                    program.at_least([*back[t], (self.rerun[m, p], -1.0)], 0.0)
        room = problem.capacity_bytes - held_at(problem, p)
        self.memory[p] = program.at_most(memory, room * scale)
        if self.times is not None:
            host = {t: self.swapped[t, p] for t in wanted if (t, p) in self.swapped}
            self.times.add(p, host, [(m, self.rerun[m, p]) for m in reruns])

    def _swap(self, t: int, p: int) -> int | None:
        problem = self.problem
        if not problem.allow_swap or not problem.tensors[t].swappable:
            return None
        if self.times is not None:
            return self.program.variable()
        uses = problem.tensors[t].uses
        # a tensor may return after its last use, for a recompute that reads it
        gap = (t, next((i for i, u in enumerate(uses) if u > p), len(uses)))
        if gap not in self.swap_gap:
            self.swap_gap[gap] = self._paid(problem.swap_in_us(t))
            if t not in self.swap_any:
                self.swap_any[t] = self._paid(problem.swap_out_us(t))
            row = [(self.swap_any[t], 1.0), (self.swap_gap[gap], -1.0)]
            self.program.at_least(row, 0.0)
        return self.swap_gap[gap]

    def _paid(self, us: float) -> int:
        """Add a variable that costs `us` microseconds, and return its number.

        Where copies run beside the operations, `solve` adds the cost as a row instead.
        """
        cost = self.scale * us
        variable = self.program.variable(0.0 if self.times is not None else cost)
        self.objective.append((variable, cost))
        return variable

    def solve(self, *, time_limit_s: float, whole: bool = False) -> LpSolution | None:
        """Solve the LP; return None where the time limit passed without an answer.

        Args:
            whole: solve the integer program. Its bound is valid too, since every plan's decisions are
                integers.
                It is tighter where a few large tensors matter, and takes longer.
        """
        if self.times is not None:
            self.program.at_most([*self.objective, (self.times.recompute, -1.0)], 0.0)
        if whole:
            groups = (self.resident, self.rerun, self.swapped)
            integers = {variable for group in groups for variable in group.values()}
            answer = self.program.integer(integers, time_limit_s=time_limit_s)
        else:
            answer = self.program.linear(time_limit_s=time_limit_s)
        if answer.is_impossible:
            return INFEASIBLE
        if answer.values is None or not (whole or answer.is_optimal):
            return None
        values = answer.values.tolist()
        proved = answer.bound if whole else answer.objective
        return LpSolution(
            feasible=True,
            extra_us=max(0.0, answer.objective / self.scale),
            bound_us=max(0.0, proved / self.scale),
            resident={k: values[v] for k, v in self.resident.items()},
            swapped={k: values[v] for k, v in self.swapped.items()},
            rerun={k: values[v] for k, v in self.rerun.items()},
            price_us={} if whole else self._prices(answer.duals),
        )

    def _prices(self, duals: Floats) -> dict[int, float]:
        """Convert the duals of the capacity rows from scaled units to microseconds per byte."""
        per_byte = 1.0 / max(1, self.problem.capacity_bytes) / self.scale
        return {p: max(0.0, -float(duals[row])) * per_byte for p, row in self.memory.items()}
