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
from planner.native import DEVICE_PAGE_BYTES
from planner.pipeline.prepare.prepared import Prepared
from planner.pipeline.prepare.timelines import full_timeline
from planner.pipeline.solve.orders import BaseOrder, Settings
from planner.pipeline.solve.policy import POLICY
from planner.pipeline.solve.read_back import ReadBack, lowered_as, read_back
from planner.plan.planfile import Arena, Pool
from planner.plan.problem import NO_PAGING, Action, ActionKind
from planner.plan.solved import Solved
from planner.runtime.build import has_pool
from planner.runtime.memory.arena import arena_cap, packable_bytes
from planner.runtime.memory.bfc import ROUNDING
from planner.runtime.memory.paged import PAGE_BYTES, device_pool_bytes, in_pages, pool_bytes
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
        reserve_bytes: the part of the budget that is left to what no plan predicts.
        live_room_bytes: the budget without its reserve.
        room_bytes: the part of that for transient bytes, in the pool or in ONNX Runtime's arena.
        needed_bytes: size of the pool that it needs or, where a device's memory is ONNX Runtime's
            arena, of the region; None on a device whose memory is neither.
        searched: the solution as a search found it. That of a plan whose copies run beside the
            operations has waits, and loads that begin early, in `solved`.
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
    reserve_bytes: int
    live_room_bytes: int
    room_bytes: int
    needed_bytes: int | None
    searched: Solved

    @property
    def holds(self) -> bool:
        """Whether it is within the budget, given that its live bytes are.

        If the budget bounds live bytes, the pool or arena is as large as needed.
        """
        if self.budget_of == "live" or self.needed_bytes is None:
            return True
        return self.needed_bytes <= self.room_bytes

    @property
    def spare_bytes(self) -> int:
        """The bytes of the budget that it leaves, without the arena's fragmentation; negative beyond."""
        spare = self.live_room_bytes - self.timeline.peak_bytes
        is_live = self.budget_of == "live" or self.prepared.target.is_arena
        if is_live or self.needed_bytes is None:
            return spare
        return min(spare, self.room_bytes - self.needed_bytes)

    @property
    def is_ordered(self) -> bool:
        """Whether its actions must keep their order, because waits for copies depend on it."""
        actions = () if self.solved.candidate is None else self.solved.candidate.actions
        is_waited = any(action.kind is ActionKind.SWAP_OUT_DONE for action in actions)
        return is_waited or bool(self.formulation.paging.loads)

    @property
    def pool(self) -> Pool | None:
        """The pool of planner's that it runs in.

        On the CPU it has room for constant weights that kernels pack and for stored outputs, and there is
        none if other copies to the host lie in the CPU's memory, too. Where a device's memory is ONNX
        Runtime's arena, it is the pool for sessions that ask for it: of the budget, with the reserve in
        it for kernels' workspace, or of what pages and reserve take beyond.
        """
        if self.prepared.target.is_arena:
            need = device_pool_bytes(self.graph, self.order) + self.reserve_bytes
            budget = self.live_room_bytes + self.reserve_bytes
            return Pool(bytes=max(in_pages(budget, DEVICE_PAGE_BYTES), need))
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
        """The device's arena with room for it; None if memory there is no arena."""
        if self.needed_bytes is None or not self.prepared.target.is_arena:
            return None
        room_bytes = max(self.room_bytes // ROUNDING * ROUNDING, self.needed_bytes)
        return Arena(max_bytes=room_bytes, first_region_bytes=self.needed_bytes)

    @property
    def time_us(self) -> float:
        """Predicted time of the schedule, in microseconds."""
        return self.solved.found.time_us

    @property
    def added_us(self) -> float:
        """The time that it adds to the model as it is, with the same tensors on the host."""
        return self.time_us + self.prepared.views_us - self.prepared.baseline.time_us

    @property
    def pins_us(self) -> float:
        """The time of the nodes that pin the order, in microseconds."""
        return self.rewritten.anchors * (self.prepared.pin_us or POLICY.unknown_pin_us)

    @property
    def step_us(self) -> float:
        """Predicted time of a step in microseconds, as the plan file has it."""
        return self.time_us + self.prepared.views_us + self.rewritten.anchors * self.prepared.pin_us

    def is_better(self, other: Planned) -> bool:
        """Tell whether it beats another plan: only it is within the budget, or it is quicker."""
        if self.holds != other.holds:
            return self.holds
        views_us, others_us = self.prepared.views_us, other.prepared.views_us
        return self.time_us + views_us + self.pins_us < other.time_us + others_us + other.pins_us

    def interrupted(self) -> Planned:
        """Return the same plan, marked as the best one when the search was interrupted."""
        return replace(self, solved=replace(self.solved, is_interrupted=True))


def _needed_bytes(back: ReadBack, room_bytes: int, target: Target) -> int | None:
    """Return the bytes of the pool, or of the region of a device's arena, that two runs need.

    None where the memory is neither.

    Args:
        room_bytes: an arena of so many bytes is tried first.
    """
    graph, order = back.graph, back.order
    if target.is_arena:
        units = {op: i for i, op in enumerate(order)}
        return least_arena(demands_of(graph, order, units, back.rewritten.like, target), room_bytes)
    return None if target.own_memory else pool_bytes(graph, order, threads=most_threads())


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
    target, searched = prepared.target, solved
    if form.problem.overlap:
        form = with_paging(form, prepared.graph)
        solved = _beside(form, solved, solved.found.actions)
    actions = solved.found.actions

    def read(rewritten: Rewritten) -> Planned:
        back = read_back(prepared, rewritten, order_target=settings.order_target)
        graph, order = back.graph, back.order
        room_bytes = settings.room_bytes
        if not target.is_arena:  # inputs and initializers lie beside the CPU's
            room_bytes = arena_cap(graph, room_bytes)
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
            reserve_bytes=settings.reserve_bytes,
            live_room_bytes=settings.room_bytes,
            room_bytes=room_bytes,
            needed_bytes=_needed_bytes(back, room_bytes, target),
            searched=searched,
        )

    return lowered_as(read, prepared, form, actions, order_target=settings.order_target)
