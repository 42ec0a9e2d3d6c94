"""The devices that hold a model: one search per device, lever and size, without needless ones.

A model that fits as it is needs no search, and a model that fits with fewer levers fits with more.
Bisection finds the largest size that fits, on the assumption that smaller sizes fit, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from planner import clock
from planner.cost.hardware import Hardware
from planner.cost.model import durations_of_changed, durations_us
from planner.formulate import NO_LIMIT
from planner.pipeline.answer.budgets.frontier import FrontierWay, merged, way_of
from planner.pipeline.answer.policy import ANSWERING
from planner.pipeline.levers.host.hosting import ways_of
from planner.pipeline.prepare.prepared import Prepared, Progress, prepare
from planner.pipeline.prepare.settings import settings_of
from planner.pipeline.solve.orders import (
    BaseOrder,
    base_orders,
    least_found_peak,
    least_possible_peak,
)
from planner.plan.problem import Problem
from planner.portfolio.frontier import Raced
from planner.portfolio.table import POLICY
from planner.report.document.fit import HOWS, How, LeastPeaks, WayRow
from planner.request import Request
from planner.results import Frontier, LeastPeak
from planner.simulate.simulate import candidate_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device, and the part of its memory that a step may use."""

    hardware: Hardware
    name: str
    budget_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The result for one device, lever and size: the plan's figures, or None if none fits."""

    peak_bytes: int | None
    time_us: float | None
    base_us: float
    is_impossible: bool = False

    @property
    def least_us(self) -> float:
        """The plan's time; infinite if none fits."""
        return float("inf") if self.time_us is None else self.time_us


@dataclass(slots=True)
class Finder:
    """A search for the devices, levers and sizes that fit, with a cache of its results.

    Attributes:
        request: with the dims that have one size.
        dim: the dim with several sizes, or "".
        searches: number of searches that share the time limit.
    """

    request: Request
    devices: Sequence[Device]
    dim: str
    searches: int
    progress: Progress
    began: float = field(default_factory=clock.now)
    _prepared: dict[int, Prepared] = field(default_factory=dict)
    _ways: dict[tuple[int, str, How], tuple[Prepared, ...]] = field(default_factory=dict)
    _fed: dict[tuple[int, str], float] = field(default_factory=dict)
    _orders: dict[tuple[int, tuple[str, ...]], tuple[BaseOrder, ...]] = field(default_factory=dict)
    _found: dict[tuple[int, str, How], Found] = field(default_factory=dict)
    _raced: dict[tuple[int, str, How, tuple[str, ...]], dict[int, Raced | None]] = field(
        default_factory=dict
    )

    def prepared(self, size: int) -> Prepared:
        """Prepare the model at one size of the dim, with operation times of the first device."""
        if size not in self._prepared:
            dims = dict(self.request.dims) | ({self.dim: size} if self.dim else {})
            where = f" at {self.dim} = {size}" if self.dim else ""

            def said(stage: str) -> None:
                self.progress(stage + where)

            request = replace(self.request, dims=dims)
            self._prepared[size] = prepare(request, progress=said, to_rewrite=False)
        return self._prepared[size]

    def hows(self, device: Device, size: int) -> tuple[How, ...]:
        """Return the levers available on a device.

        Copies are left out if ONNX Runtime here has none, or if host and device share one memory.
        """
        if device.hardware.is_host or self.prepared(size).why_no_swaps is not None:
            return tuple(how for how in HOWS if not how.startswith("copies"))
        return HOWS

    def found(self, device: Device, how: How, size: int) -> Found:
        """Tell whether the model fits a device at one size with some levers, and its time there."""
        key = (size, device.name, how)
        if key not in self._found:
            self._found[key] = self._find(device, how, size)
        return self._found[key]

    def better(self, device: Device, how: How, size: int) -> Found:
        """Search longer at a size for which a short search found a plan; return the better result."""
        known = self.found(device, how, size)
        as_quick_us = known.base_us * (1 + ANSWERING.same)
        if not self.dim or known.time_us is None or known.time_us <= as_quick_us:
            return known
        limit_s = ANSWERING.last_share * self.request.limits.time_limit_s
        share_s = limit_s / (len(self.devices) * (len(HOWS) - 1))
        again = self._find(device, how, size, share_s=share_s)
        if again.least_us < known.time_us:
            self._found[size, device.name, how] = known = again
        return known

    def least_peaks(self, size: int) -> LeastPeaks:
        """Search for the least peak at one size: with inputs and outputs on the device, and on the host.

        It is one answer for all devices, searched with the first device that has memory of its own.
        """
        apart = [device for device in self.devices if not device.hardware.is_host]
        device, how = (apart[0], "copies") if apart else (self.devices[0], "recompute")
        here, there = self.prepared(size), self._ways_of(device, how, size)[-1]
        settings = settings_of(there, budget_bytes=NO_LIMIT)
        found: list[LeastPeak] = []
        for way in (here, *([there] if there.resident else [])):
            self.progress("searching for the least budget")
            orders = self._orders_of(way, size)
            limit_s = min(ANSWERING.least_peak_s, 0.1 * self.request.limits.time_limit_s)
            least = least_found_peak(way, settings, orders, time_limit_s=limit_s)
            least = min(least, way.baseline.peak_bytes)
            found.append(LeastPeak(peak_bytes=least, bound_bytes=least_possible_peak(way)))
        on_host = found[1] if len(found) > 1 else None
        return LeastPeaks(size if self.dim else None, found[0], on_host)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes searched, ascending."""
        return tuple(sorted({size for size, _, _ in self._found}))

    def assumptions(self, size: int) -> tuple[str, ...]:
        """Collect the assumptions about the model and each device, without repeats."""
        found: dict[str, None] = {}
        for device in self.devices:
            graph = costed_for(self.prepared(size), device.hardware).graph
            found |= dict.fromkeys(graph.assumptions)
        return tuple(found)

    # -- one search --------------------------------------------------------------------------

    def _find(self, device: Device, how: How, size: int, *, share_s: float | None = None) -> Found:
        """Solve for one device at one size, unless a simpler way is as fast as the model itself.

        Args:
            share_s: seconds to search; None for an equal share of what is left.
        """
        prepared = costed_for(self.prepared(size), device.hardware)
        # copies of the caller's inputs are made in any case, and are in the step of each way
        fed_us = self._fed_us(device, size)
        base_us = prepared.baseline.time_us + fed_us
        peak_bytes = prepared.baseline.peak_bytes
        if peak_bytes <= device.budget_bytes:
            return Found(peak_bytes=peak_bytes, time_us=base_us, base_us=base_us)
        if how == "as it is":
            return Found(peak_bytes=None, time_us=None, base_us=base_us, is_impossible=True)
        known = self.found(device, HOWS[HOWS.index(how) - 1], size)  # with fewer levers
        if known.least_us <= base_us * (1 + ANSWERING.same):
            return known
        where = f", {self.dim} = {size}" if self.dim else ""
        self.progress(f"solving for {device.name}{where}: {how}")
        frontier = self._solved(device, how, size, self._share_s() if share_s is None else share_s)
        point = next(p for p in frontier.points if p.capacity_bytes == device.budget_bytes)
        if point.plan is None:
            if known.time_us is not None:
                return known
            return replace(known, is_impossible=point.is_impossible)
        time_us = point.plan.time_us + (fed_us if how == "recompute" else 0.0)
        if known.least_us <= time_us:
            return known
        return Found(peak_bytes=point.plan.peak_bytes, time_us=time_us, base_us=base_us)

    def _share_s(self) -> float:
        """Return the seconds for one of the bisection's searches."""
        limit_s = self.request.limits.time_limit_s
        if clock.now() - self.began > limit_s:
            return 0.0
        return limit_s * ((1 - ANSWERING.last_share) if self.dim else 1.0) / self.searches

    def _solved(self, device: Device, how: How, size: int, share_s: float) -> Frontier:
        """Return the quickest plan that fits, over all ways to place inputs, parameters and state.

        Each search starts from the result of an earlier one. Plans of smaller devices are plans here.
        """
        solved: list[Frontier] = []
        for prepared in (ways := self._ways_of(device, how, size)):
            settings = settings_of(prepared, budget_bytes=device.budget_bytes)
            way = way_of(prepared, settings, orders=self._orders_of(prepared, size))
            search = replace(way.search, found=self._known(device, how, size, way))
            search.at(
                device.budget_bytes, time_limit_s=max(ANSWERING.device_s, share_s / len(ways))
            )
            solved.append(replace(way, search=search).frontier())
        return merged(solved)

    def _known(
        self, device: Device, how: How, size: int, way: FrontierWay
    ) -> dict[int, Raced | None]:
        """Return the results by budget: the device's own, and others' plans with its times."""
        resident = way.prepared.resident
        own = self._raced.setdefault((size, device.name, how, resident), {})
        for (of_size, _, of_how, of_resident), found in list(self._raced.items()):
            if (of_size, of_how, of_resident) != (size, how, resident) or found is own:
                continue
            for budget, raced in found.items():
                if budget <= device.budget_bytes and own.get(budget) is None and raced is not None:
                    own[budget] = _replayed(raced, way.search.problems[raced.index])
        return own

    def _orders_of(self, way: Prepared, size: int) -> tuple[BaseOrder, ...]:
        """Return the base orders; they depend on bytes alone and are the same for every device."""
        key = (size, way.resident)
        if key not in self._orders:
            numbers = POLICY.frontier
            share_s = numbers.orders_share * self.request.limits.time_limit_s
            self._orders[key] = base_orders(way, time_limit_s=min(numbers.max_orders_s, share_s))
        return self._orders[key]

    def _ways_of(self, device: Device, how: How, size: int) -> tuple[Prepared, ...]:
        key = (size, device.name, how)
        if key not in self._ways:
            prepared = costed_for(self.prepared(size), device.hardware)
            overlaps = how == "copies overlapped"
            levers = replace(
                prepared.request.levers,
                swap="none" if how == "recompute" else "auto",
                copies="overlapped" if overlaps else "serial",
                resident="device" if how == "recompute" else prepared.request.levers.resident,
            )
            prepared = replace(prepared, request=replace(prepared.request, levers=levers))
            settings = settings_of(prepared, budget_bytes=device.budget_bytes)
            while len(self._ways) >= ANSWERING.kept_ways:
                del self._ways[next(iter(self._ways))]
            self._ways[key] = ways_of(prepared, settings)
        return self._ways[key]

    def _fed_us(self, device: Device, size: int) -> float:
        """Return the microseconds of a session's own copies of the caller's inputs and results."""
        if device.hardware.is_host or self.prepared(size).why_no_swaps is not None:
            return 0.0
        key = (size, device.name)
        if key not in self._fed:
            self._fed[key] = self._ways_of(device, "copies", size)[0].baseline.fed_us
        return self._fed[key]


def _replayed(raced: Raced, problem: Problem) -> Raced | None:
    """Return a plan with another device's times, without proofs; None without a plan."""
    found = raced.solved.candidate
    if found is None:
        return None
    again = candidate_of(problem, found.actions)
    solved = replace(
        raced.solved, candidate=again, least=again, bound_us=problem.base_duration_us, engines=()
    )
    return Raced(index=raced.index, solved=solved, bound_us=0.0)


def searches_of(devices: int, has_sizes: bool) -> int:
    """Return the expected number of searches."""
    return devices * (len(HOWS) - 1) * (ANSWERING.runs_of_sizes if has_sizes else 1)


def fits_of(finder: Finder, device: Device, sizes: Sequence[int]) -> tuple[WayRow, ...]:
    """Return a device's rows: for each lever the largest size that fits.

    Args:
        sizes: ascending; one size for a model with a single size; empty to double from 1 on.
    """
    rows: list[WayRow] = []
    known: int | None = None
    listed = list(sizes)
    for how in finder.hows(device, listed[0] if listed else 1):
        if not sizes:
            listed = _doubled(finder, device, how, listed)
        known, row = _largest(finder, device, how, listed, known)
        rows.append(row)
    return tuple(rows)


def _largest(
    finder: Finder, device: Device, how: How, sizes: Sequence[int], known: int | None
) -> tuple[int | None, WayRow]:
    """Find the largest of the sizes that fits; return it and its row.

    Args:
        known: a size that fits with fewer levers; None for none.
    """

    def fits(index: int) -> bool:
        return finder.found(device, how, sizes[index]).time_us is not None

    low, high = -1 if known is None else sizes.index(known), len(sizes)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    beyond = finder.found(device, how, sizes[high]) if high < len(sizes) else None
    if low < 0:
        as_it_is = finder.prepared(sizes[0]).baseline.peak_bytes if how == HOWS[0] else None
        least = replace(finder.found(device, how, sizes[0]), peak_bytes=as_it_is, time_us=None)
        return None, _row(how, None, least, sizes[high:], beyond, finder.dim)
    best = finder.better(device, how, sizes[low])
    return sizes[low], _row(how, sizes[low], best, sizes[high:], beyond, finder.dim)


def _row(
    how: How,
    size: int | None,
    found: Found,
    larger: Sequence[int],
    beyond: Found | None,
    dim: str,
) -> WayRow:
    """Build the row for the result at one size.

    `beyond` is the result at the first of the `larger` sizes.
    """
    slowdown = per_second = None
    if found.time_us is not None and found.base_us:
        slowdown = max(0.0, found.time_us / found.base_us - 1)
    if found.time_us:
        per_second = 1e6 * (size or 1) / found.time_us
    return WayRow(
        how=how,
        fits=size is not None,
        size=size if dim else None,
        peak_bytes=found.peak_bytes,
        base_time_us=found.base_us,
        time_us=found.time_us,
        slowdown=slowdown,
        per_second=per_second,
        next_size=larger[0] if beyond is not None and dim else None,
        next_is_impossible=beyond is not None and beyond.is_impossible,
        what_if=how == "copies overlapped",
    )


def _doubled(finder: Finder, device: Device, how: How, known: Sequence[int]) -> list[int]:
    """Return the powers of two up to the first that does not fit, and some sizes between the last two.

    Args:
        known: sizes searched with fewer levers.
    """
    size = 1
    while size < ANSWERING.largest_size and finder.found(device, how, size).time_us is not None:
        size *= 2
    last = size // 2
    between = (
        [last + last * part // ANSWERING.size_steps for part in range(1, ANSWERING.size_steps)]
        if size > 1
        else []
    )
    powers = [1 << k for k in range(size.bit_length())]
    return sorted({*known, *powers, *(n for n in between if last < n < size)})


def costed_for(prepared: Prepared, hardware: Hardware) -> Prepared:
    """Return the same model with another device's operation times, from its roofline."""
    if prepared.hardware == hardware:
        return prepared
    original = prepared.baseline.graph
    _, before = durations_us(original, prepared.hardware)
    original_us, assumed = durations_us(original, hardware)
    graph = prepared.graph
    kept = [text for text in graph.assumptions if text not in before]
    costs = replace(prepared.request.costs, hardware=hardware.name)
    return replace(
        prepared,
        request=replace(prepared.request, costs=costs),
        baseline=replace(prepared.baseline, duration_us=original_us),
        graph=replace(graph, assumptions=(*kept, *assumed)),
        hardware=hardware,
        duration_us=durations_of_changed(graph, original, original_us, hardware),
        cost_source=f"roofline of {hardware.name}",
        pin_us=0.0,
        cache=None,
        times_key="",
    )
