"""`planner explain`: one tensor of a plan, its place over time, the alternatives, its bytes' worth."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from dataclasses import dataclass, replace
from pathlib import Path

from planner import clock
from planner.errors import UsageError
from planner.files.reading import closest
from planner.formulate import with_free_paging
from planner.graph.liveness import LiveTimeline
from planner.graph.model import Tensor, TensorId, TrainingGraph
from planner.graph.rules import FUSED_DOMAIN
from planner.pipeline.prepare.prepared import Prepared, Progress, silent
from planner.pipeline.prepare.settings import settings_as_planned
from planner.pipeline.prepare.timelines import full_timeline
from planner.pipeline.record.assemble import read_plan
from planner.pipeline.record.barring import with_barred
from planner.pipeline.record.decisions import Closed, recompute_closed, swap_closed
from planner.pipeline.record.rebuild import Rebuilt, prepared_for, rebuild
from planner.pipeline.solve.orders import formulate_in
from planner.pipeline.solve.read_back import read_back
from planner.plan.planfile import Plan
from planner.plan.problem import ActionKind, Problem
from planner.report.document.explain import (
    Absence,
    BudgetCut,
    ExplainDocument,
    Interval,
    IntervalWay,
    Presence,
    Prices,
    Span,
    why,
)
from planner.search.program.shadow_prices import ShadowPrices, shadow_prices
from planner.search.repair import Stays, closure
from planner.simulate.simulate import simulate

_CLOSEST = 5
_MIB = 1 << 20


def explain(
    model: Path,
    plan_path: Path,
    name: str,
    *,
    profile: Path | None = None,
    time_limit_s: float = 20.0,
    progress: Progress | None = None,
) -> ExplainDocument:
    """Explain one tensor of a plan.

    Args:
        profile: of ONNX Runtime, as the source of times: a plan file does not hold them.
        time_limit_s: for the shadow prices.

    Raises:
        ModelError: the plan is none, or of another model.
        UsageError: no such tensor; the message has the closest names.
    """
    report = progress or silent
    plan = read_plan(plan_path)
    with prepared_for(model, plan, profile=profile, progress=report) as prepared:
        return _explained(prepared, plan, plan_path, name, time_limit_s, report)


def _explained(
    prepared: Prepared,
    plan: Plan,
    plan_path: Path,
    name: str,
    time_limit_s: float,
    report: Progress,
) -> ExplainDocument:
    """Collect the facts on tensor `name`.

    Its life before and after the plan, the intervals in which it is away, and, if the bound is found
    in time, what a MiB of the budget is worth there. A plan that leaves the model as it is has only
    the first.
    """
    graph = with_barred(prepared.graph, plan.barred, where=str(plan_path))
    prepared = replace(prepared, graph=graph)
    tensor = _find(name, prepared)
    report("rebuilding the rewritten model")
    state = None if plan.unchanged else _state(prepared, plan)
    found: ShadowPrices | None = None
    index = None
    if state is not None:
        report("pricing the budget")
        with clock.counting(is_capped=True):
            clock.cap(time_limit_s)
            found = shadow_prices(state.priced, time_limit_s=time_limit_s)
        buffers = {t: i for i, t in enumerate(state.rebuilt.formulation.tensors)}
        index = buffers.get(tensor.buffer)
    buffer = prepared.graph.tensors[tensor.buffer]
    before = _before(prepared, buffer)
    intervals: tuple[Interval, ...] = ()
    returns: tuple[Absence, ...] = ()
    if state is not None and index is not None:
        intervals = _intervals(prepared, plan, state, index, found)
        returns = _returns(plan, state, index)
    return ExplainDocument(
        model_sha256=plan.model_sha256,
        budget_bytes=plan.budget_bytes,
        unchanged=plan.unchanged,
        tensor=name,
        buffer=buffer.name,
        bytes=buffer.bytes,
        category=buffer.category.value,
        dtype=tensor.dtype,
        shape=tensor.shape,
        persistent=buffer.is_persistent,
        producer=None if buffer.producer is None else graph.operations[buffer.producer].name,
        program=_program(graph, buffer),
        uses=_uses(graph, buffer, state, index),
        before=before,
        after=_after(state, buffer) if state else _as_it_is(before),
        intervals=intervals,
        returns=returns,
        prices=None if found is None or state is None else _prices(state, index, found),
        times_from=prepared.cost_source,
        plan_times_from=plan.cost_source,
    )


def _program(graph: TrainingGraph, tensor: Tensor) -> str | None:
    """Return the program, the window or else the operator of the fused node that makes a tensor; None if
    another node does."""
    if tensor.producer is None:
        return None
    op = graph.operations[tensor.producer]
    if op.domain != FUSED_DOMAIN:
        return None
    attributes = op.attributes or {}
    return str(attributes.get("program") or attributes.get("window") or op.op_type)


def _find(name: str, prepared: Prepared) -> Tensor:
    graph = prepared.graph
    try:
        return graph.tensor_named(name)
    except KeyError:
        pass
    names = [t.name for t in graph.tensors]
    hint = closest(name, names, "names are", most=_CLOSEST)
    if name in {t.name for t in prepared.baseline.graph.tensors} and prepared.fuse != "none":
        raise UsageError(
            f"tensor {name!r} is computed inside a fused node (--fuse {prepared.fuse}) and never "
            f"stored{hint}"
        )
    values = {str(v.name) for node in prepared.loaded.model.graph for v in node.outputs}
    if name in values:
        raise UsageError(
            f"the planned graph has no tensor {name!r}: ONNX Runtime's optimizers fused, merged "
            f"or folded it{hint}"
        )
    raise UsageError(f"the model has no tensor {name!r}{hint}")


# -- the plan, replayed ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """A plan's problem as it was solved, its replay, and its steps.

    Attributes:
        copies, stays: by tensor, the half-open ranges of actions in which it is on the device.
        graph, line: of the rewritten model.
        first: by base operation, its first action. node_step: by action, the step of its node.
    """

    rebuilt: Rebuilt
    problem: Problem
    priced: Problem  # with free copies where they may hide beside operations
    copies: list[list[tuple[int, int]]]
    stays: Stays
    graph: TrainingGraph
    line: LiveTimeline
    first: dict[int, int]
    node_step: tuple[int, ...]


def _state(prepared: Prepared, plan: Plan) -> _State:
    rebuilt = rebuild(prepared, plan)
    form = rebuilt.formulation
    asked = settings_as_planned(plan, prepared)
    problem = formulate_in(prepared, form.ops, asked, plan.budget_bytes).problem
    back = read_back(prepared, rebuilt.rewritten, order_target=plan.order_target)
    step_of = {name: i for i, name in enumerate(back.rewritten.planned_order)}
    copies: list[list[tuple[int, int]]] = [[] for _ in problem.tensors]
    # on the problem that allows every swap of the file
    replay = simulate(form.problem, rebuilt.actions, form.paging)
    for t, birth, end in replay.copies:
        copies[t].append((birth, end))
    first: dict[int, int] = {}
    for i, action in enumerate(rebuilt.actions):
        if action.kind is ActionKind.RUN:
            first.setdefault(action.target, i)
    return _State(
        rebuilt=rebuilt,
        problem=problem,
        priced=with_free_paging(form, problem),
        copies=copies,
        stays=Stays(replay.copies),
        graph=back.graph,
        line=full_timeline(back.graph, back.order, prepared.target),
        first=first,
        node_step=tuple(step_of[node] for node in rebuilt.rewritten.action_nodes),
    )


def _before(prepared: Prepared, buffer: Tensor) -> Presence[Span | None]:
    line = prepared.baseline.timeline
    steps = len(line.order)
    try:
        there = prepared.baseline.graph.tensor_named(buffer.name)
    except KeyError:
        return Presence(steps, None, False)
    if there.is_persistent:
        return Presence(steps, Span(there.name, 0, steps), True)
    for r in line.ranges:
        if r.tensor == there.buffer:
            span = Span(there.name, r.start, r.end)
            return Presence(steps, span, r.start <= line.peak_step < r.end)
    return Presence(steps, None, False)


def _as_it_is(before: Presence[Span | None]) -> Presence[tuple[Span, ...]]:
    live = () if before.live is None else (before.live,)
    return Presence(before.steps, live, before.at_peak)


def _after(state: _State, buffer: Tensor) -> Presence[tuple[Span, ...]]:
    line, steps = state.line, len(state.line.order)
    if buffer.is_persistent:
        return Presence(steps, (Span(buffer.name, 0, steps),), True)
    like, tensors = state.rebuilt.rewritten.like, state.graph.tensors
    named = ((tensors[r.tensor].name, r) for r in line.ranges)
    spans = tuple(
        Span(name, r.start, r.end) for name, r in named if like.get(name, name) == buffer.name
    )
    return Presence(steps, spans, any(s.start <= line.peak_step < s.end for s in spans))


def _uses(
    graph: TrainingGraph, buffer: Tensor, state: _State | None, index: int | None
) -> tuple[str, ...]:
    if state is not None and index is not None:
        return tuple(state.problem.ops[u].name for u in state.problem.tensors[index].uses)
    sharing: set[TensorId] = {t.id for t in graph.tensors if t.buffer == buffer.id}
    readers = {op for t in sharing for op in graph.tensors[t].consumers}
    return tuple(
        graph.operations[op].name for op in sorted(readers) if not graph.operations[op].is_folded
    )


def _prices(state: _State, index: int | None, found: ShadowPrices) -> Prices:
    problem = state.problem
    tensor = None if index is None else problem.tensors[index]
    cuts = []
    for p, price in sorted(found.us_per_byte.items()):
        waits = tensor is not None and bool(tensor.uses) and p not in tensor.uses
        waits = waits and tensor is not None and tensor.producer < p < tensor.uses[-1]
        cuts.append(BudgetCut(problem.ops[p].name, price * _MIB, waits))
    return Prices(
        bound_us=state.priced.base_duration_us + found.bound_extra_us,
        us_per_mib=sum(cut.us_per_mib for cut in cuts),
        us_per_mib_where_it_waits=sum(cut.us_per_mib for cut in cuts if cut.waits),
        cuts=tuple(cuts),
    )


# -- retention intervals -----------------------------------------------------------------------


def _intervals(
    prepared: Prepared, plan: Plan, state: _State, index: int, found: ShadowPrices | None
) -> tuple[Interval, ...]:
    tensor, copies = state.problem.tensors[index], state.copies
    events = (tensor.producer, *tensor.uses)
    reasons = {d.end: d.why for d in plan.decisions if d.tensor == tensor.name}
    births = [birth for birth, _ in copies[index]]
    intervals = []
    for opens, closes in itertools.pairwise(events):
        start, end = state.first[opens], state.first[closes]
        made = bisect_left(births, start + (opens == tensor.producer)) - 1
        read = bisect_left(births, end) - 1
        absences = tuple(
            _absence(state, copies[index][k - 1][1], births[k], reasons)
            for k in range(made + 1, read + 1)
        )
        chosen = absences[-1].action if absences else "keep"
        ways = _ways(prepared, state, index, births[read] if absences else end)
        rent_us = None if found is None else found.between(opens, closes) * tensor.bytes
        intervals.append(
            Interval(
                opens=state.problem.ops[opens].name,
                closes=state.problem.ops[closes].name,
                start=state.node_step[start],
                end=state.node_step[end],
                chosen=chosen,
                absences=absences,
                ways=ways,
                rent_us=rent_us,
                why=why(absences, ways, rent_us),
            )
        )
    return tuple(intervals)


def _absence(state: _State, gone: int, birth: int, reasons: dict[int, str]) -> Absence:
    """Describe an absence: from the action that frees the tensor to the one that brings it back."""
    step = state.node_step[birth]
    swapped = state.rebuilt.actions[birth].kind is ActionKind.SWAP_IN
    return Absence(
        start=min(step, state.node_step[min(gone, len(state.node_step) - 1)]),
        end=step,
        action="swap" if swapped else "recompute",
        by=state.rebuilt.rewritten.action_nodes[birth],
        why=reasons.get(step, ""),
    )


def _returns(plan: Plan, state: _State, index: int) -> tuple[Absence, ...]:
    """Describe each return of the tensor after its last base use, for recomputes that read it."""
    tensor = state.problem.tensors[index]
    last = state.first[tensor.uses[-1] if tensor.uses else tensor.producer]
    reasons = {d.end: d.why for d in plan.decisions if d.tensor == tensor.name}
    return tuple(
        _absence(state, end, birth, reasons)
        for (_, end), (birth, _) in itertools.pairwise(state.copies[index])
        if birth > last
    )


def _ways(prepared: Prepared, state: _State, index: int, at: int) -> tuple[IntervalWay, ...]:
    """Return the ways to have the tensor at action `at` of this plan: keep, recompute, swap."""
    problem, form = state.problem, state.rebuilt.formulation
    again, blocker = closure(problem, state.stays, index, at)
    no_recompute = recompute_closed(prepared, form, problem, blocker)
    if no_recompute is not None:
        recompute = _closed_way("recompute", no_recompute)
    else:
        recompute = IntervalWay(
            action="recompute",
            cost_us=sum(problem.ops[op].duration_us for op in again),
            runs=tuple(problem.ops[op].name for op in again),
        )
    no_swap = swap_closed(prepared, form, problem, index)
    if no_swap is not None:
        swap = _closed_way("swap", no_swap)
    else:
        out, back = problem.swap_out_us(index), problem.swap_in_us(index)
        swap = IntervalWay(action="swap", cost_us=out + back, copy_out_us=out, copy_in_us=back)
    return IntervalWay(action="keep", cost_us=0.0), recompute, swap


def _closed_way(action: str, closed: Closed) -> IntervalWay:
    return IntervalWay(
        action=action, cost_us=None, why_not=closed.text, reason_code=closed.reason.value
    )
