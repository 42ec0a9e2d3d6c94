"""The LP over instants by minimum cuts: an equally good bound in a hundredth of the time.

With prices instead of limits, the LP of `planner.bound.lp` becomes a minimum cut (a closure
problem; Picard, Management Science 22, 1976). For every planning instant p the graph has

    a node D[t,p] for a tensor:     needed after p, in whatever way        (the source: used after p)
    a node A[m,p] for an operation: runs again after p
    D[t,p] -> A[producer of t,p]    the price of t's bytes at p, or of its copies if they are cheaper:
                                    paid if t is needed and not made again
    A[m,p] -> D[t,p]                never cut: a recompute needs its inputs
    A[m,p] -> sink                  its duration, at the first instant p behind m
    A[m,p] -> A[m,q],
    D[t,p] -> D[t,q], q the instant before p: never cut: an operation that runs again after p runs
                                    again after q, and a tensor needed after p is needed after q

The largest value over all prices is that of the LP with rows for the last two lines (Lagrangian
duality; the LP over one closure problem has integral corners). It is found by column generation
(Dantzig and Wolfe, Operations Research 8, 1960): each minimum cut is a column, and a small LP over
the columns gives the next prices and, at the end, the fractional plan. If copies run beside the
operations, that LP also has the stalls and the rows of `planner.bound.lp.CopyTimes`. Capacities are
rounded down to whole units, so every value is a valid bound.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from ortools.math_opt.python import mathopt

from planner import clock
from planner.bound.lp import INFEASIBLE, LpSolution
from planner.bound.network import UNITS, Column, Instant, Multipliers, Network, instant_at
from planner.plan.problem import Problem
from planner.processes.interrupt import interruptibly

_CLOSE, _CLOSE_TILTED = (1e-6, 2e-4), (1e-9, 1e-9)
"""The prices are good enough within these shares of the base duration and of the value."""
_MAX_COLUMNS, _MAX_TILTED = 60, 20
_MAX_WITH_COPIES = 300
_COARSE = 1e-3
_DEARER, _DEAREST = 4.0, 2.0**24
"""Factor by which the stand-in for a plan that fits becomes dearer, at once and in total."""
_PULL = 0.3
"""Share of the best prices so far in the next ones, which damps their oscillation."""


class ColumnGeneration:
    """The LP over instants of a problem without copies, or with copies beside the operations.

    Instants are added one by one.
    """

    def __init__(self, problem: Problem) -> None:
        """Set the LP up without any instant.

        Raises:
            ValueError: copies add to the step, which is not part of this model.
        """
        if not self.covers(problem):
            raise ValueError("only planner.bound.lp models copies that add to the step")
        self.problem = problem
        self.instants: list[int] = []
        self._instants: list[Instant] = []

    @staticmethod
    def covers(problem: Problem) -> bool:
        """Tell whether this model covers all of the problem's options."""
        return problem.overlap or not problem.allow_swap

    def add(self, p: int) -> None:
        """Add the instant at base operation p."""
        if p not in self.instants:
            self.instants.append(p)
            self._instants.append(instant_at(self.problem, p))

    def solve(self, *, time_limit_s: float) -> LpSolution | None:
        """Solve; None if the time limit passed before a plan within the capacity was found."""
        deadline = clock.now() + time_limit_s
        instants = sorted(self._instants, key=lambda instant: instant.p)
        network = Network(self.problem, instants)
        keep_all = network.no_prices()
        only_bytes = replace(keep_all, first=0.0)
        for k, instant in enumerate(instants):
            one = np.zeros(len(instants))
            one[k] = 1.0
            least = network.cheapest(replace(only_bytes, bytes_units=one))
            if least.resident_bytes[k] > instant.room_bytes:
                return INFEASIBLE
        no_bytes = replace(only_bytes, bytes_units=np.ones(len(instants)))
        ends = [network.cheapest(keep_all), network.cheapest(no_bytes)]
        found = _descend(network, ends, deadline=deadline)
        if found is None:
            return INFEASIBLE
        mixture = found
        if found.spread_units > _COARSE * found.value_units:
            # layers that are all alike move together at one price: distinguish them for the plan
            tilted = network.tilted()
            mixture = _descend(
                tilted,
                [tilted.cheapest(prices) for prices in (keep_all, no_bytes, found.prices)],
                deadline=deadline,
                close=_CLOSE_TILTED,
                most_columns=_MAX_TILTED,
            )
            mixture = mixture or found
        if mixture.weights is None:
            return None
        return _solution(network, mixture, found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mixture:
    """The cheapest mixture of columns; `weights` is None if the columns do not fit together."""

    columns: list[Column]
    weights: list[float] | None
    prices: Multipliers
    bound_units: float
    value_units: float

    @property
    def spread_units(self) -> float:
        """The distance between the mixed columns."""
        mixed = [
            c.first_units + sum(float(x.sum()) for x in (*c.out_units, *c.in_units))
            for c, w in zip(self.columns, self.weights or (), strict=False)
            if w > 0
        ]
        return max(mixed, default=0.0) - min(mixed, default=0.0)


def _descend(
    network: Network,
    ends: Sequence[Column],
    *,
    deadline: float,
    close: tuple[float, float] = _CLOSE,
    most_columns: int | None = None,
) -> _Mixture | None:
    """Add columns until the prices are good; None if nothing fits."""
    if most_columns is None:
        most_columns = _MAX_WITH_COPIES if network.copies else _MAX_COLUMNS
    worst = float("inf") if network.copies else network.worst_units + 1
    arcs = float(len(network.tail))
    master = _Master(network)
    for column in ends:
        master.add(column)
    best, best_prices = 0.0, network.no_prices()
    most = 0.0
    for _ in range(most_columns):
        if best > worst:
            break
        try:
            prices, most = master.solve()
        except _NumericalTroubleError:
            break  # the results so far hold
        slack = max(close[0] * UNITS, close[1] * most, arcs)
        if clock.now() > deadline:
            break
        if most - best <= slack:
            if master.insist():
                continue
            break
        worth = master.paid(prices)
        queries = [prices]
        if master.rows > 1 and best > 0:
            queries.insert(0, prices.mixed(best_prices, _PULL))
        for query in queries:
            column = network.cheapest(query)
            value = column.value_units - master.paid(query)
            if value > best:
                best, best_prices = value, query
            if master.cost(column, prices) - worth < most - slack:
                break
        else:  # no plan is better at these prices
            if master.insist():
                continue
            break
        master.add(column)
    if best > worst:
        return None
    return _Mixture(
        columns=master.columns,
        weights=master.weights(),
        prices=best_prices,
        bound_units=best,
        value_units=most,
    )


class _NumericalTroubleError(Exception):
    """The LP over the columns cannot be solved."""


class _Master:
    """The LP over columns: the cheapest mixture of them that fits, and its dual prices.

    Time is in base durations, memory in shares of the largest room.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        instants = network.instants
        self._scale = 1.0 / max(1.0, *(abs(instant.room_bytes) for instant in instants))
        self._model = model = mathopt.Model(name="columns")
        self._memory = [
            model.add_linear_constraint(ub=instant.room_bytes * self._scale) for instant in instants
        ]
        self._one = model.add_linear_constraint(lb=1.0, ub=1.0)
        model.objective.is_maximize = False
        # a stand-in while the columns cannot fit together; dearer than any plan
        self._beyond = model.add_variable(lb=0.0)
        self._one.set_coefficient(self._beyond, 1.0)
        self._dear = 2.0 * network.worst_units / UNITS + 1.0 + (1e3 if network.copies else 0.0)
        self._dearest = _DEAREST * self._dear
        model.objective.set_linear_coefficient(self._beyond, self._dear)
        self._rerun: list[mathopt.LinearConstraint] = []
        self._total: mathopt.LinearConstraint | None = None
        self._out: list[list[mathopt.LinearConstraint]] = [[] for _ in instants]
        self._in: list[list[mathopt.LinearConstraint]] = [[] for _ in instants]
        if network.copies:
            self._add_copies()
        self.columns: list[Column] = []
        self._weights: list[mathopt.Variable] = []
        self._solver = interruptibly(
            lambda: mathopt.IncrementalSolver(model, mathopt.SolverType.GLOP)
        )
        self._result: mathopt.SolveResult | None = None

    def insist(self) -> bool:
        """Make the stand-in dearer once no column is worth its price; return False if that is impossible.

        It takes no memory, and a share of it as small as the share of excess bytes makes the rest
        fit: if few bytes are above the capacity, it has to cost many times any plan.
        """
        if self.weights() is not None or self._dear >= self._dearest:
            return False
        self._dear *= _DEARER
        self._model.objective.set_linear_coefficient(self._beyond, self._dear)
        return True

    @property
    def rows(self) -> int:
        """The number of rows with a price."""
        return len(self._memory) + sum(len(rows) for rows in (*self._out, *self._in))

    def _add_copies(self) -> None:
        """Add stalls and recomputes before each instant, and the rows of `CopyTimes`."""
        model, network = self._model, self.network
        recompute, stall = model.add_variable(lb=0.0), model.add_variable(lb=0.0)
        for whole in (recompute, stall):
            model.objective.set_linear_coefficient(whole, 1.0)
        self._total = model.add_linear_constraint(-recompute <= 0.0)
        points = [instant.p for instant in network.instants]
        before = [(model.add_variable(lb=0.0), model.add_variable(lb=0.0)) for _ in points]
        ends = [*before, (stall, recompute)]
        for earlier, later in itertools.pairwise(ends):
            model.add_linear_constraint(earlier[0] <= later[0])
            model.add_linear_constraint(earlier[1] <= later[1])
        duration = [op.duration_us for op in network.problem.ops]
        starts = np.concatenate([[0.0], np.cumsum(duration)]) * network.to_units / UNITS
        for k, instant in enumerate(network.instants):
            now = before[k][0] + before[k][1]
            self._rerun.append(model.add_linear_constraint(before[k][1] <= recompute))
            for r in instant.out_rows:
                at = bisect_right(points, r) - 1
                since = before[at][0] + before[at][1] if at >= 0 else 0.0
                time_left = float(starts[instant.p] - starts[r + 1])
                self._out[k].append(model.add_linear_constraint(since - now <= time_left))
            for d in instant.in_rows:
                later = ends[bisect_left(points, d)]
                time_left = float(starts[d] - starts[instant.p])
                row = model.add_linear_constraint(now - later[0] - later[1] <= time_left)
                self._in[k].append(row)

    def add(self, column: Column) -> None:
        """Add a column."""
        weight = self._model.add_variable(lb=0.0)
        self.columns.append(column)
        self._weights.append(weight)
        self._one.set_coefficient(weight, 1.0)
        for row, held in zip(self._memory, column.resident_bytes, strict=True):
            row.set_coefficient(weight, float(held) * self._scale)
        if self._total is None:
            self._model.objective.set_linear_coefficient(weight, column.first_units / UNITS)
            return
        self._total.set_coefficient(weight, column.first_units / UNITS)
        for row, units in zip(self._rerun, column.rerun_units, strict=True):
            row.set_coefficient(weight, float(units) / UNITS)
        for rows, sums in ((self._out, column.out_units), (self._in, column.in_units)):
            for lines, here in zip(rows, sums, strict=True):
                for row, units in zip(lines, here, strict=True):
                    row.set_coefficient(weight, float(units) / UNITS)

    def solve(self) -> tuple[Multipliers, float]:
        """Return the dual prices, and the units added by the best mixture.

        Raises:
            _NumericalTroubleError: GLOP gave up, twice.
        """
        self._result = self._optimum()
        duals = self._result.dual_values()

        def worth(rows: Sequence[mathopt.LinearConstraint]) -> np.ndarray:
            return np.array([max(0.0, -duals[row]) for row in rows])

        prices = Multipliers(
            bytes_units=worth(self._memory) * self._scale * UNITS,
            rerun=worth(self._rerun) if self._rerun else np.zeros(len(self._memory)),
            first=1.0 if self._total is None else float(worth([self._total])[0]),
            out=tuple(worth(rows) for rows in self._out),
            inward=tuple(worth(rows) for rows in self._in),
        )
        return prices, self._result.objective_value() * UNITS

    def _optimum(self) -> mathopt.SolveResult:
        """Return the optimum, from the last basis or, if that fails, from scratch."""
        clock.spend(clock.COLUMN_S * len(self.columns))
        for solve in (self._solver.solve, self._from_nothing):
            try:
                result = interruptibly(solve)
            except (RuntimeError, AttributeError):  # "ABNORMAL"; MathOpt fails to say so
                continue
            if result.termination.reason is mathopt.TerminationReason.OPTIMAL:
                return result
        raise _NumericalTroubleError

    def _from_nothing(self) -> mathopt.SolveResult:
        params = mathopt.SolveParameters(lp_algorithm=mathopt.LPAlgorithm.DUAL_SIMPLEX)
        return mathopt.solve(self._model, mathopt.SolverType.GLOP, params=params)

    def paid(self, prices: Multipliers) -> float:
        """Return the worth of the limits at some prices, in units."""
        total = sum(
            float(price) * instant.room_bytes
            for price, instant in zip(prices.bytes_units, self.network.instants, strict=True)
        )
        for rows, worth in ((self._out, prices.out), (self._in, prices.inward)):
            for lines, here in zip(rows, worth, strict=True):
                for row, price in zip(lines, here, strict=True):
                    total += float(price) * row.upper_bound * UNITS
        return total

    def cost(self, column: Column, prices: Multipliers) -> float:
        """Return the cost of a column at some prices."""
        cost = prices.first * column.first_units
        cost += float(prices.rerun @ column.rerun_units)
        cost += float(prices.bytes_units @ column.resident_bytes)
        for worth, sums in ((prices.out, column.out_units), (prices.inward, column.in_units)):
            if sums:
                cost += sum(float(a @ b) for a, b in zip(worth, sums, strict=True))
        return cost

    def weights(self) -> list[float] | None:
        """Return the weights of the best mixture; None if the columns do not fit together."""
        if self._result is None:
            return None
        values = self._result.variable_values()
        if values[self._beyond] > 1e-9:
            return None
        return [values.get(weight, 0.0) for weight in self._weights]


def _solution(network: Network, mixture: _Mixture, proved: _Mixture) -> LpSolution:
    """Return the mixture by tensor and operation, with the bound and the prices of `proved`."""
    reruns = np.zeros(network.nodes)
    resident, swapped = np.zeros(len(network.tensor)), np.zeros(len(network.tensor))
    for column, weight in zip(mixture.columns, mixture.weights or (), strict=True):
        if weight > 0:
            reruns += weight * column.reruns
            resident += weight * column.resident
            swapped += weight * column.swapped
    points = [instant.p for instant in network.instants]
    where = [(t, points[k]) for t, k in network.need]
    return LpSolution(
        feasible=True,
        extra_us=mixture.value_units / network.to_units,
        bound_us=proved.bound_units / network.to_units,
        resident=dict(zip(where, resident.tolist(), strict=True)),
        swapped=dict(zip(where, swapped.tolist(), strict=True)) if network.copies else {},
        rerun={(m, points[k]): float(reruns[node]) for (m, k), node in network.reruns.items()},
        price_us=dict(
            zip(points, (proved.prices.bytes_units / network.to_units).tolist(), strict=True)
        ),
    )
