"""A solved problem, lowered and read back: a plan with ONNX Runtime's view of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.choices import BudgetOf
from planner.fit.demands import demands_of
from planner.fit.search import least_arena
from planner.formulate import Formulation, with_paging
from planner.graph.liveness import LiveTimeline
from planner.graph.model import OpId, TrainingGraph
from planner.graph.rules import COPIES, STORE_TO
from planner.lower.rewrite import Rewritten
from planner.pipeline.prepare.prepared import Prepared
from planner.pipeline.prepare.timelines import full_timeline
from planner.pipeline.solve.orders import BaseOrder, Settings
from planner.pipeline.solve.policy import POLICY
from planner.pipeline.solve.read_back import ReadBack, lowered_as, read_back
from planner.plan.planfile import Arena, Pool
from planner.plan.problem import NO_PAGING, Action, ActionKind
from planner.plan.solved import Solved
from planner.runtime.build import has_pool
from planner.runtime.device.predict.forecast import arena_room
from planner.runtime.memory.arena import packable_bytes
from planner.runtime.memory.bfc import ROUNDING
from planner.runtime.memory.paged import PAGE_BYTES, in_pages, pool_bytes
from planner.runtime.options import most_threads
from planner.simulate.loads import begun_early
from planner.simulate.simulate import candidate_of
from planner.simulate.waits import with_waits
from planner.targets import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """An accepted plan: the solution, and the rewritten model as read back.

    Attributes:
        prepared: the model that it was made for, with the recomputes and swaps barred that planning
            barred.
        budget_of: the quantity that the budget bounds.
        live_room_bytes: the budget without its reserve.
        room_bytes: the part of that for transient bytes, in the pool or in ONNX Runtime's arena.
        needed_bytes: size of the pool that it needs; None on a device with its own memory.
        arena_bytes: where such memory is ONNX Runtime's arena, the region within `room_bytes` that
            has room for the plan; None if none has, or there is no arena.
    """

    prepared: Prepared
    formulation: Formulation
    solved: Solved
    base: BaseOrder
    rewritten: Rewritten
    graph: TrainingGraph
    order: tuple[OpId, ...]
    timeline: LiveTimeline
    orders: tuple[BaseOrder, ...]
    budget_of: BudgetOf
    live_room_bytes: int
    room_bytes: int
    needed_bytes: int | None
    arena_bytes: int | None

    @property
    def holds(self) -> bool:
        """Whether it is within the budget, given that its live bytes are."""
        return self.budget_of == "live" or self.has_room

    @property
    def has_room(self) -> bool:
        """Whether its pool, or the arena of its device, has room for it.

        The arena's answer comes from a replay. If the budget bounds live bytes, the pool is as
        large as needed. A device's memory that is no arena does not break up.
        """
        if self.needed_bytes is not None:
            return self.budget_of == "live" or self.needed_bytes <= self.room_bytes
        return self.arena_bytes is not None or not self.prepared.target.is_arena

    @property
    def over_bytes(self) -> int:
        """The bytes by which it exceeds the budget, without the arena's fragmentation; 0 within."""
        over = self.timeline.peak_bytes - self.live_room_bytes
        if self.needed_bytes is not None and self.budget_of == "held":
            over = max(over, self.needed_bytes - self.room_bytes)
        return max(0, over)

    @property
    def is_ordered(self) -> bool:
        """Whether its actions must keep their order, because waits for copies depend on it."""
        actions = () if self.solved.candidate is None else self.solved.candidate.actions
        is_waited = any(action.kind is ActionKind.SWAP_OUT_DONE for action in actions)
        return is_waited or bool(self.formulation.paging.loads)

    @property
    def pool(self) -> Pool | None:
        """The pool on the CPU, with room for constant weights that kernels pack and for stored outputs.

        None if other copies to the host lie in the CPU's memory, too.
        """
        operations = self.graph.operations
        is_shared = any(op.op_type in COPIES for op in operations)
        if self.needed_bytes is None or is_shared or not has_pool():
            return None
        size = max(in_pages(self.room_bytes), self.needed_bytes)
        if any(op.op_type == STORE_TO for op in operations):
            threads = most_threads()
            size = max(size, pool_bytes(self.graph, self.order, threads=threads, host_in_pool=True))
        packed = in_pages(packable_bytes(self.graph) + PAGE_BYTES - 1)
        # for bodies and sequences only live bytes are bounded, not each request
        bodies = any(op.inner_bytes for op in operations)
        is_known = not (bodies or self.graph.has_sequences)
        return Pool(bytes=size + packed, is_proved=is_known)

    @property
    def arena(self) -> Arena | None:
        """The device's arena with room for it; None if there is none, or memory there is no arena."""
        if self.arena_bytes is None:
            return None
        room_bytes = self.room_bytes // ROUNDING * ROUNDING
        return Arena(max_bytes=room_bytes, first_region_bytes=min(self.arena_bytes, room_bytes))

    @property
    def time_us(self) -> float:
        """Predicted time of the schedule, in microseconds."""
        assert self.solved.candidate is not None
        return self.solved.candidate.time_us

    @property
    def added_us(self) -> float:
        """The time that it adds to the model as it is, with the same tensors on the host."""
        return self.time_us + self.prepared.views_us - self.prepared.baseline.time_us

    @property
    def pins_us(self) -> float:
        """The time of the nodes that pin the order, in microseconds."""
        return self.rewritten.anchors * (self.prepared.pin_us or POLICY.unknown_pin_us)

    def is_better(self, other: Planned, *, most_slower: float = POLICY.slower_with_room) -> bool:
        """Tell whether it beats another plan.

        It is quicker, or only its arena has room and it is not much slower.

        Args:
            most_slower: the factor by which a plan may be slower if only its arena has room.
        """
        allowed = 1.0
        if self.has_room != other.has_room:
            allowed = most_slower if self.has_room else 1 / most_slower
        return self.time_us + self.pins_us < allowed * (other.time_us + other.pins_us)

    def interrupted(self) -> Planned:
        """Return the same plan, marked as the best one when the search was interrupted."""
        return replace(self, solved=replace(self.solved, is_interrupted=True))


def _arena_bytes(back: ReadBack, room_bytes: int, target: Target) -> int | None:
    """Return the region of a device's arena that has room for two runs of a plan, by a replay.

    None if `room_bytes` are not enough.
    """
    graph, order = back.graph, back.order
    units = {op: i for i, op in enumerate(order)}
    return least_arena(demands_of(graph, order, units, back.rewritten.like, target), room_bytes)


def _beside(form: Formulation, solved: Solved, actions: Sequence[Action]) -> Solved:
    """Return the solution with hidden loads, and with the waits that its copies need.

    With loads or stores, bounds proved for copies between the operations no longer hold, and weaker
    ones replace them.
    """
    problem, paging = form.problem, form.paging
    listed = with_waits(problem, begun_early(problem, actions, paging), paging)
    solved = replace(solved, candidate=candidate_of(problem, listed, paging))
    if paging == NO_PAGING:
        return solved
    ins_us, outs_us = (
        sum(problem.ops[op].duration_us for op in ops) for ops in (paging.loads, paging.stores)
    )
    bound_us = max(ins_us, outs_us, problem.base_duration_us - ins_us - outs_us)
    return replace(solved, bound_us=bound_us, bound_class="any schedule")


def lowered_plan(
    prepared: Prepared,
    settings: Settings,
    base: BaseOrder,
    form: Formulation,
    solved: Solved,
    orders: tuple[BaseOrder, ...],
) -> Planned:
    """Lower a plan and read it back.

    If copies run beside the operations, its schedule gets the waits that they need.

    Args:
        solved: with a candidate, a plan of `form`, which is formulated in the order of `base`.

    Raises:
        TakenError: ONNX Runtime's optimizers take nodes of it away, however they are pinned.
    """
    assert solved.candidate is not None
    target = prepared.target
    if form.problem.overlap:
        form = with_paging(form, prepared.graph)
        solved = _beside(form, solved, solved.candidate.actions)
    candidate = solved.candidate
    assert candidate is not None

    def read(rewritten: Rewritten) -> Planned:
        back = read_back(prepared, rewritten, order_target=settings.order_target)
        graph, order = back.graph, back.order
        room_bytes = arena_room(graph, settings.room_bytes, target)
        needed_bytes, arena_bytes = None, None
        if target.is_arena:
            arena_bytes = _arena_bytes(back, room_bytes, target)
        elif not target.own_memory:
            needed_bytes = pool_bytes(graph, order, threads=most_threads())
        return Planned(
            prepared=prepared,
            formulation=form,
            solved=solved,
            base=base,
            rewritten=back.rewritten,
            graph=graph,
            order=order,
            timeline=full_timeline(graph, order, target),
            orders=orders,
            budget_of=settings.budget_of,
            live_room_bytes=settings.room_bytes,
            room_bytes=room_bytes,
            needed_bytes=needed_bytes,
            arena_bytes=arena_bytes,
        )

    return lowered_as(read, prepared, form, candidate.actions, order_target=settings.order_target)
