"""The fastest plan within a budget, where operations may run in chunks of rows.

Without chunks first: a plan that takes hardly more time than the model as it is needs none. Then rooms
are tried, from all that the budget leaves down to a part of it: for each, what is too large for it is
split (`planner.pipeline.levers.too_large`), and a quick search says what a plan takes. In more room
there are fewer chunks; in less, a plan can keep more beside them. The best is planned in earnest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from planner import clock
from planner.errors import InfeasibleBudgetError
from planner.lower.row_rules import MIN_OPSET
from planner.pipeline.levers.choose_residence import everything_on_host
from planner.pipeline.levers.too_large import split_to_fit, with_hosted
from planner.pipeline.prepare.prepared import Prepared, Progress
from planner.pipeline.prepare.settings import Settings
from planner.pipeline.solve.orders import base_orders, least_possible_peak
from planner.pipeline.solve.planned import Planned
from planner.pipeline.solve.quick import WORTH, quick_us
from planner.runtime.optimizers.fusion_pins import TakenError
from planner.units import format_bytes

Made = tuple[Prepared, Planned]
Within = Callable[[Prepared, Settings], Made]
"""Plans a model in earnest."""

_ROOMS = (1.0, 0.8, 0.6, 0.4, 0.25)
"""Shares of the budget for which what is too large is split."""

_PLAIN = 0.6
"""Share of the time limit for a plan without chunks."""

_QUICK, _MAX_QUICK_S = 0.08, 6.0
"""Share of the time limit for one quick search, and its most seconds: half is for orders."""

_LEAST = 0.2
"""Share of the time limit for a plan with chunks, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tried:
    """A model in chunks, and the time that a quick search's plan adds; infinite where it found none."""

    prepared: Prepared
    added_us: float


def why_no_split(prepared: Prepared) -> str | None:
    """Why nothing of this model can run in chunks; None where it can."""
    if prepared.target.own_memory:
        return f"not yet for {prepared.target.title}"
    if prepared.loaded.dims:
        return "the chunks would hold for the sizes that --dim gives alone"
    if prepared.model.graph.opset_imports.get("", 1) < MIN_OPSET:
        return f"it takes the ONNX operator set {MIN_OPSET} or a later one"
    return None


def split_within(
    prepared: Prepared, settings: Settings, progress: Progress, within: Within
) -> Made:
    """(the model as it was planned, in chunks where that pays; its plan).

    Args:
        within: plans a model as it is.

    Raises:
        InfeasibleBudgetError: no plan was found with chunks either.
    """
    why = why_no_split(prepared)
    if why is not None:
        return within(_noted(prepared, f"nothing was split (--split auto): {why}"), settings)
    return _Splitting(
        prepared=prepared,
        settings=settings,
        progress=progress,
        within=within,
        until=clock.now() + settings.time_limit_s,
    ).run()


@dataclass(slots=True, kw_only=True)
class _Splitting:
    """The search for one model and one budget."""

    prepared: Prepared
    settings: Settings
    progress: Progress
    within: Within
    until: float

    def run(self) -> Made:
        """See `split_within`."""
        lean = self._lean()
        room = self.settings.budget_bytes - self.settings.reserve_bytes
        plain: Made | None = None
        if least_possible_peak(lean) <= room:
            try:
                plain = self.within(self.prepared, self._for(_PLAIN * self.settings.time_limit_s))
            except InfeasibleBudgetError:
                plain = None
            if plain is not None and not self._is_slow(plain):
                return plain
        self.progress("splitting what is too large")
        if plain is not None:
            try:
                return self._quicker(plain, self._tried(lean, plain))
            except KeyboardInterrupt:
                return plain[0], plain[1].interrupted()
        tried = self._tried(lean, None)
        error: InfeasibleBudgetError | None = None
        for one in tried:
            try:
                return self.within(one.prepared, self._for_rest())
            except (InfeasibleBudgetError, TakenError) as found:
                if isinstance(found, InfeasibleBudgetError) and _is_less(found, error):
                    error = found
        if error is not None:
            raise error
        return self.within(self.prepared, self._for_rest())  # which says what there is to say

    def _quicker(self, plain: Made, tried: list[_Tried]) -> Made:
        """The plan without chunks, or one with them that is worth it."""
        most_us = _added_us(plain) - WORTH * self.prepared.baseline.time_us
        if not tried or tried[0].added_us > most_us:
            return plain
        try:
            made = self.within(tried[0].prepared, self._for_rest())
        except (InfeasibleBudgetError, TakenError):
            return plain
        is_better = _added_us(made) <= most_us
        return made if is_better and made[1].has_room >= plain[1].has_room else plain

    def _tried(self, lean: Prepared, plain: Made | None) -> list[_Tried]:
        """Models in chunks, each other in what is split: those with the quickest plan first; where no
        quick search found one, those with the smallest operations."""
        hosted = frozenset((plain[0] if plain is not None else lean).resident)
        found: list[_Tried] = []
        for one in self._splits(lean):
            added_us = self._quick(with_hosted(one, hosted))
            found.append(_Tried(prepared=one, added_us=added_us))
            if clock.now() > self.until - _LEAST * self.settings.time_limit_s:
                break
        found.reverse()
        return sorted(found, key=lambda one: one.added_us)

    def _splits(self, lean: Prepared) -> Iterator[Prepared]:
        """By room, what is split for it, where it is something else each time and has room."""
        room = self.settings.budget_bytes - self.settings.reserve_bytes
        hosted = frozenset(lean.resident)
        known: list[object] = [()]
        for share in _ROOMS:
            one = split_to_fit(self.prepared, lean, int(share * room))
            if one.split in known:
                continue
            known.append(one.split)
            if least_possible_peak(with_hosted(one, hosted)) <= room:
                yield _noted(one, *_said(one))

    def _quick(self, prepared: Prepared) -> float:
        """Microseconds that a plan of a short search adds; infinite where it finds none."""
        settings = self.settings
        limit_s = min(_MAX_QUICK_S, _QUICK * settings.time_limit_s) / 2
        orders = base_orders(prepared, time_limit_s=limit_s)
        found_us = quick_us(prepared, orders[0].order, settings, limit_s)
        return found_us - prepared.baseline.time_us

    def _lean(self) -> Prepared:
        """The model with as much on the host as may be."""
        levers = self.prepared.request.levers
        if levers.residence == "device" or self.prepared.why_no_swaps is not None:
            return self.prepared
        return everything_on_host(self.prepared, self.settings)

    def _is_slow(self, made: Made) -> bool:
        """Whether there is enough to gain in chunks."""
        if made[1].solved.is_interrupted:
            return False
        return not made[1].has_room or _added_us(made) > WORTH * self.prepared.baseline.time_us

    def _for(self, limit_s: float) -> Settings:
        return replace(self.settings, time_limit_s=limit_s)

    def _for_rest(self) -> Settings:
        left_s = self.until - clock.now()
        return self._for(max(left_s, _LEAST * self.settings.time_limit_s))


def _added_us(made: Made) -> float:
    """What a plan adds to the time of the model as it is, where that is kept in the same places."""
    prepared, planned = made
    return planned.time_us - prepared.baseline.time_us


def _is_less(found: InfeasibleBudgetError, known: InfeasibleBudgetError | None) -> bool:
    """Whether an error tells of less that is needed."""
    return known is None or found.least_peak_bytes < known.least_peak_bytes


def _said(prepared: Prepared) -> tuple[str, ...]:
    """What was split, for a plan's assumptions."""
    regions = [region for together in prepared.split for region in together]
    if not regions:
        return ()
    nodes = sum(len(region.ways) for region in regions)
    most = max(region.seed.chunks for region in regions)
    first = regions[0].seed
    size = (
        format_bytes(prepared.types[first.tensor].bytes) if first.tensor in prepared.types else ""
    )
    text = (
        f"{nodes} node(s) run in chunks of rows, in {len(regions)} region(s) of up to {most} chunks, the "
        f"first around {first.tensor!r}{f' ({size})' if size else ''}"
    )
    if prepared.numbers == "rounding":
        text += ": sums are added up in parts, and products of fewer rows may take another path, so that "
        text += "numbers are the same up to rounding"
    return (text,)


def _noted(prepared: Prepared, *texts: str) -> Prepared:
    """The model with more among its assumptions."""
    graph = prepared.graph
    return replace(prepared, graph=replace(graph, assumptions=(*graph.assumptions, *texts)))
