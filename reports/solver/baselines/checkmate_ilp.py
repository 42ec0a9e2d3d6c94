"""Checkmate: an integer program over stages.

After Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization",
MLSys 2020, arXiv:1910.02653: the frontier-advancing form, whose stage t ends with the first run of
operation t and runs, before it, some of the operations 0..t-1 again, in their order. Binaries:

    R[t,k]       stage t runs operation k <= t; R[t,t] = 1
    S[t,i]       tensor i is in memory as stage t starts
    FREE[t,i,k]  tensor i is freed after operation k in stage t, k its producer or a reader
    U[t,k]       memory while stage t is at operation k, its output beside its inputs

    minimise  Σ c_k R[t,k]
    R[t,k] <= R[t,prod i] + S[t,i]                 i an input of k
    S[t+1,i] <= S[t,i] + R[t,prod i]
    FREE[t,i,k] <= R[t,k], 1 - S[t+1,i], 1 - R[t,j]     j a reader of i after k
    U[t,k] = U[t,k-1] - Σ_i s_i FREE[t,i,k-1] + Σ_(i made by k) s_i R[t,k]
    U[t,k] + ws_k R[t,k] <= capacity

FREE only lowers memory, so the half of its definition that bounds it from above is enough; it is
written term by term, which is tighter than the paper's sum over the terms.

Against planner's semantics. The paper has one value a node; here an operation may make several
tensors, or none. Left out, and refused: in-place writing, swaps. Same: an output with no reader is
freed at once; outputs of the graph stay; inputs and outputs of the running operation are held
together. Not in the model: running an operation twice within one stage. A tensor that a stage holds
without reading it, and does not pass on, is not freed in it: no optimum does that.
"""

from __future__ import annotations

import datetime
import math
import time
from typing import Literal

from ortools.math_opt.python import mathopt
from ortools.sat import sat_parameters_pb2

from planner.plan.problem import Action, ActionKind, Problem
from reports.solver.baselines.outcome import Outcome, outcome

Solver = Literal["highs", "scip", "cp-sat"]

_SOLVERS = {
    "highs": mathopt.SolverType.HIGHS,
    "scip": mathopt.SolverType.GSCIP,
    "cp-sat": mathopt.SolverType.CP_SAT,
}
_UNITS = 1000.0


def solve_checkmate(
    problem: Problem,
    *,
    time_limit_s: float,
    solver: Solver = "highs",
    workers: int = 2,
    seed: int = 0,
) -> Outcome:
    """Solve to a relative gap of 1e-6, or as far as the time limit allows.

    Args:
        workers: threads, where MathOpt can pass that on (HiGHS takes one).

    Raises:
        ValueError: the problem writes in place.
    """
    if any(op.inplace for op in problem.ops):
        raise ValueError("the model knows nothing in place")
    start = time.monotonic()
    over_bytes = 0
    presolve = mathopt.Emphasis.MEDIUM
    while True:
        model = _Model(problem, whole=solver == "cp-sat", less_bytes=over_bytes)
        left = time_limit_s - (time.monotonic() - start)
        result = mathopt.solve(
            model.model,
            _SOLVERS[solver],
            params=mathopt.SolveParameters(
                time_limit=datetime.timedelta(seconds=max(0.1, left)),
                relative_gap_tolerance=1e-6,
                presolve=presolve,
                random_seed=seed,
                threads=None if solver == "highs" else workers,
                cp_sat=sat_parameters_pb2.SatParameters(mip_max_bound=2.0**52),
            ),
        )
        reason = result.termination.reason
        bound_us = result.termination.objective_bounds.dual_bound * model.unit_us
        found = outcome(
            problem,
            model.actions(result) if result.has_primal_feasible_solution() else None,
            status=f"{solver}: {reason.name.lower()}",
            bound_us=max(problem.base_duration_us, bound_us) if math.isfinite(bound_us) else None,
            optimal=reason is mathopt.TerminationReason.OPTIMAL,
            seconds=time.monotonic() - start,
        )
        if reason is mathopt.TerminationReason.INFEASIBLE and presolve is not mathopt.Emphasis.OFF:
            # HiGHS's presolve (OR-tools 9.15) calls some programs infeasible that have a plan
            presolve = mathopt.Emphasis.OFF
            continue
        if found.fits or found.replay is None or left < 0:
            return found
        # a solver's tolerance is worth a few bytes: leave them out and solve again
        over_bytes += found.replay.peak_bytes - problem.capacity_bytes


class _Model:
    """The program; time scaled so that the base duration is 1000, and memory so that the capacity is.

    Args:
        whole: memory in the largest unit that all sizes are multiples of, as CP-SAT needs it.
        less_bytes: of the capacity.
    """

    def __init__(self, problem: Problem, *, whole: bool, less_bytes: int) -> None:
        self.problem = problem
        self.model = mathopt.Model(name=problem.name)
        self.count = len(problem.ops)
        self.whole = whole
        room = problem.capacity_bytes - problem.fixed_bytes - less_bytes
        workspace = [op.workspace_bytes for op in problem.ops]
        unit = abs(room) / _UNITS or 1.0
        if whole:
            unit = math.gcd(*(t.bytes for t in problem.tensors), *workspace) or 1
            room = room // unit * unit
        self.room = room / unit
        self.size = [t.bytes / unit for t in problem.tensors]
        self.workspace = [w / unit for w in workspace]
        self.unit_us = problem.base_duration_us / _UNITS or 1.0
        self.runs = [[self._run(t, k) for k in range(t + 1)] for t in range(self.count)]
        self.kept = [self._kept(t) for t in range(self.count)]
        for stage in range(self.count):
            self._dependencies(stage)
            self._memory(stage)
        self.model.minimize(
            mathopt.fast_sum(
                problem.ops[k].duration_us / self.unit_us * run
                for stage in self.runs
                for k, run in enumerate(stage)
            )
        )

    def _run(self, stage: int, op: int) -> mathopt.Variable:
        first = op == stage
        again = self.problem.allow_recompute and self.problem.ops[op].recomputable
        again = again and not any(
            self.problem.tensors[i].to_end for i in self.problem.ops[op].outputs
        )
        return self.model.add_integer_variable(lb=float(first), ub=float(first or again))

    def _kept(self, stage: int) -> dict[int, mathopt.Variable]:
        """Return whether each tensor made before the stage is in memory at its start."""
        return {
            i: self.model.add_integer_variable(lb=float(t.to_end), ub=1.0)
            for i, t in enumerate(self.problem.tensors)
            if t.producer < stage
        }

    def _dependencies(self, stage: int) -> None:
        model, runs, kept = self.model, self.runs[stage], self.kept[stage]
        for k in range(stage + 1):
            for i in self.problem.ops[k].inputs:
                held = runs[self.problem.tensors[i].producer]
                model.add_linear_constraint(runs[k] <= (held + kept[i] if i in kept else held))
        if stage + 1 < self.count:
            for i, keep in self.kept[stage + 1].items():
                held = runs[self.problem.tensors[i].producer]
                model.add_linear_constraint(keep <= (held + kept[i] if i in kept else held))

    def _memory(self, stage: int) -> None:
        model, problem = self.model, self.problem
        runs = self.runs[stage]
        later = self.kept[stage + 1] if stage + 1 < self.count else {}
        held: mathopt.LinearBase = mathopt.fast_sum(
            self.size[i] * keep for i, keep in self.kept[stage].items()
        )
        for k in range(stage + 1):
            op = problem.ops[k]
            made = mathopt.fast_sum(self.size[i] * runs[k] for i in op.outputs)
            use = model.add_variable(lb=0.0, ub=self.room, is_integer=self.whole)
            model.add_linear_constraint(use == held + made)
            if op.workspace_bytes:
                model.add_linear_constraint(use + self.workspace[k] * runs[k] <= self.room)
            freed = [
                self.size[i] * self._free(stage, i, k, later)
                for i in (*op.inputs, *op.outputs)
                if not problem.tensors[i].to_end and self.size[i]
            ]
            held = use - mathopt.fast_sum(freed)

    def _free(
        self, stage: int, tensor: int, op: int, later: dict[int, mathopt.Variable]
    ) -> mathopt.Variable:
        model, runs = self.model, self.runs[stage]
        free = model.add_variable(lb=0.0, ub=1.0, is_integer=self.whole)
        model.add_linear_constraint(free <= runs[op])
        if tensor in later:
            model.add_linear_constraint(free + later[tensor] <= 1.0)
        for reader in self.problem.tensors[tensor].uses:
            if op < reader <= stage:
                model.add_linear_constraint(free + runs[reader] <= 1.0)
        return free

    def actions(self, result: mathopt.SolveResult) -> list[Action]:
        """Return the plan's actions, stage by stage in the base order."""
        values = result.variable_values()
        return [
            Action(kind=ActionKind.RUN, target=k)
            for stage in self.runs
            for k, run in enumerate(stage)
            if values[run] > 0.5
        ]
