"""Which inputs, initializers and outputs live on the host: chosen with the plan that they allow.

What a session copies in any case costs nothing more. Everything else costs a copy, or two where it is
needed on both sides of the peak; by the byte that it frees, each costs the same. So they are ranked by
how much of the time that is over the budget they would be away, and the first so many of the ranking
live on the host: how many, quick searches tell, in the order with the least peak.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from planner import clock
from planner.errors import UsageError
from planner.graph.liveness import timeline
from planner.graph.model import OpId, Role, Tensor
from planner.graph.schedule import with_folded
from planner.lower.residence import may_live_on_host
from planner.pipeline.levers.residence import feeds_are_copied, in_order, resided
from planner.pipeline.prepare.prepared import Prepared, Progress, silent
from planner.pipeline.prepare.settings import Settings
from planner.pipeline.solve.orders import BaseOrder, base_orders, least_possible_peak
from planner.pipeline.solve.quick import (
    WORTH,
    QuickSearch,
    between,
    found_there,
    least_bytes,
    quick_search,
)
from planner.pipeline.solve.working_ahead import may_work_ahead
from planner.processes.sharing import share_out
from planner.processes.workers import Beside

_SHARE, _MOST_S = 0.1, 8.0
"""Of the time limit, for all searches of this module, and their most seconds."""

_SEARCHES = 8
"""At most; no last one is made alone where two are as quick."""

_LEFT = 0.02
"""Share of the room on the device that small tensors may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """What may live on the host.

    Attributes:
        free: names whose copies a session makes in any case.
        ranked: the others, what promises most first.
    """

    free: tuple[str, ...]
    ranked: tuple[str, ...]

    def first(self, count: int) -> frozenset[str]:
        """What is free, and the first so many of the others."""
        return frozenset((*self.free, *self.ranked[:count]))


@dataclass(frozen=True, slots=True)
class Plain:
    """A plan with everything on the device: its predicted time, and the base order that it is in."""

    time_us: float
    order: Sequence[OpId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A model with what was chosen on the host, and base orders of it where they are known."""

    prepared: Prepared
    orders: tuple[BaseOrder, ...] = ()


def is_device_first(prepared: Prepared, settings: Settings) -> bool:
    """Whether a plan with everything on the device is to be looked for first: there may be one, and to
    have anything on the host costs copies."""
    if prepared.request.levers.residence != "auto" or prepared.why_no_swaps is not None:
        return False
    room = settings.budget_bytes - settings.reserve_bytes
    found = candidates_of(prepared, settings)
    return bool(found.ranked) and not found.free and least_possible_peak(prepared) <= room


def choose_residence(
    prepared: Prepared,
    settings: Settings,
    progress: Progress,
    plain: Plain | None = None,
    helper: Beside | None = None,
) -> Chosen:
    """The model with what pays on the host, as its request asks.

    Args:
        plain: the plan with everything on the device, which another has to beat; None where there is
            none.
        helper: where every second search is made, beside another here; None: one follows the other.

    Raises:
        UsageError: the host is asked for, and ONNX Runtime here has no copies.
    """
    lever, no_copies = prepared.request.levers.residence, prepared.why_no_swaps
    if lever == "host" and no_copies is not None:
        raise UsageError(f"--resident host: {no_copies.sentence}; use --resident device")
    if lever == "device" or no_copies is not None:
        return Chosen(prepared=prepared)
    found = candidates_of(prepared, settings)
    if lever == "host" or not (found.free or found.ranked):
        return Chosen(prepared=resided(prepared, found.first(len(found.ranked))))
    if not may_work_ahead(settings.workers):
        helper = None
    search = _Search(prepared=prepared, settings=settings, candidates=found, helper=helper)
    return search.choose(progress, plain)


def at_no_cost(prepared: Prepared, settings: Settings) -> Prepared:
    """The model with that on the host whose copies a session makes in any case; with all that may be
    there, or nothing, where the request says so."""
    lever = prepared.request.levers.residence
    if lever != "auto" or prepared.why_no_swaps is not None:
        return choose_residence(prepared, settings, silent).prepared
    return resided(prepared, candidates_of(prepared, settings).first(0))


def more_on_host(
    chosen: Prepared, prepared: Prepared, settings: Settings, stays: Set[str]
) -> frozenset[str]:
    """All that may live on the host, or small tensors too where that was chosen; what was chosen, where
    the request leaves nothing to choose.

    Args:
        chosen: with what was put there.
        prepared: the model as it is.
        stays: what has to stay on the device.
    """
    levers, before = prepared.request.levers, frozenset(chosen.resident)
    if levers.residence == "device" or prepared.why_no_swaps is not None:
        return before
    found = candidates_of(prepared, settings)
    names = found.first(len(found.ranked)) - stays
    if names <= before and levers.min_tensor is None:
        found = candidates_of(prepared, settings, small_too=True)
        names = found.first(len(found.ranked)) - stays
    return names


def everything_on_host(prepared: Prepared, settings: Settings) -> Prepared:
    """The model with all that may on the host."""
    found = candidates_of(prepared, settings)
    return resided(prepared, found.first(len(found.ranked)))


def candidates_of(prepared: Prepared, settings: Settings, *, small_too: bool = False) -> Candidates:
    """What may live on the host, ranked.

    Args:
        small_too: with what is not worth a copy, too.
    """
    tensors = may_live_on_host(prepared.graph)
    has_limit = prepared.request.levers.min_tensor is not None  # what is smaller is barred
    if not has_limit and not small_too:
        room = settings.budget_bytes - settings.reserve_bytes
        least = _least_bytes([t.bytes for t in tensors], least_bytes(prepared), room)
        tensors = [t for t in tensors if t.bytes >= least]
    if prepared.request.levers.residence == "auto" and not prepared.target.own_memory:
        # what can be fed is not packed by the CPU's kernels: last bits may change
        tensors = [t for t in tensors if not t.is_initializer]
    copied = feeds_are_copied(prepared)
    free = tuple(t.name for t in tensors if copied and not t.is_initializer)
    away = _Away(prepared, settings)
    rest = [(away.share(t), t) for t in tensors if t.name not in free]
    rest.sort(key=lambda pair: (-pair[0], -pair[1].bytes, pair[1].name))
    return Candidates(free=free, ranked=tuple(t.name for share, t in rest))


def _least_bytes(sizes: Sequence[int], least: int, room: int) -> int:
    """What is smaller stays on the device, as long as that is little: many of a network's weights are
    small beside its activations, and together they are more than a device has.

    Args:
        least: what is smaller is not worth a copy.
        room: on the device.
    """
    left = 0
    for size in sorted(sizes):
        left += size
        if size >= least or left > _LEFT * room:
            return min(size, least)
    return least


class _Away:
    """For how much of the time that is over the budget a tensor would be away."""

    def __init__(self, prepared: Prepared, settings: Settings) -> None:
        graph = prepared.graph
        line = timeline(graph, prepared.order)
        live = np.asarray(line.live_bytes)
        room = settings.budget_bytes - settings.reserve_bytes
        self.high = live > min(room, int(live.max()) - 1)
        self.before = np.concatenate([[0], np.cumsum(self.high)])
        self.peak = int(live.argmax())
        self.graph = graph
        self.step = {op: i for i, op in enumerate(prepared.order)}

    def share(self, tensor: Tensor) -> float:
        """Of the steps over the budget, for each copy."""
        total = int(self.before[-1])
        if tensor.producer is not None:
            readers = self._steps(tensor)
            last = max([self.step[tensor.producer], *readers])
            return (total - int(self.before[last + 1])) / total
        uses = self._steps(tensor)
        first, last = uses[0], uses[-1]
        once = total - self._high(first, last)
        early = [s for s in uses if s < self.peak] or [first]
        late = [s for s in uses if s >= self.peak] or [last]
        twice = total - self._high(early[0], early[-1]) - self._high(late[0], late[-1])
        return max(once, twice / 2) / total

    def _steps(self, tensor: Tensor) -> list[int]:
        return sorted(self.step[op] for op in tensor.consumers)

    def _high(self, first: int, last: int) -> int:
        return int(self.before[last + 1] - self.before[first])


@dataclass(slots=True, kw_only=True)
class _Search:
    """Quick searches with more or less on the host.

    Attributes:
        helper: where a search is made beside another.
        plain_us: predicted time with everything on the device; infinite where nothing fits.
        times: the same by how many of the ranking are on the host, less the copies that a session
            makes in any case.
        until: when the searches end.
        made: the number that is quickest so far, and the model with so much on the host.
    """

    prepared: Prepared
    settings: Settings
    candidates: Candidates
    helper: Beside | None = None
    plain_us: float = float("inf")
    times: dict[int, float] = field(default_factory=dict)
    until: float = 0.0
    made: tuple[int, Prepared] | None = None

    def choose(self, progress: Progress, plain: Plain | None) -> Chosen:
        """The number that is quickest; nothing, where that is as good."""
        prepared, settings = self.prepared, self.settings
        share_s = min(_MOST_S, _SHARE * settings.time_limit_s)
        self.until = clock.now() + share_s
        room = settings.budget_bytes - settings.reserve_bytes
        if plain is None and least_possible_peak(prepared) <= room:
            orders = base_orders(prepared, time_limit_s=share_s)
            if orders[0].peak_bytes <= room:  # the order alone is enough
                return Chosen(prepared=prepared, orders=orders)
        if not self.candidates.ranked:  # nothing to choose: the copies are made in any case
            return Chosen(prepared=resided(prepared, self.candidates.first(0)))
        progress("planning with parameters, state, inputs and outputs on the host")
        if plain is not None:
            self.plain_us = plain.time_us
            order = _names(prepared, plain.order)
        else:
            whole = everything_on_host(prepared, settings)
            order = _names(whole, base_orders(whole, time_limit_s=share_s)[0].order)
        best = self._number(order)
        if self.times[best] == float("inf"):
            best = len(self.candidates.ranked)
        if plain is not None and self.times[best] > self._worth_us:
            return Chosen(prepared=prepared)
        if self.made is not None and self.made[0] == best:
            return Chosen(prepared=self.made[1])
        return Chosen(prepared=resided(prepared, self.candidates.first(best)))

    @property
    def _worth_us(self) -> float:
        """With something on the host, a plan may take so long."""
        return self.plain_us - WORTH * self.prepared.baseline.time_us

    def _number(self, order: Sequence[str]) -> int:
        """How many of the ranking: all are tried, and none or half, then what lies between the best and
        its neighbours; no more where everything on the device is as good."""
        most = len(self.candidates.ranked)
        self._try([most, 0 if self.plain_us == float("inf") else most // 2], order)
        if min(self.times.values()) > self.plain_us:
            return self._best()
        if self.plain_us < float("inf"):
            self.times[0] = self.plain_us  # that plan is there already
        self._try([0], order)
        at_once = 1 if self.helper is None else 2
        while _SEARCHES - len(self.times) >= at_once and clock.now() < self.until:
            counts = between(self.times, self._best())[:at_once]
            if not counts:
                break
            self._try(counts, order)
        return self._best()

    def _best(self) -> int:
        return min(self.times, key=lambda n: (self.times[n], n))

    def _try(self, counts: Sequence[int], order: Sequence[str]) -> None:
        """Search with so much on the host; of two numbers, with one in the process beside."""
        made: dict[int, tuple[int, Prepared]] = {}  # by the search's id: it alone is sent
        new = [count for count in dict.fromkeys(counts) if count not in self.times]

        def searches() -> Iterator[QuickSearch]:
            for count in new:
                prepared = resided(self.prepared, self.candidates.first(count))
                in_graph = in_order(prepared.graph, order)
                left_s = max(0.3, (self.until - clock.now()) / _SEARCHES)
                search = quick_search(prepared, in_graph, self.settings, left_s)
                made[id(search)] = count, prepared
                yield search

        def note(search: QuickSearch, found_us: float) -> None:
            count, prepared = made[id(search)]
            self.times[count] = found_us - prepared.baseline.fed_us
            if self._best() == count:
                self.made = (count, prepared)

        share_out(searches(), found_there, note, self.helper, at_least=len(new))


def _names(prepared: Prepared, order: Sequence[OpId]) -> list[str]:
    """Names of an order's operations, folded ones too, without copies of what lives on the host."""
    whole = with_folded(prepared.graph, order)
    operations = (prepared.graph.operations[op] for op in whole)
    return [op.name for op in operations if op.role not in (Role.PAGE_IN, Role.PAGE_OUT)]
