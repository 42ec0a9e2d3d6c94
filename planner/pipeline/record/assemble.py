"""From an accepted plan to the plan file, and from a plan file back to a schedule."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner import __version__
from planner.errors import ModelError
from planner.files.reading import shown
from planner.files.structuring import Source, fields_of, read_json, structured
from planner.formulate import Allowed, Formulation, OpCosts, formulate, with_paging
from planner.graph.liveness import LiveTimeline
from planner.graph.model import Category, Role, TrainingGraph
from planner.onnxio.kinds import GRANULARITY_BYTES
from planner.pipeline.levers.host.host_budget import host_memory_of
from planner.pipeline.levers.table import bound_classes, lever_notes, recorded
from planner.pipeline.prepare.prepared import Prepared
from planner.pipeline.prepare.settings import Settings, disk_note, live_note, shared_note
from planner.pipeline.record.barring import barred_in, barred_note
from planner.pipeline.record.bounds import planned_bounds
from planner.pipeline.record.decisions import decisions_of
from planner.pipeline.record.modelviews import cache_us, pins_of
from planner.pipeline.solve.orders import least_possible_peak
from planner.pipeline.solve.planned import Planned
from planner.pipeline.target.placing import is_assumed
from planner.plan.candidate import Candidate, Replay
from planner.plan.planfile import (
    PLAN_VERSION,
    PeakMoment,
    Plan,
    PlannedAction,
    PredictedCost,
    Resident,
    check_plan,
)
from planner.plan.problem import Action, ActionKind
from planner.simulate.simulate import InvalidScheduleError, simulate
from planner.simulate.waits import unpaired
from planner.targets import target_named
from planner.units import format_bytes, format_duration

_MAX_BINDING = 20

INTERRUPTED = "the search was interrupted: this is the best plan that it had found"


def assemble(prepared: Prepared, settings: Settings, planned: Planned) -> Plan:
    """Build the plan file of an accepted plan."""
    candidate = planned.solved.found
    problem = planned.formulation.problem
    replay, cost = candidate.replay, _planned_cost(planned, candidate)
    barred = barred_in(planned.prepared.graph)
    bound = planned.solved.bound_us
    return replace(
        _as_asked(prepared, settings),
        pool=planned.pool,
        arena=planned.arena,
        engine=planned.solved.engine,
        solve_s=planned.solved.solve_s,
        engines=planned.solved.engines,
        seed=settings.seed,
        # unfolded constants add a few bytes in each order, the original's included
        best_order=PredictedCost(
            peak_bytes=min(
                prepared.baseline.peak_bytes, *(base.peak_bytes for base in planned.orders)
            ),
            time_us=problem.base_duration_us + planned.prepared.views_us,
        ),
        planned=cost,
        one_stream_us=cost.step_us + _between_us(replay),
        least_peak_bound_bytes=least_possible_peak(prepared) + settings.reserve_bytes,
        bound_us=bound,
        gap=planned.solved.gap,
        bound_class=_bound_class(settings, planned),
        proved_optimal=planned.solved.gap is not None and planned.solved.gap <= 1e-6,
        binding=binding(planned.graph, planned.timeline),
        peak=peak_moment(planned.graph, planned.timeline, planned.rewritten.like),
        schedule=_schedule(planned.formulation, candidate.actions),
        decisions=decisions_of(planned),
        barred=barred,
        assumptions=(
            *prepared.graph.assumptions,
            *_copies_note(settings, replay, cost),
            *(shared_note(prepared) if replay.swap_in_bytes or prepared.resident else ()),
            *disk_note(prepared),
            *lever_notes(prepared),
            *live_note(prepared),
            *_room_note(planned),
            *barred_note(barred),
            *((INTERRUPTED,) if planned.solved.is_interrupted else ()),
        ),
    )


def _bound_class(settings: Settings, planned: Planned) -> str:
    """Describe the plans that the bound holds for.

    If fragmentation takes a part of the budget, they are those within the rest.
    """
    capacity, said = planned.formulation.problem.capacity_bytes, planned.solved.bound_class
    said = ", ".join((said, *bound_classes(planned.prepared)))
    if capacity < settings.budget_bytes:
        said = f"{said}, within {format_bytes(capacity)} of live bytes"
    return said


def _as_asked(prepared: Prepared, settings: Settings) -> Plan:
    """Build the fields that any plan has: model and request; every cost is the baseline's."""
    request, cost = prepared.request, prepared.baseline.cost
    return Plan(
        planner_version=__version__,
        model_name=prepared.loaded.path.name,
        model_sha256=prepared.loaded.sha256,
        dims=dict(prepared.loaded.dims),
        budget_text=request.aim,
        budget_bytes=settings.budget_bytes,
        reserve_bytes=settings.reserve_bytes,
        budget_of=settings.budget_of,
        hardware=request.costs.hardware,
        cost_source=prepared.cost_source,
        swap_mode=request.levers.swap,
        device=prepared.target.name,
        assumed=is_assumed(prepared.target),
        copies="overlapped" if settings.overlap else "serial",
        pattern=request.levers.pattern,
        numbers=prepared.numbers,
        recompute=request.levers.recompute,
        include=request.levers.include,
        exclude=request.levers.exclude,
        min_tensor=request.levers.min_tensor,
        disk=request.levers.disk,
        order_target=settings.order_target,
        ort_optimized=prepared.ort_optimized,
        block_channels=prepared.block_channels,
        bounds=planned_bounds(prepared),
        baseline=cost,
        best_order=cost,
        planned=cost,
        **recorded(prepared),
    )


def _between_us(replay: Replay) -> float:
    """Return the microseconds that the schedule would add with every copy between the operations."""
    return replay.swap_us + replay.paged_us - replay.stall_us


def _copies_note(settings: Settings, replay: Replay, cost: PredictedCost) -> tuple[str, ...]:
    """Return a note on how copies were planned, and on their time between the operations."""
    if not settings.why_copies:
        return ()
    if not settings.overlap:
        return (settings.why_copies,)
    return (
        f"{settings.why_copies}; on the stream of the operations the step would take "
        f"{format_duration(cost.step_us + _between_us(replay))}, not {format_duration(cost.step_us)}",
    )


def _room_note(planned: Planned) -> tuple[str, ...]:
    """Return a note if the plan takes more than a budget of live bytes."""
    needed_bytes = planned.needed_bytes or 0
    if not planned.prepared.target.is_arena or needed_bytes <= planned.room_bytes:
        return ()
    return (
        "the budget bounds live bytes: ONNX Runtime's arena is predicted to need "
        f"{format_bytes(needed_bytes)}",
    )


def unchanged_plan(prepared: Prepared, settings: Settings) -> Plan:
    """Build the plan for a budget that the model meets as it is."""
    baseline = prepared.baseline
    return replace(
        _as_asked(prepared, settings),
        engine="none",
        bound_us=baseline.time_us,
        gap=0.0,
        bound_class="any schedule",
        proved_optimal=True,
        unchanged=True,
        binding=binding(baseline.graph, baseline.timeline),
        peak=peak_moment(baseline.graph, baseline.timeline, {}),
        assumptions=prepared.graph.assumptions,
    )


def fits_as_it_is(prepared: Prepared, settings: Settings) -> bool:
    """Tell whether the model, as it is, meets the requested budget in every order that it may run in.

    If the budget bounds the bytes held, all bytes that a default session holds count. A budget in
    percent is a share of the predicted peak, and only that order counts.
    """
    budget = prepared.request.budget
    if budget is None:
        return False
    room = settings.room_bytes
    if settings.budget_of == "held":
        held = prepared.baseline.view.held_bytes("default")
        return held is not None and max(held, prepared.baseline.worst_peak_bytes) <= room
    if budget.endswith("%"):
        return room >= prepared.baseline.peak_bytes
    return room >= prepared.baseline.worst_peak_bytes


def binding(graph: TrainingGraph, line: LiveTimeline) -> tuple[tuple[str, int], ...]:
    """Return the largest tensors at the peak, persistent ones included."""
    here = [(graph.tensors[r.tensor].name, r.bytes) for r in line.resident_at(line.peak_step)]
    here += [
        (t.name, t.bytes)
        for t in graph.tensors
        if t.is_persistent and not t.on_host and t.buffer == t.id
    ]
    return tuple(sorted(here, key=lambda item: (-item[1], item[0]))[:_MAX_BINDING])


def peak_moment(graph: TrainingGraph, line: LiveTimeline, like: Mapping[str, str]) -> PeakMoment:
    """Describe everything on the device at the first step that reaches the peak.

    Args:
        like: the original tensor of each copy (`planner.lower.rewrite.Rewritten`).
    """
    step = line.peak_step
    here = [(graph.tensors[r.tensor], r) for r in line.resident_at(step)]
    return PeakMoment(
        step=step,
        node=graph.operations[line.order[step]].name if line.order else "",
        persistent_bytes=line.persistent_bytes,
        workspace_bytes=int(line.by_category[Category.WORKSPACE][step]) if line.order else 0,
        residents=tuple(
            Resident(
                tensor=like.get(tensor.name, tensor.name),
                copy=tensor.name,
                bytes=r.bytes,
                category=r.category.value,
            )
            for tensor, r in here
        ),
    )


def _planned_cost(planned: Planned, candidate: Candidate) -> PredictedCost:
    """Return the predicted bytes and times of a plan's file."""
    replay, actions = candidate.replay, candidate.actions
    form, graph = planned.formulation, planned.prepared.graph
    swapped = {a.target for a in actions if a.kind is ActionKind.SWAP_OUT}
    runs: dict[Role, list[int]] = defaultdict(list)
    for action in actions:
        if action.kind is ActionKind.RUN:
            runs[graph.operations[form.ops[action.target]].role].append(action.target)
    page_ins, page_outs, halves = runs[Role.PAGE_IN], runs[Role.PAGE_OUT], runs[Role.HALF]
    again = list((Counter(page_ins) - Counter(set(page_ins))).elements())
    host = host_memory_of(planned)
    pins_us = len(pins_of(planned)) * planned.prepared.pin_us

    def size(op: int) -> int:
        return graph.tensors[graph.operations[form.ops[op]].outputs[0]].bytes

    def us(ops: Sequence[int]) -> float:
        return sum((form.problem.ops[op].duration_us for op in ops), 0.0)

    return PredictedCost(
        peak_bytes=planned.timeline.peak_bytes,
        time_us=replay.time_us + planned.prepared.views_us + pins_us,
        recomputed_ops=replay.recomputed_ops - len(again),
        recompute_us=max(0.0, replay.recompute_us - us(again)) if again else replay.recompute_us,
        # as the simulator counts them: rounded up
        recomputed_bytes=replay.recomputed_bytes
        - sum(form.problem.tensors[t].bytes for op in again for t in form.problem.ops[op].outputs),
        paged_tensors=len(planned.prepared.resident),
        page_in_bytes=sum(map(size, page_ins)),
        page_out_bytes=sum(map(size, page_outs)),
        page_us=us([*page_ins, *page_outs]),
        halved_tensors=len(planned.prepared.halved),
        halved_bytes=sum(map(size, set(halves))),
        cast_us=us([*halves, *runs[Role.WHOLE]]),
        pins_us=pins_us,
        cache_us=cache_us(planned),
        host_bytes=host.peak_bytes,
        file_bytes=host.file_bytes,
        swapped_tensors=len(swapped),
        swap_out_bytes=replay.swap_out_bytes,
        swap_in_bytes=replay.swap_in_bytes,
        swap_us=replay.swap_us,
    )


def _schedule(form: Formulation, actions: Sequence[Action]) -> tuple[PlannedAction, ...]:
    seen: Counter[tuple[ActionKind, int]] = Counter()
    planned = []
    for action in actions:
        run = action.kind is ActionKind.RUN
        names = form.problem.ops if run else form.problem.tensors
        key = (action.kind, action.target)
        planned.append(
            PlannedAction(kind=action.kind, target=names[action.target].name, copy=seen[key])
        )
        seen[key] += 1
    return tuple(planned)


# -- the file ----------------------------------------------------------------------------------


def plan_to_json(plan: Plan) -> str:
    """Return the text of `plan.json`."""
    return json.dumps(plan, default=fields_of, indent=1, ensure_ascii=False) + "\n"


def plan_digest(plan: Plan) -> str:
    """Return a digest of the plan's decisions: its schedule and its model."""
    core = [plan.version, plan.model_sha256, plan.order_target, plan.ort_optimized]
    core += (
        [] if target_named(plan.device).is_host else [plan.device]
    )  # as in versions without targets
    core += [sorted(plan.resident)] if plan.resident else []
    core += [[plan.micro.runs, plan.micro.dim]] if plan.micro is not None else []
    core += [fields_of(region) for together in plan.split for region in together]
    core += [[plan.cast_saved, sorted(plan.halved)]] if plan.halved else []
    core += [["fuse", plan.fuse, plan.fused_nodes, *plan.unfused]] if plan.fused_nodes else []
    core += [] if plan.pattern else ["no pattern"]
    core += [] if plan.disk is None else ["disk"]
    core += [[a.kind, a.target] for a in plan.schedule]
    return hashlib.sha256(json.dumps(core).encode()).hexdigest()


def read_plan(path: Path) -> Plan:
    """Read a plan file.

    Raises:
        ModelError: not a plan, or of another version; a newer one is named.
    """
    data = read_json(path, dict[str, Any], what="a plan file")
    version = data.get("version")
    if type(version) is int and version > PLAN_VERSION:
        raise ModelError(
            f"{path} is not a plan file that this planner reads: it is of version {shown(version)}, "
            f"newer than {PLAN_VERSION}; update planner, or make the plan again with this one"
        )
    if version != PLAN_VERSION or type(version) is not int:
        raise ModelError(
            f"{path} is not a plan file of version {PLAN_VERSION} (it says {shown(version)})"
        )
    plan = structured(
        data, Plan, Source(where=str(path), what="a valid plan file"), only_known_keys=False
    )
    check_plan(plan, where=str(path))
    return plan


def schedule_of(
    plan: Plan, prepared: Prepared, graph: TrainingGraph
) -> tuple[Formulation, list[Action]]:
    """Return the formulation in the plan's base order, and its actions.

    Raises:
        ModelError: the plan does not fit the model: it names an unknown node or tensor, leaves a node
            out, or its schedule or copies are invalid.
    """
    by_name = {op.name: op.id for op in graph.operations}
    runs = dict.fromkeys(a.target for a in plan.schedule if a.kind is ActionKind.RUN)
    for name in runs:
        if name not in by_name:
            raise ModelError(f"the plan runs node {name!r}, which the model does not have")
    order = [by_name[name] for name in runs]
    folded = [op.id for op in graph.operations if op.is_folded]
    left_out = {op.id for op in graph.operations} - {*order, *folded}
    if left_out:
        name = graph.operations[min(left_out)].name
        raise ModelError(f"the plan never runs node {name!r}")
    form = formulate(
        graph,
        [*order, *folded],
        OpCosts(duration_us=prepared.duration_us),
        granularity=GRANULARITY_BYTES,
        allowed=Allowed(swap_out_bytes_per_s=1.0, swap_in_bytes_per_s=1.0),
    )
    ops = {op.name: i for i, op in enumerate(form.problem.ops)}
    tensors = {t.name: i for i, t in enumerate(form.problem.tensors)}
    actions = []
    for action in plan.schedule:
        names = ops if action.kind is ActionKind.RUN else tensors
        if action.target not in names:
            raise ModelError(f"the plan names {action.target!r}, which the model does not have")
        actions.append(Action(kind=action.kind, target=names[action.target]))
    if plan.copies == "overlapped":
        form = with_paging(form, graph)
    try:
        simulate(form.problem, actions, form.paging)
    except InvalidScheduleError as error:
        raise ModelError(f"the plan cannot be carried out: {error}") from None
    odd = unpaired(form.problem, actions, form.paging, beside=plan.copies == "overlapped")
    if odd is not None:
        raise ModelError(
            f"the plan's copies of {form.problem.tensors[odd].name!r} must each be waited for and "
            "brought back once: an older planner made the plan, or it was edited; make the plan "
            "again"
        )
    return form, actions
