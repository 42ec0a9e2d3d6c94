"""The graph whose minimum cuts are plans: see `planner.bound.column_generation`."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from ortools.graph.python import max_flow

from planner import clock
from planner.bound.instants import held_at, needed_at
from planner.bound.lp import next_use, spread
from planner.plan.problem import Problem

Indices = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

UNITS = 1e12
"""Number of whole units in the base order's duration."""

_SOURCE, _SINK = 0, 1
_NEVER = 1 << 60
_MOST = 4e12
"""Bound above all durations together: a tensor with this price is as good as forbidden."""
_TILT = 1e-2


@dataclass(frozen=True, slots=True)
class Instant:
    """One planning instant: the tensors and operations with nodes, and the room for resident tensors.

    Attributes:
        out_rows, in_rows: releases and deadlines of copies, ascending (`planner.bound.lp.CopyTimes`);
            empty if copies are not planned.
    """

    p: int
    room_bytes: int
    after: frozenset[int]
    tensors: tuple[int, ...]
    reruns: tuple[int, ...]
    out_rows: tuple[int, ...] = ()
    in_rows: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Multipliers:
    """Prices that the minimum cut pays. `out`, `inward`: one array per instant, one price per row.

    Attributes:
        bytes_units: units for a byte resident at each instant.
        rerun: units for a unit of recompute after each instant; `first` for one anywhere.
    """

    bytes_units: Floats
    rerun: Floats
    first: float
    out: tuple[Floats, ...]
    inward: tuple[Floats, ...]

    def mixed(self, other: Multipliers, share: float) -> Multipliers:
        """Return a mixture with `share` of `other`."""

        def mix(a: Floats, b: Floats) -> Floats:
            return (1 - share) * a + share * b

        return Multipliers(
            bytes_units=mix(self.bytes_units, other.bytes_units),
            rerun=mix(self.rerun, other.rerun),
            first=(1 - share) * self.first + share * other.first,
            out=tuple(mix(a, b) for a, b in zip(self.out, other.out, strict=True)),
            inward=tuple(mix(a, b) for a, b in zip(self.inward, other.inward, strict=True)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A whole (not fractional) plan for the instants: a minimum cut, of value `value_units`.

    Attributes:
        first_units: recompute time, each operation once; `rerun_units`: after each instant.
        resident_bytes: at each instant. out_units, in_units: time of copies, by instant and row.
        reruns: per node, whether it is on the source's side. resident, swapped: per tensor and instant.
    """

    value_units: float
    first_units: float
    rerun_units: Floats
    resident_bytes: Floats
    out_units: tuple[Floats, ...]
    in_units: tuple[Floats, ...]
    reruns: Flags
    resident: Flags
    swapped: Flags


def instant_at(problem: Problem, p: int) -> Instant:
    """Return the instant at base operation p."""
    after, reruns, wanted = needed_at(problem, p)
    room = problem.capacity_bytes - held_at(problem, p)
    instant = Instant(p, room, frozenset(after), tuple(wanted), tuple(reruns))
    if not problem.allow_swap:
        return instant
    swappable = [t for t in wanted if problem.tensors[t].swappable]
    made = sorted(int(problem.tensors[t].producer) for t in swappable)
    read = sorted(u for t in swappable if (u := next_use(problem, t, p)) is not None)
    return replace(instant, out_rows=tuple(spread(made)), in_rows=tuple(spread(read)))


class Network:
    """Arcs of all instants, in base order, and their minimum cuts at given prices."""

    def __init__(self, problem: Problem, instants: Sequence[Instant]) -> None:
        self.problem, self.instants, self.copies = problem, instants, problem.allow_swap
        self.to_units = UNITS / max(1e-9, problem.base_duration_us)
        self.nodes = 2
        self.need: dict[tuple[int, int], int] = {}
        self.reruns: dict[tuple[int, int], int] = {}
        links: list[tuple[int, int]] = []  # never cut
        runs: list[tuple[int, int, int]] = []  # node, operation, instant
        waits: list[tuple[int, int, int, int]] = []  # need, producer, tensor, instant
        firsts: list[bool] = []
        latest_need: dict[int, int] = {}
        latest_run: dict[int, int] = {}
        for k, instant in enumerate(instants):
            for m in instant.reruns:
                node = self.reruns[m, k] = self._node()
                firsts.append(m not in latest_run)
                if m in latest_run:
                    links.append((node, latest_run[m]))
                latest_run[m] = node
                runs.append((node, m, k))
            for t in instant.tensors:
                node = _SOURCE
                if t not in instant.after:
                    node = self._node()
                    if latest_need.get(t, _SOURCE) != _SOURCE:
                        links.append((node, latest_need[t]))
                self.need[t, k] = latest_need[t] = node
                producer = self.reruns.get((problem.tensors[t].producer, k), _SINK)
                waits.append((node, producer, t, k))
            for m in instant.reruns:
                for t in problem.ops[m].inputs:
                    if self.need.get((t, k), _SOURCE) != _SOURCE:
                        links.append((self.reruns[m, k], self.need[t, k]))
        link = np.array(links, dtype=np.int32).reshape(-1, 2)
        run = np.array(runs, dtype=np.int32).reshape(-1, 3)
        wait = np.array(waits, dtype=np.int32).reshape(-1, 4)
        sinks = np.full(len(run), _SINK, dtype=np.int32)
        self.tail = np.concatenate([link[:, 0], run[:, 0], wait[:, 0]])
        self.head = np.concatenate([link[:, 1], sinks, wait[:, 1]])
        self.fixed = np.full(len(link), _NEVER, dtype=np.int64)
        self.run_from, self.wait_from = len(link), len(link) + len(run)
        self.run_cut, self.first = run[:, 2], np.array(firsts, dtype=np.bool_)
        duration = [problem.ops[m].duration_us for m in run[:, 1]]
        self.run_units = np.floor(np.array(duration) * self.to_units)
        self.tensor, self.wait_cut = wait[:, 2], wait[:, 3]
        self.size = np.array([problem.tensors[t].bytes for t in wait[:, 2]], dtype=np.float64)
        self.growth = np.ones(len(wait))
        if self.copies:
            self._price_copies()

    def _node(self) -> int:
        self.nodes += 1
        return self.nodes - 1

    def _price_copies(self) -> None:
        """Find the rows of each tensor's copies: the first `out_rank`, and those from `in_rank`."""
        problem = self.problem
        count = len(self.tensor)
        self.out_rank, self.in_rank = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.out_units, self.in_units = np.zeros(count), np.zeros(count)
        self.movable = np.zeros(count, np.bool_)
        for i, (t, k) in enumerate(zip(self.tensor.tolist(), self.wait_cut.tolist(), strict=True)):
            if not problem.tensors[t].swappable:
                continue
            instant = self.instants[k]
            self.movable[i] = True
            self.out_units[i] = problem.swap_out_us(t) * self.to_units
            self.in_units[i] = problem.swap_in_us(t) * self.to_units
            self.out_rank[i] = bisect_right(instant.out_rows, problem.tensors[t].producer)
            read = next_use(problem, t, instant.p)
            self.in_rank[i] = len(instant.in_rows)
            if read is not None:
                self.in_rank[i] = bisect_left(instant.in_rows, read)

    def tilted(self) -> Network:
        """Return the network with durations and copies that cost slightly more the later they come.

        No two layers then cost the same.
        """
        other = object.__new__(Network)
        other.__dict__.update(self.__dict__)
        ramp = 1.0 + _TILT * np.arange(len(self.run_units)) / max(1, len(self.run_units))
        other.run_units = np.floor(self.run_units * ramp)
        other.growth = 1.0 + _TILT * np.arange(len(self.size)) / max(1, len(self.size))
        return other

    @property
    def worst_units(self) -> float:
        """The time to run everything again, once, in units."""
        return float(self.run_units[self.first].sum())

    def no_prices(self) -> Multipliers:
        """Return prices at which only recomputes cost something."""
        count = len(self.instants)
        return Multipliers(
            bytes_units=np.zeros(count),
            rerun=np.zeros(count),
            first=1.0,
            out=tuple(np.zeros(len(instant.out_rows)) for instant in self.instants),
            inward=tuple(np.zeros(len(instant.in_rows)) for instant in self.instants),
        )

    def cheapest(self, prices: Multipliers) -> Column:
        """Return the minimum cut at given prices.

        Capacities are rounded down, so its value is no larger than the cheapest plan's.
        """
        run = self.run_units * (prices.first * self.first + prices.rerun[self.run_cut])
        held = prices.bytes_units[self.wait_cut] * self.size
        swaps = np.zeros(len(held), dtype=np.bool_)
        if self.copies:
            copied = self._copy_units(prices)
            swaps = copied < held
            held = np.minimum(copied, held)
        # distinguish dear tensors as long as no sum overflows
        most = max(_MOST, _NEVER / (2 * (len(run) + len(held) + 1)))
        capacity = np.floor(np.minimum(np.concatenate([run, held]), most)).astype(np.int64)
        clock.spend(clock.CUT_S * len(self.tail))
        flow = max_flow.SimpleMaxFlow()
        flow.add_arcs_with_capacity(  # its stubs take no arrays of any shape
            self.tail,  # pyright: ignore[reportArgumentType]
            self.head,  # pyright: ignore[reportArgumentType]
            np.concatenate([self.fixed, capacity]),  # pyright: ignore[reportArgumentType]
        )
        status = flow.solve(_SOURCE, _SINK)
        if status != flow.OPTIMAL:
            raise RuntimeError(f"minimum cut: {status}")
        side = np.zeros(self.nodes, dtype=np.bool_)
        side[flow.get_source_side_min_cut()] = True
        crosses = side[self.tail] & ~side[self.head]
        return self._column(
            float(flow.optimal_flow()),
            side,
            runs=crosses[self.run_from : self.wait_from],
            waits=crosses[self.wait_from :],
            swaps=swaps,
        )

    def _copy_units(self, prices: Multipliers) -> Floats:
        """Return the units to have each tensor on the host at its instant."""
        out = np.zeros(len(self.size))
        inward = np.zeros(len(self.size))
        for k in range(len(self.instants)):
            here = self.wait_cut == k
            sums = np.concatenate([[0.0], np.cumsum(prices.out[k])])
            out[here] = sums[self.out_rank[here]]
            left = np.concatenate([np.cumsum(prices.inward[k][::-1])[::-1], [0.0]])
            inward[here] = left[self.in_rank[here]]
        units = self.growth * (self.out_units * out + self.in_units * inward)
        return np.where(self.movable, units, np.inf)

    def _column(
        self, value: float, side: Flags, *, runs: Flags, waits: Flags, swaps: Flags
    ) -> Column:
        count = len(self.instants)
        swapped = waits & swaps
        resident = waits & ~swaps
        out: list[Floats] = []
        inward: list[Floats] = []
        for k, instant in enumerate(self.instants if self.copies else ()):
            here = swapped & (self.wait_cut == k)
            last = _sums(self.out_rank[here], self.out_units[here], len(instant.out_rows) + 1)
            out.append(np.cumsum(last[::-1])[::-1][1:])
            first = _sums(self.in_rank[here], self.in_units[here], len(instant.in_rows) + 1)
            inward.append(np.cumsum(first)[:-1])
        return Column(
            value_units=value,
            first_units=float(self.run_units[runs & self.first].sum()),
            rerun_units=_sums(self.run_cut[runs], self.run_units[runs], count),
            resident_bytes=_sums(self.wait_cut[resident], self.size[resident], count),
            out_units=tuple(out),
            in_units=tuple(inward),
            reruns=side,
            resident=resident,
            swapped=swapped,
        )


def _sums(index: Indices | Longs, values: Floats, count: int) -> Floats:
    """Sum the values at each index below `count`."""
    sums = np.zeros(count)
    np.add.at(sums, index, values)
    return sums
