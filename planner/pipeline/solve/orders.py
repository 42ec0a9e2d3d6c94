"""Base orders of a prepared model, and its problem in each of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from planner import clock
from planner.bound.instants import min_peak_bound
from planner.formulate import NO_LIMIT, Formulation, has_slot
from planner.graph.effects import SHARED_GENERATOR
from planner.graph.model import OpId, Role, TrainingGraph
from planner.graph.rules import FROM_HOST, TO_HOST
from planner.graph.schedule import file_order
from planner.lower.order.pins import pins_needed
from planner.onnxio.kinds import GRANULARITY_BYTES
from planner.order.lists import late_schedule, list_schedule
from planner.order.min_peak import min_peak_order
from planner.order.moves import improve_order, pull_early, push_late, updates_last
from planner.order.reorder import Lives, reorder
from planner.pipeline.prepare.prepared import Prepared
from planner.pipeline.prepare.settings import Settings
from planner.pipeline.solve.policy import POLICY
from planner.plan.problem import Problem
from planner.portfolio.min_peak import min_peak_of
from planner.processes.sharing import share_out
from planner.processes.workers import Beside

OWN = "default"
"""Name of ONNX Runtime's own order, which nothing has to pin."""

EARLY = frozenset({"Shape", "Size", TO_HOST})
"""What is run as soon as it can be: later, it would keep what it reads on the device."""

_PIN_BYTES = 8
"""An integer: the result of an anchor, a dim in the shape of a barrier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseOrder:
    """A base order.

    Attributes:
        peak_bytes: as it is; no plan's peak in it can be below `least_bound_bytes`.
        pins_us: about what the nodes take that pin it (`with_pins`); 0 where nobody asked.
    """

    name: str
    order: tuple[OpId, ...]
    peak_bytes: int
    least_bound_bytes: int
    pins_us: float = 0.0


def base_orders(
    prepared: Prepared, *, time_limit_s: float, room_bytes: int | None = None
) -> tuple[BaseOrder, ...]:
    """Candidate base orders, least peak first; ONNX Runtime's own is always among them.

    Args:
        room_bytes: once an order is well within it, none is made of others by moves, and a few are kept:
            nothing is quicker than an order that fits as it is. None: the least peak is looked for.
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
        look_at(found)
    if is_large or is_roomy:  # each takes as long again to be bounded and to be made a problem of
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


def with_pins(
    prepared: Prepared, orders: Sequence[BaseOrder], *, until: float, helper: Beside | None = None
) -> tuple[BaseOrder, ...]:
    """The orders with about what the nodes take that pin them, where that was measured.

    Args:
        until: those whose turn comes later (`clock.now`) are left as they are.
        helper: where half of them are looked at; None looks at all of them here.
    """
    if not prepared.pin_us or prepared.request.order != "default":
        return tuple(orders)
    each_us = POLICY.pins_left * prepared.pin_us
    found: dict[BaseOrder, float] = {}
    tasks = (_ToPin(prepared.graph, tuple(part), until) for part in (orders[::2], orders[1::2]))

    def note(task: _ToPin, pins: list[int | None]) -> None:
        for base, count in zip(task.orders, pins, strict=True):
            if count is not None:
                found[base] = each_us * count

    share_out(tasks, _pins_of, note, helper)
    return tuple(replace(base, pins_us=found.get(base, base.pins_us)) for base in orders)


@dataclass(frozen=True, slots=True)
class _ToPin:
    """Orders whose pins are to be counted, as long as there is time."""

    graph: TrainingGraph
    orders: tuple[BaseOrder, ...]
    until: float


def _pins_of(_: None, task: _ToPin) -> list[int | None]:
    """How many nodes pin each order; None where time is out. May be called in another process."""
    return [
        pins_needed(task.graph, base.order) if clock.now() <= task.until else None
        for base in task.orders
    ]


def _starts(
    prepared: Prepared, whole: Formulation, late: Callable[[], bool]
) -> dict[str, tuple[int, ...]]:
    """Orders to begin from, by name: ONNX Runtime's, the file's and lists, each also with its updates
    last.

    Args:
        whole: the problem in ONNX Runtime's order, of whose operations these are indices.
        late: whether time is out, for all but the first two.
    """
    problem = whole.problem
    place = {op: i for i, op in enumerate(whole.ops)}
    in_file = tuple(place[op] for op in file_order(prepared.graph) if op in place)
    rank = [0] * len(in_file)
    for i, op in enumerate(in_file):
        rank[op] = i
    plain = tuple(range(len(in_file)))

    starts = {OWN: plain, "file": in_file}
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
    """Whether the operations that draw random numbers stay in order: they may share one generator."""
    at = {op: i for i, op in enumerate(order)}
    return all(at[a] < at[b] for a, b in itertools.pairwise(drawn))


def least_bound_order(orders: Sequence[BaseOrder]) -> BaseOrder:
    """The order in which the least may be possible."""
    return min(orders, key=lambda o: (o.least_bound_bytes, o.peak_bytes))


def formulate_in(
    prepared: Prepared, order: Sequence[OpId], settings: Settings, capacity: int
) -> Formulation:
    """The problem in one base order, buffers rounded up as ONNX Runtime's arena does.

    What `formulate` makes of that order; but the operations are the same in each, and kept.
    """
    whole = prepared.formulated(GRANULARITY_BYTES)
    place = {op: i for i, op in enumerate(whole.ops)}
    moved = [place[op] for op in order if op in place]
    allowed = settings.allowed
    ordered = reorder(whole.problem, moved)
    if prepared.resident and not allowed.recompute:
        ordered = _paging_alone(prepared, [whole.ops[i] for i in moved], ordered)
        allowed = replace(allowed, recompute=True)
    if allowed.overlap:
        slots = [has_slot(prepared.graph.tensors[t]) for t in whole.tensors]
        tensors = zip(ordered.tensors, slots, strict=True)
        swappable = tuple(replace(t, swappable=t.swappable and slot) for t, slot in tensors)
        ordered = replace(ordered, tensors=swappable)
    problem = replace(
        ordered,
        fixed_bytes=whole.problem.fixed_bytes + settings.reserve_bytes,
        capacity_bytes=capacity,
        swap_out_bytes_per_s=allowed.swap_out_bytes_per_s,
        swap_in_bytes_per_s=allowed.swap_in_bytes_per_s,
        allow_recompute=allowed.recompute,
        overlap=allowed.overlap,
    )
    return Formulation(
        problem=problem, ops=tuple(whole.ops[i] for i in moved), tensors=whole.tensors
    )


def _paging_alone(prepared: Prepared, ops: Sequence[OpId], problem: Problem) -> Problem:
    """The problem in which nothing runs again but the copies of what lives on the host."""
    operations = prepared.graph.operations
    again = tuple(
        replace(op, recomputable=op.recomputable and operations[i].role is Role.PAGE_IN)
        for i, op in zip(ops, problem.ops, strict=True)
    )
    return replace(problem, ops=again)


def least_found_peak(
    prepared: Prepared, settings: Settings, orders: Sequence[BaseOrder], *, time_limit_s: float
) -> int:
    """The least budget in bytes that a short search finds to be feasible with the levers of `settings`,
    before ONNX Runtime's fragmentation: the peak, and room for what pins the order."""
    problems = [formulate_in(prepared, o.order, settings, NO_LIMIT).problem for o in orders]
    best = min_peak_of(problems, time_limit_s=time_limit_s)[1]
    return best.peak_bytes + pinning_bytes(prepared, len(best.actions))


def pinning_bytes(prepared: Prepared, actions: int) -> int:
    """What pins the order of a plan of so many actions takes at most: an anchor's result to each, and
    for barriers a shape of each rank. Two plans of one peak may differ by as much."""
    ranks = {len(tensor.shape) for tensor in prepared.graph.tensors}
    return _PIN_BYTES * (actions + sum(ranks))


def least_possible_peak(prepared: Prepared) -> int:
    """Bytes below which no plan in any order can be: what one operation holds while it runs, with
    the graph outputs made before it, in the order that is best for this."""
    whole = prepared.formulated()
    return min_peak_order(whole.problem, range(len(whole.ops)))[1]
