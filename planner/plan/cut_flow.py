"""The cut LP without copies, by minimum cuts: the same bound in a hundredth of the time.

With a price for memory instead of a limit, the LP of `planner.plan.cuts` falls apart into a minimum
cut (a closure problem; Picard, Management Science 22, 1976). For every planning cut p the graph has

    a node D[t,p] for a tensor:     needed after p, in whatever way        (the source: used after p)
    a node A[m,p] for an operation: runs again after p
    D[t,p] -> A[producer of t,p]    price of p times bytes: paid where t is needed and not made again
    A[m,p] -> D[t,p]                never cut: what runs again needs its inputs
    A[m,p] -> sink                  its duration, at the first cut p behind m
    A[m,p] -> A[m,q], D[t,p] -> D[t,q], q the cut before p: never cut: what runs again after p runs
                                    again after q, and what is needed after p is needed after q

The largest value over all prices is the LP's (Lagrangian duality; the LP over one closure problem has
whole corners). It is found by column generation (Dantzig and Wolfe, Operations Research 8, 1960): each
minimum cut is a column, and a small LP over the columns gives the next prices and, at the end, the
fractional plan. Capacities are rounded down to whole units, so every value is a valid bound.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from ortools.graph.python import max_flow
from ortools.math_opt.python import mathopt

from planner.plan.cuts import INFEASIBLE, CutSolution, held_at, live_at, reachable
from planner.plan.problem import Problem

Indices = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_SOURCE, _SINK = 0, 1
_UNITS = 1e12
"""Whole units that the base order's duration is divided into."""
_NEVER = 1 << 60
_MOST = 4e12
"""More than all durations together: a byte that dear is as good as forbidden."""
_CLOSE, _CLOSE_TILTED = (1e-6, 2e-4), (1e-9, 1e-9)
"""The prices are good enough within these shares of the base duration and of the value."""
_MOST_COLUMNS, _MOST_TILTED = 60, 20
_COARSE, _TILT = 1e-3, 1e-2
_PULL = 0.3
"""Share of the best prices so far in the next ones, which keeps them from jumping about."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """One planning cut: which tensors and operations have a node, and room for what is resident."""

    p: int
    room_bytes: int
    after: frozenset[int]
    tensors: tuple[int, ...]
    reruns: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Network:
    """Arcs of all cuts. `price_of` is the cut whose price an arc's bytes pay, -1 for none."""

    tail: Indices
    head: Indices
    units: Longs
    size: Floats
    price_of: Indices
    nodes: int
    cuts: int
    need: dict[tuple[int, int], int]
    again: dict[tuple[int, int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """A whole plan for the cuts: added time in units, bytes resident at each, the source's side.

    `cut_units` is the value of the minimum cut that it is.
    """

    cut_units: float
    units: float
    resident_bytes: Floats
    runs: npt.NDArray[np.bool_]
    side: npt.NDArray[np.bool_]


class CutFlow:
    """The cut LP of a problem without copies; cuts are added one by one."""

    def __init__(self, problem: Problem, guards: frozenset[int] = frozenset()) -> None:
        """`guards` are tensors that must stay resident: with any, the value is no bound.

        Raises:
            ValueError: the problem allows copies.
        """
        if problem.allow_swap:
            raise ValueError("copies are not part of this model; use planner.plan.cuts")
        self.problem = problem
        self.guards = guards
        self.cuts: list[int] = []
        self._cuts: list[_Cut] = []
        self._prices: dict[int, float] = {}

    def add(self, p: int) -> None:
        """Add the cut at base operation p."""
        if p in self.cuts:
            return
        problem = self.problem
        live, after = live_at(problem, p)
        reruns = reachable(problem, after)
        wanted = set(after)
        for m in reruns:
            wanted.update(problem.ops[m].inputs)
        wanted.intersection_update(live)
        guarded = wanted & self.guards
        room = problem.capacity_bytes - held_at(problem, p)
        room -= sum(problem.tensors[t].bytes for t in guarded)
        cut = _Cut(p, room, frozenset(after), tuple(sorted(wanted - guarded)), tuple(reruns))
        self.cuts.append(p)
        self._cuts.append(cut)

    def solve(self, *, time_limit_s: float) -> CutSolution | None:
        """Solve; None where the time limit passed before there was a plan within the capacity."""
        deadline = time.monotonic() + time_limit_s
        cuts = sorted(self._cuts, key=lambda cut: cut.p)
        network = _network(self.problem, cuts)
        room = np.array([cut.room_bytes for cut in cuts], dtype=np.float64)
        zero = np.zeros(len(cuts))
        for k in range(len(cuts)):
            only = zero.copy()
            only[k] = 1.0
            if _cheapest(network, only, free_runs=True).resident_bytes[k] > room[k]:
                return INFEASIBLE
        ends = [_cheapest(network, zero), _cheapest(network, zero + 1.0, free_runs=True)]
        prices = np.array([self._prices.get(cut.p, 0.0) for cut in cuts])
        found = _descend(network, room, ends, prices, deadline=deadline)
        if found is None:
            return INFEASIBLE
        self._prices = {cut.p: float(x) for cut, x in zip(cuts, found.prices, strict=True)}
        mixture = found
        if found.spread_units > _COARSE * found.value_units:
            # layers that are all alike go together at one price: tell them apart for the plan
            tilted = replace(network, units=_tilted(network))
            apart = _descend(
                tilted,
                room,
                ends,
                found.prices,
                deadline=deadline,
                close=_CLOSE_TILTED,
                most_columns=_MOST_TILTED,
            )
            mixture = apart or found
        if mixture.weights is None:
            return None
        return _solution(self.problem, cuts, network, mixture, found.bound_units)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mixture:
    """The cheapest mixture of columns, None where they do not fit together."""

    columns: list[_Column]
    weights: list[float] | None
    prices: Floats
    bound_units: float
    value_units: float

    @property
    def spread_units(self) -> float:
        """How far the columns that are mixed are apart."""
        mixed = [c.units for c, w in zip(self.columns, self.weights or (), strict=False) if w > 0]
        return max(mixed, default=0.0) - min(mixed, default=0.0)


def _descend(
    network: _Network,
    room: Floats,
    ends: Sequence[_Column],
    prices: Floats,
    *,
    deadline: float,
    close: tuple[float, float] = _CLOSE,
    most_columns: int = _MOST_COLUMNS,
) -> _Mixture | None:
    """Column after column, until the prices are good; None where nothing fits."""
    columns = [replace(c, units=float(network.units[c.runs].sum())) for c in ends]
    worst = float(network.units[network.head == _SINK].sum())
    master = _Master(room, worst, columns)
    best, best_prices = 0.0, prices
    queries = [prices] if prices.any() else []
    for _ in range(most_columns):
        prices, most = master.solve()
        slack = max(close[0] * _UNITS, close[1] * most, float(len(network.tail)))
        if most - best <= slack or time.monotonic() > deadline:
            break
        if len(room) > 1:
            queries.append(_PULL * best_prices + (1 - _PULL) * prices)
        for query in [*queries, prices]:
            column = _cheapest(network, query)
            value = column.cut_units - float(query @ room)
            if value > best:
                best, best_prices = value, query
            if column.units + float(prices @ (column.resident_bytes - room)) < most - slack:
                break
        else:
            break  # no plan is better at these prices
        if best > worst + 1:
            return None
        queries = []
        master.add(column)
    _, most = master.solve()
    return _Mixture(
        columns=master.columns,
        weights=master.weights(),
        prices=best_prices,
        bound_units=best,
        value_units=most,
    )


def _tilted(network: _Network) -> Longs:
    """Durations that grow a little along the network, so that no two layers cost the same."""
    is_run = network.head == _SINK
    growth = 1.0 + _TILT * np.arange(len(network.units)) / len(network.units)
    return np.where(is_run, (network.units * growth).astype(np.int64), network.units)


class _Master:
    """The LP over columns: the cheapest mixture of them that fits, and what a byte is worth."""

    def __init__(self, room_bytes: Floats, worst_units: float, columns: Sequence[_Column]) -> None:
        self._scale = 1.0 / max(1.0, float(np.abs(room_bytes).max()))
        self._model = mathopt.Model(name="columns")
        self._memory = [
            self._model.add_linear_constraint(ub=float(room) * self._scale) for room in room_bytes
        ]
        self._one = self._model.add_linear_constraint(lb=1.0, ub=1.0)
        # stands in while the columns cannot fit together; dearer than running everything again
        self._beyond = self._model.add_variable(lb=0.0)
        self._one.set_coefficient(self._beyond, 1.0)
        self._model.objective.is_maximize = False
        self._model.objective.set_linear_coefficient(self._beyond, 2.0 * worst_units / _UNITS + 1.0)
        self.columns: list[_Column] = []
        self._weights: list[mathopt.Variable] = []
        for column in columns:
            self.add(column)
        self._solver = mathopt.IncrementalSolver(self._model, mathopt.SolverType.GLOP)
        self._result: mathopt.SolveResult | None = None

    def add(self, column: _Column) -> None:
        """One more column."""
        weight = self._model.add_variable(lb=0.0)
        self.columns.append(column)
        self._weights.append(weight)
        self._model.objective.set_linear_coefficient(weight, column.units / _UNITS)
        self._one.set_coefficient(weight, 1.0)
        for row, held in zip(self._memory, column.resident_bytes, strict=True):
            row.set_coefficient(weight, float(held) * self._scale)

    def solve(self) -> tuple[Floats, float]:
        """(units that a byte is worth at each cut, units added by the best mixture)."""
        self._result = self._solver.solve()
        duals = self._result.dual_values(self._memory)
        prices = np.array([max(0.0, -dual) for dual in duals]) * self._scale * _UNITS
        return prices, self._result.objective_value() * _UNITS

    def weights(self) -> list[float] | None:
        """The best mixture; None where the columns do not fit together."""
        assert self._result is not None
        values = self._result.variable_values()
        if values[self._beyond] > 1e-9:
            return None
        return [values.get(weight, 0.0) for weight in self._weights]


def _network(problem: Problem, cuts: Sequence[_Cut]) -> _Network:
    """The arcs; `cuts` in base order."""
    to_units = _UNITS / max(1e-9, problem.base_duration_us)
    need: dict[tuple[int, int], int] = {}
    again: dict[tuple[int, int], int] = {}
    tail: list[int] = []
    head: list[int] = []
    units: list[int] = []
    size: list[int] = []
    price_of: list[int] = []

    def arc(start: int, end: int, cost: int, held: int = 0, cut: int = -1) -> None:
        tail.append(start)
        head.append(end)
        units.append(cost)
        size.append(held)
        price_of.append(cut)

    latest_need: dict[int, int] = {}
    latest_again: dict[int, int] = {}
    nodes = 2
    for k, cut in enumerate(cuts):
        for m in cut.reruns:
            again[m, k] = nodes
            earlier = latest_again.get(m)
            if earlier is None:
                arc(nodes, _SINK, int(problem.ops[m].duration_us * to_units))
            else:
                arc(nodes, earlier, _NEVER)
            latest_again[m] = nodes
            nodes += 1
        for t in cut.tensors:
            node = _SOURCE
            if t not in cut.after:
                node = nodes
                nodes += 1
                earlier = latest_need.get(t, _SOURCE)
                if earlier != _SOURCE:
                    arc(node, earlier, _NEVER)
            need[t, k] = latest_need[t] = node
            producer = again.get((problem.tensors[t].producer, k), _SINK)
            arc(node, producer, 0, problem.tensors[t].bytes, k)
        for m in cut.reruns:
            for t in problem.ops[m].inputs:
                node = need.get((t, k), _SOURCE)
                if node != _SOURCE:
                    arc(again[m, k], node, _NEVER)
    return _Network(
        tail=np.array(tail, dtype=np.int32),
        head=np.array(head, dtype=np.int32),
        units=np.array(units, dtype=np.int64),
        size=np.array(size, dtype=np.float64),
        price_of=np.array(price_of, dtype=np.int32),
        nodes=nodes,
        cuts=len(cuts),
        need=need,
        again=again,
    )


def _cheapest(network: _Network, prices: Floats, *, free_runs: bool = False) -> _Column:
    """The minimum cut at some prices, in units a byte; `free_runs` counts bytes alone."""
    paid = np.append(prices, 0.0)[network.price_of] * network.size
    capacity = np.floor(np.minimum(paid, _MOST)).astype(np.int64)
    runs = network.units
    if free_runs:
        runs = np.where(runs == _NEVER, _NEVER, 0)
    flow = max_flow.SimpleMaxFlow()
    flow.add_arcs_with_capacity(  # its stubs take no arrays of any shape
        network.tail,  # pyright: ignore[reportArgumentType]
        network.head,  # pyright: ignore[reportArgumentType]
        capacity + runs,  # pyright: ignore[reportArgumentType]
    )
    status = flow.solve(_SOURCE, _SINK)
    if status != flow.OPTIMAL:
        raise RuntimeError(f"minimum cut: {status}")
    side = np.zeros(network.nodes, dtype=np.bool_)
    side[flow.get_source_side_min_cut()] = True
    crosses = side[network.tail] & ~side[network.head]
    held = crosses & (network.price_of >= 0)
    resident = np.zeros(network.cuts)
    np.add.at(resident, network.price_of[held], network.size[held])
    return _Column(
        cut_units=float(flow.optimal_flow()),
        units=float(network.units[crosses].sum()),
        resident_bytes=resident,
        runs=crosses,
        side=side,
    )


def _solution(
    problem: Problem,
    cuts: Sequence[_Cut],
    network: _Network,
    mixture: _Mixture,
    bound_units: float,
) -> CutSolution:
    """The mixture, per tensor and operation."""
    share = np.zeros(network.nodes)
    held = np.zeros(len(network.tail))
    for column, weight in zip(mixture.columns, mixture.weights or (), strict=True):
        if weight > 0:
            share += weight * column.side
            held += weight * (column.side[network.tail] & ~column.side[network.head])
    paying = np.flatnonzero(network.price_of >= 0)
    resident = {
        (t, cuts[k].p): float(min(1.0, held[arc]))
        for (t, k), arc in zip(network.need, paying, strict=True)
    }
    to_us = problem.base_duration_us / _UNITS
    return CutSolution(
        feasible=True,
        extra_us=mixture.value_units * to_us,
        bound_us=bound_units * to_us,
        resident=resident,
        swapped={},
        rerun={(m, cuts[k].p): float(share[node]) for (m, k), node in network.again.items()},
    )
