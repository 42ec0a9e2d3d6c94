"""The LP over instants: a bound on the time of every plan, and a fractional plan to round.

An instant p is the moment at which base operation p runs. What is needed after p and is neither
resident at p, nor on the host, must be computed again after p, and so must (or be resident) whatever
that needs:

    minimise    Σ_m c_m R[m] + Σ_t out_t O[t] + Σ_(t,g) in_t W[t,g]
    res[t,p] + A[prod t,p] + W[t, gap at p] >= 1          t used after p
    res[t,p] + A[prod t,p] + W[t, gap at p] >= A[m,p]     t an input of m, m < p
    Σ_t s_t res[t,p] <= capacity - what p itself holds
    R[m] >= A[m,p],  O[t] >= W[t,g],  all in [0, 1]

Where copies run beside the operations they cost no time themselves; W is then one variable for each
instant, and `planner.bound.copy_times` adds time.

Inputs of p are resident. The value is a lower bound for every schedule whose first executions
follow the base order, with any number of recomputes and swaps: each such schedule gives a feasible
point (A = executed again after p, res = resident at p) of no greater cost. In-place outputs are
credited in full, which keeps the bound valid.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field

from ortools.math_opt.python import mathopt

from planner.bound.copy_times import CopyTimes
from planner.bound.instants import held_at, needed_at
from planner.plan.decisions import Gap
from planner.plan.problem import Problem
from planner.processes.interrupt import interruptibly

MIP_GAP = 1e-4

BOUND_CLASS = (
    "schedules that first run the operations in this base order, with any number of recomputes "
    "and swaps"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LpSolution:
    """Optimum of the LP over some instants.

    Attributes:
        extra_us: the value of this solution.
        bound_us: no plan adds less time than this to the base order.
        feasible: False where some instant cannot meet the capacity at all.
        resident, swapped: by tensor and instant. rerun: by operation and instant.
        price_us: by instant, what one more byte of capacity there takes off the bound: the dual price
            of the instant's row (0 for integer programs, which have none).
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

    def __init__(
        self,
        problem: Problem,
        guards: frozenset[int] = frozenset(),
        *,
        bandwidth_scale: float = 1.0,
    ) -> None:
        """`guards` are tensors that must stay resident: with any, or with less than the full
        bandwidth, the value is no bound."""
        self.problem = problem
        self.guards = guards
        self.model = mathopt.Model(name="instants")
        self.instants: list[int] = []
        self.rerun_any: dict[int, mathopt.Variable] = {}
        self.swap_gap: dict[Gap, mathopt.Variable] = {}
        self.swap_any: dict[int, mathopt.Variable] = {}
        self.swapped: dict[tuple[int, int], mathopt.Variable] = {}
        self.resident: dict[tuple[int, int], mathopt.Variable] = {}
        self.rerun: dict[tuple[int, int], mathopt.Variable] = {}
        self.memory: dict[int, mathopt.LinearConstraint] = {}
        self.objective: list[tuple[float, mathopt.Variable]] = []
        self.times: CopyTimes | None = None
        if problem.overlap and problem.allow_swap:
            self.times = CopyTimes(self.model, problem, bandwidth_scale=bandwidth_scale)

    def add(self, p: int) -> None:
        """Add the instant at base operation p."""
        if p in self.instants:
            return
        self.instants.append(p)
        problem, model = self.problem, self.model
        used_after, reruns, wanted = needed_at(problem, p)
        after = set(used_after)
        for m in reruns:
            variable = model.add_variable(lb=0.0, ub=1.0)
            self.rerun[m, p] = variable
            if m not in self.rerun_any:
                self.rerun_any[m] = model.add_variable(lb=0.0, ub=1.0)
                self.objective.append((problem.ops[m].duration_us, self.rerun_any[m]))
            model.add_linear_constraint(self.rerun_any[m] - variable >= 0.0)
        memory = []
        back = {}
        for t in wanted:
            res = model.add_variable(lb=1.0 if t in self.guards else 0.0, ub=1.0)
            self.resident[t, p] = res
            memory.append(problem.tensors[t].bytes * res)
            back[t] = res
            producer = problem.tensors[t].producer
            if (producer, p) in self.rerun:
                back[t] = back[t] + self.rerun[producer, p]
            swap = self._swap(t, p)
            if swap is not None:
                self.swapped[t, p] = swap
                back[t] = back[t] + swap
            if t in after:
                model.add_linear_constraint(back[t] >= 1.0)
        for m in reruns:
            for t in problem.ops[m].inputs:
                if t in back:
                    model.add_linear_constraint(back[t] - self.rerun[m, p] >= 0.0)
        room = problem.capacity_bytes - held_at(problem, p)
        scale = 1.0 / max(1, problem.capacity_bytes)
        row = model.add_linear_constraint(mathopt.fast_sum(memory) * scale <= room * scale)
        self.memory[p] = row
        if self.times is not None:
            host = {t: self.swapped[t, p] for t in wanted if (t, p) in self.swapped}
            self.times.add(p, host, [(m, self.rerun[m, p]) for m in reruns])

    def _swap(self, t: int, p: int) -> mathopt.Variable | None:
        problem = self.problem
        if not problem.allow_swap or not problem.tensors[t].swappable:
            return None
        if self.times is not None:
            return self.model.add_variable(lb=0.0, ub=1.0)
        uses = problem.tensors[t].uses
        # behind its last use a tensor may still come back, for a recompute that reads it
        gap = (t, next((i for i, u in enumerate(uses) if u > p), len(uses)))
        if gap not in self.swap_gap:
            self.swap_gap[gap] = self.model.add_variable(lb=0.0, ub=1.0)
            self.objective.append((problem.swap_in_us(t), self.swap_gap[gap]))
            if t not in self.swap_any:
                self.swap_any[t] = self.model.add_variable(lb=0.0, ub=1.0)
                self.objective.append((problem.swap_out_us(t), self.swap_any[t]))
            self.model.add_linear_constraint(self.swap_any[t] - self.swap_gap[gap] >= 0.0)
        return self.swap_gap[gap]

    def solve(self, *, time_limit_s: float, whole: bool = False) -> LpSolution | None:
        """Solve; None where the time limit passed without an answer.

        Args:
            whole: decide every tensor wholly. Every plan does, so the bound stays one, and it is
                tighter where few large tensors matter; it takes longer.
        """
        if whole:
            for group in (self.resident, self.rerun, self.swapped):
                for variable in group.values():
                    variable.integer = True
        scale = 1.0 / max(1e-9, self.problem.base_duration_us)
        cost = mathopt.fast_sum(c * scale * v for c, v in self.objective)
        if self.times is not None:
            self.model.add_linear_constraint(cost <= self.times.recompute)
            cost = self.times.cost
        self.model.minimize(cost)
        params = mathopt.SolveParameters(
            time_limit=datetime.timedelta(seconds=max(0.05, time_limit_s)),
            lp_algorithm=None if whole else mathopt.LPAlgorithm.DUAL_SIMPLEX,
            relative_gap_tolerance=MIP_GAP if whole else None,
        )
        solver = mathopt.SolverType.HIGHS if whole else mathopt.SolverType.GLOP
        result = interruptibly(lambda: mathopt.solve(self.model, solver, params=params))
        if whole:
            for group in (self.resident, self.rerun, self.swapped):
                for variable in group.values():
                    variable.integer = False
        reason = result.termination.reason
        kinds = mathopt.TerminationReason
        if reason in (kinds.INFEASIBLE, kinds.INFEASIBLE_OR_UNBOUNDED):
            return INFEASIBLE
        if not result.has_primal_feasible_solution() or (not whole and reason is not kinds.OPTIMAL):
            return None
        values = result.variable_values()
        value = result.objective_value()
        proved = result.best_objective_bound() if whole else value
        price_us = {} if whole else self._prices(result.dual_values(), scale)
        return LpSolution(
            feasible=True,
            extra_us=max(0.0, value / scale),
            bound_us=max(0.0, proved / scale),
            resident={k: values[v] for k, v in self.resident.items()},
            swapped={k: values[v] for k, v in self.swapped.items()},
            rerun={k: values[v] for k, v in self.rerun.items()},
            price_us=price_us,
        )

    def _prices(
        self, duals: Mapping[mathopt.LinearConstraint, float], cost_scale: float
    ) -> dict[int, float]:
        """Microseconds for a byte at each instant, from the rows' duals, which are in scaled units."""
        per_byte = 1.0 / max(1, self.problem.capacity_bytes) / cost_scale
        return {p: max(0.0, -duals[row]) * per_byte for p, row in self.memory.items()}
