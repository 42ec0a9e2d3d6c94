"""A linear program, built as flat lists and solved by OR-Tools' GLOP.

A MathOpt model that is built term by term creates an object for each term, which takes several times as
long as solving the model. Its interchange format (ortools/math_opt/model.proto) takes arrays. Answers
leave out zeros, and values that were not asked for.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from ortools.math_opt import model_pb2
from ortools.math_opt.python import mathopt

from planner import clock
from planner.processes.interrupt import interruptibly

Floats = npt.NDArray[np.float64]
Terms = Iterable[tuple[int, float]]
"""(variable, coefficient); a variable may occur more than once."""

_IMPOSSIBLE = (
    mathopt.TerminationReason.INFEASIBLE,
    mathopt.TerminationReason.INFEASIBLE_OR_UNBOUNDED,
)

_WANTED = mathopt.ModelSolveParameters(
    variable_values_filter=mathopt.VariableFilter(skip_zero_values=True),
    dual_values_filter=mathopt.LinearConstraintFilter(skip_zero_values=True),
    reduced_costs_filter=mathopt.VariableFilter(filtered_items=()),
)
"""The contents of an answer: values and duals other than zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The outcome of solving a program.

    Attributes:
        is_impossible: no solution satisfies all rows. is_optimal: proved optimal.
        objective: the solution's cost; NaN where there is no solution.
        values: the solution, by variable; None where there is no solution.
        duals: the dual values, by row.
    """

    is_impossible: bool
    is_optimal: bool
    objective: float = math.nan
    values: Floats | None = None
    duals: Floats = field(default_factory=lambda: np.zeros(0))


@dataclass(slots=True)
class LinearProgram:
    """A program that minimises the cost of its variables; variables and rows are numbered from 0."""

    high: list[float] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)
    row: list[int] = field(default_factory=list)
    column: list[int] = field(default_factory=list)
    coefficient: list[float] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)

    def variable(self, cost: float = 0.0, *, high: float = 1.0) -> int:
        """Add a variable between 0 and `high`, and return its number."""
        self.high.append(high)
        self.cost.append(cost)
        return len(self.cost) - 1

    def at_most(self, terms: Terms, upper: float) -> int:
        """Add the row Σ coefficient · variable <= upper, and return its number."""
        return self._row(terms, -math.inf, upper)

    def at_least(self, terms: Terms, lower: float) -> int:
        """Add the row Σ coefficient · variable >= lower, and return its number."""
        return self._row(terms, lower, math.inf)

    def _row(self, terms: Terms, lower: float, upper: float) -> int:
        merged: dict[int, float] = {}
        for variable, coefficient in terms:
            merged[variable] = merged.get(variable, 0.0) + coefficient
        number = len(self.upper)
        for variable in sorted(merged):
            if merged[variable]:
                self.row.append(number)
                self.column.append(variable)
                self.coefficient.append(merged[variable])
        self.lower.append(lower)
        self.upper.append(upper)
        return number

    def linear(self, *, time_limit_s: float) -> Answer:
        """Solve the linear program by GLOP's dual simplex."""
        params = mathopt.SolveParameters(lp_algorithm=mathopt.LPAlgorithm.DUAL_SIMPLEX)
        if clock.is_counted():
            params.iteration_limit = 1 + int(max(0.05, time_limit_s) / self._pivot_s)
        if (seconds := clock.machine_s(time_limit_s)) < math.inf:
            params.time_limit = _limit(seconds)
        return self._solved(params)

    @property
    def _pivot_s(self) -> float:
        return clock.PIVOT_S * (len(self.coefficient) + len(self.upper) + len(self.cost))

    def _solved(self, params: mathopt.SolveParameters) -> Answer:
        glop, proto = mathopt.SolverType.GLOP, self._proto()

        def solve() -> mathopt.SolveResult:
            model = mathopt.Model.from_model_proto(proto)
            return mathopt.solve(model, glop, params=params, model_params=_WANTED)

        found = interruptibly(solve)
        clock.spend(self._pivot_s * found.solve_stats.simplex_iterations)
        reason = found.termination.reason
        answer = Answer(
            is_impossible=reason in _IMPOSSIBLE,
            is_optimal=reason == mathopt.TerminationReason.OPTIMAL,
        )
        best = found.solutions[0] if found.solutions else None
        primal = None if best is None else best.primal_solution
        if best is None or primal is None:
            return answer
        if primal.feasibility_status != mathopt.SolutionStatus.FEASIBLE:
            return answer
        dual = best.dual_solution
        duals = {} if dual is None else dual.dual_values
        return replace(
            answer,
            objective=primal.objective_value,
            values=_dense({v.id: x for v, x in primal.variable_values.items()}, len(self.cost)),
            duals=_dense({r.id: x for r, x in duals.items()}, len(self.upper)),
        )

    def _proto(self) -> model_pb2.ModelProto:
        proto = model_pb2.ModelProto()
        count = len(self.cost)
        proto.variables.ids.extend(range(count))
        proto.variables.lower_bounds.extend([0.0] * count)
        proto.variables.upper_bounds.extend(self.high)
        proto.variables.integers.extend([False] * count)
        paid = [v for v in range(count) if self.cost[v]]
        proto.objective.linear_coefficients.ids.extend(paid)
        proto.objective.linear_coefficients.values.extend(self.cost[v] for v in paid)
        proto.linear_constraints.ids.extend(range(len(self.upper)))
        proto.linear_constraints.lower_bounds.extend(self.lower)
        proto.linear_constraints.upper_bounds.extend(self.upper)
        proto.linear_constraint_matrix.row_ids.extend(self.row)
        proto.linear_constraint_matrix.column_ids.extend(self.column)
        proto.linear_constraint_matrix.coefficients.extend(self.coefficient)
        return proto


def _limit(time_limit_s: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=max(0.05, time_limit_s))


def _dense(sparse: Mapping[int, float], size: int) -> Floats:
    values = np.zeros(size)
    values[np.fromiter(sparse, dtype=np.int64)] = np.fromiter(sparse.values(), dtype=np.float64)
    return values
