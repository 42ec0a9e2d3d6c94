"""Base orders of a prepared model, and its problem in each of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from planner import clock
from planner.bound.instants import min_peak_bound
from planner.formulate import NO_LIMIT, Formulation, has_slot
from planner.graph.effects import SHARED_GENERATOR
from planner.graph.model import OpId, Role
from planner.graph.rules import FROM_HOST, TO_HOST
from planner.graph.schedule import file_order
from planner.lower.order.pins import pins_needed
from planner.onnxio.kinds import GRANULARITY_BYTES
from planner.order.lists import late_schedule, list_schedule, min_peak_order
from planner.order.moves import improve_order, pull_early, push_late, updates_last
from planner.order.reorder import Lives, reorder
from planner.pipeline.prepare.prepared import Prepared
from planner.pipeline.prepare.settings import Settings
from planner.pipeline.solve.policy import POLICY
from planner.plan.candidate import Candidate
from planner.plan.problem import Problem
from planner.portfolio.min_peak import min_peak_of

OWN = "default"
"""Name of ONNX Runtime's own order, which needs no pins."""

_FILE = "file"

EARLY = frozenset({"Shape", "Size", TO_HOST})
"""Operators to run as early as possible: later they would keep their inputs on the device."""

_PIN_BYTES = 8
"""Bytes of an integer: the result of an anchor, a dim in the shape of a barrier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseOrder:
    """A base order.

    Attributes:
        peak_bytes: without recomputes or swaps; `least_bound_bytes` bounds the peak of every plan
            in this order from below.
        pins_us: estimated time of the nodes that pin it (`with_pins`); 0 if not computed.
    """

    name: str
    order: tuple[OpId, ...]
    peak_bytes: int
    least_bound_bytes: int
    pins_us: float = 0.0

    @property
    def start(self) -> str:
        """The order that it was derived from, by name."""
        return self.name.partition(",")[0]


def base_orders(
    prepared: Prepared, *, time_limit_s: float, room_bytes: int | None = None
) -> tuple[BaseOrder, ...]:
    """Find candidate base orders, least peak first; ONNX Runtime's own is always among them.

    Args:
        room_bytes: as soon as an order is well within it, no others are derived by moves, and only
            a few are kept: nothing is quicker than an order that fits without changes. None: search
            for the least peak.
    """
    deadline = clock.now() + time_limit_s
    whole = prepared.formulated()
    problem = whole.problem
    lives = Lives(problem)
    peaks: dict[tuple[int, ...], int] = {}

    def late() -> bool:
        return clock.now() > deadline

    def look_at(orders: Iterable[tuple[int, ...]]) -> None:
        new = (order for order in orders if order not in peaks)
        peaks.update((order, int(lives.live_bytes(order).max())) for order in new)

    starts = _starts(prepared, whole, late)
    is_large = late()
    found: dict[tuple[int, ...], str] = {}
    for name, start in starts.items():
        found.setdefault(start, name)
    look_at(found)
    is_roomy = room_bytes is not None and min(peaks.values()) <= POLICY.roomy * room_bytes
    if not is_roomy:
        for name, start in starts.items():
            if not late():
                found.setdefault(improve_order(problem, start, out_of_time=late), f"{name}, moved")
        look_at(found)
        flat = min(peaks, key=lambda order: peaks[order])
        deepest = tuple(min_peak_order(problem, flat)[0])
        found.setdefault(deepest, f"{found[flat]}, outputs late")
        if room_bytes is not None:
            within = int(POLICY.tight * room_bytes)
            near = tuple(min_peak_order(problem, starts[_FILE], within=within)[0])
            # no comma: a start of its own, whose turn comes early
            found.setdefault(near, f"{_FILE} outputs late")
        look_at(found)
    if is_large or is_roomy:  # bounding each and formulating its problem take as long again
        least = sorted(found, key=peaks.__getitem__)[: POLICY.late_orders]
        found = {order: found[order] for order in (starts[OWN], *least)}
    random = {op.id for op in prepared.graph.operations if op.effect in SHARED_GENERATOR}
    drawn = [i for i, op in enumerate(whole.ops) if op in random]
    orders = [
        BaseOrder(
            name=name,
            order=tuple(whole.ops[i] for i in order),
            peak_bytes=peaks[order],
            least_bound_bytes=min_peak_bound(problem, order)[0],
        )
        for order, name in found.items()
        if _keeps(order, drawn)
    ]
    return tuple(sorted(orders, key=lambda o: (o.peak_bytes, o.least_bound_bytes)))


def one_of_each_first(orders: Sequence[BaseOrder]) -> tuple[BaseOrder, ...]:
    """Return the orders in such turn that many kinds come early: time may be out after any of them.

    ONNX Runtime's own order comes first, then one order from each start, the file's first, then a
    second one from each. Plans cost much the same in all orders from one start, and neither peaks
    nor bounds tell which start is good: recomputing a Llama's activations has cost 0.5% in an order
    made from the file's, and 31% in one of a lower peak.

    Args:
        orders: orders of one start keep their sequence.
    """
    kinds: dict[str, list[BaseOrder]] = {}
    for base in sorted(orders, key=lambda base: (base.name != OWN, base.start != _FILE)):
        kinds.setdefault(base.start, []).append(base)
    turns = itertools.zip_longest(*kinds.values())
    return tuple(base for turn in turns for base in turn if base is not None)


def with_pins(
    prepared: Prepared, orders: Sequence[BaseOrder], *, until: float
) -> tuple[BaseOrder, ...]:
    """Estimate the time of the nodes that pin each order, if the time of such a node was measured.

    Args:
        until: time (`clock.now`) after which the remaining orders stay as they are.
    """
    if not prepared.pin_us or prepared.request.order != "default":
        return tuple(orders)
    each_us = (1 - POLICY.pins_can_go) * prepared.pin_us
    return tuple(
        replace(base, pins_us=each_us * pins_needed(prepared.graph, base.order))
        if clock.now() <= until
        else base
        for base in orders
    )


def _starts(
    prepared: Prepared, whole: Formulation, late: Callable[[], bool]
) -> dict[str, tuple[int, ...]]:
    """Return the orders to start from, by name: ONNX Runtime's, the file's, and list schedules.

    Each also comes with its updates last.

    Args:
        whole: the problem in ONNX Runtime's order; the results are indices of its operations.
        late: whether time is out, for all but the first two.
    """
    problem = whole.problem
    place = {op: i for i, op in enumerate(whole.ops)}
    in_file = tuple(place[op] for op in file_order(prepared.graph) if op in place)
    rank = [0] * len(in_file)
    for i, op in enumerate(in_file):
        rank[op] = i
    plain = tuple(range(len(in_file)))

    starts = {OWN: plain, _FILE: in_file}
    for name, schedule, priority in (
        ("eager", list_schedule, rank),
        ("eager default", list_schedule, plain),
        ("late", late_schedule, rank),
        ("late default", late_schedule, plain),
    ):
        if not late():
            starts[name] = schedule(problem, priority)
    from_host = {place[op.id] for op in prepared.graph.operations if op.op_type == FROM_HOST}
    early = {place[op.id] for op in prepared.graph.operations if op.op_type in EARLY}
    moved = starts
    if from_host:
        moved = {name: push_late(problem, order, from_host) for name, order in moved.items()}
    if early:
        moved = {name: pull_early(problem, order, early) for name, order in moved.items()}
    if moved is not starts:
        starts = {**moved, OWN: plain, f"{OWN}, shapes early": moved[OWN]}
    for name, order in list(starts.items()):
        if not late():
            starts[f"{name}, updates last"] = updates_last(problem, order)
    return starts


def _keeps(order: Sequence[int], drawn: Sequence[int]) -> bool:
    """Tell whether operations that draw random numbers keep their order.

    They may share one generator.
    """
    at = {op: i for i, op in enumerate(order)}
    return all(at[a] < at[b] for a, b in itertools.pairwise(drawn))


def least_bound_order(orders: Sequence[BaseOrder]) -> BaseOrder:
    """Return the order with the lowest bound on its peak."""
    return min(orders, key=lambda o: (o.least_bound_bytes, o.peak_bytes))


def formulate_in(
    prepared: Prepared, order: Sequence[OpId], settings: Settings, capacity: int
) -> Formulation:
    """Formulate the problem in one base order, with buffers rounded up as ONNX Runtime's arena does.

    Equals the result of `formulate` for that order, but reorders a cached problem, whose operations
    are the same.
    """
    whole = prepared.formulated(GRANULARITY_BYTES)
    place = {op: i for i, op in enumerate(whole.ops)}
    moved = [place[op] for op in order if op in place]
    ordered = reorder(whole.problem, moved)
    if prepared.resident and not settings.recompute:
        ordered = _paging_alone(prepared, [whole.ops[i] for i in moved], ordered)
        settings = replace(settings, recompute=True)
    if settings.overlap:
        slots = [has_slot(prepared.graph.tensors[t]) for t in whole.tensors]
        tensors = zip(ordered.tensors, slots, strict=True)
        swappable = tuple(replace(t, swappable=t.swappable and slot) for t, slot in tensors)
        ordered = replace(ordered, tensors=swappable)
    problem = replace(
        ordered,
        fixed_bytes=whole.problem.fixed_bytes + settings.reserve_bytes,
        capacity_bytes=capacity,
        swap_out_bytes_per_s=settings.swap_out_bytes_per_s,
        swap_in_bytes_per_s=settings.swap_in_bytes_per_s,
        allow_recompute=settings.recompute,
        overlap=settings.overlap,
    )
    return Formulation(
        problem=problem, ops=tuple(whole.ops[i] for i in moved), tensors=whole.tensors
    )


def _paging_alone(prepared: Prepared, ops: Sequence[OpId], problem: Problem) -> Problem:
    """Return the problem in which only copies of tensors that live on the host may repeat."""
    operations = prepared.graph.operations
    again = tuple(
        replace(op, recomputable=op.recomputable and operations[i].role is Role.PAGE_IN)
        for i, op in zip(ops, problem.ops, strict=True)
    )
    return replace(problem, ops=again)


def least_found(
    prepared: Prepared, settings: Settings, orders: Sequence[BaseOrder], *, time_limit_s: float
) -> tuple[BaseOrder, Candidate]:
    """Search briefly for the plan of the least peak with the levers of `settings`."""
    problems = [formulate_in(prepared, o.order, settings, NO_LIMIT).problem for o in orders]
    index, best = min_peak_of(problems, time_limit_s=time_limit_s)
    return orders[index], best


def least_found_peak(
    prepared: Prepared, settings: Settings, orders: Sequence[BaseOrder], *, time_limit_s: float
) -> int:
    """Search briefly for the least feasible budget in bytes with the levers of `settings`.

    It is the peak and room for nodes that pin the order, without ONNX Runtime's fragmentation.
    """
    _, best = least_found(prepared, settings, orders, time_limit_s=time_limit_s)
    return pinned_peak(prepared, best.peak_bytes, len(best.actions))


def pinned_peak(prepared: Prepared, peak_bytes: int, actions: int) -> int:
    """Return the peak of a plan of `actions` actions with the most bytes that its pins take.

    Pins are an anchor's result for each action, and a shape of each rank for barriers. Two plans of
    one peak may differ by as much.
    """
    ranks = {len(tensor.shape) for tensor in prepared.graph.tensors}
    return peak_bytes + _PIN_BYTES * (actions + sum(ranks))


def least_possible_peak(prepared: Prepared) -> int:
    """Return a lower bound on the peak of every plan in any order, in bytes.

    It is the most that one operation holds while it runs, with the graph outputs made before it, in
    the order that minimizes this.
    """
    whole = prepared.formulated()
    return min_peak_order(whole.problem, range(len(whole.ops)))[1]
