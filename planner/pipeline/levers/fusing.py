"""The model with element operations fused, where that takes less time or is what fits the budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from planner.cost.model import fused_us
from planner.errors import InfeasibleBudgetError, ModelError, UsageError
from planner.exactness import least_exact
from planner.fuse.rewrite import Fused, Members, with_fusion
from planner.fusing import FuseMode
from planner.graph.model import Operation, TrainingGraph
from planner.graph.rules import FUSED_DOMAIN
from planner.pipeline.levers.fused_times import measured_us
from planner.pipeline.prepare.graphs import typed_graph
from planner.pipeline.prepare.prepared import Prepared, Progress
from planner.pipeline.prepare.timelines import workspace_of
from planner.pipeline.solve.planned import Planned
from planner.plan.planfile import Plan
from planner.targets import CPU
from planner.units import format_bytes

Made = tuple[Prepared, Planned]
PlanFor = Callable[[Prepared, float], Made]
"""Plans a model: (the model, share of the time limit)."""

_FUSED = 0.6
"""Share of the time limit for the fused model, where the other is planned, too."""


def fused(prepared: Prepared, mode: FuseMode, *, measure: bool = False) -> Prepared | None:
    """The same model with groups of element operations fused; None where there is none.

    Args:
        measure: the times of fused nodes, too, where those of the others are measured.

    Raises:
        UsageError: the target has no kernel for what is fused.
    """
    if prepared.target.name != CPU.name:
        raise UsageError(f"--fuse {mode} is for the CPU alone, not for {prepared.target.title}")
    before = prepared.graph
    made = with_fusion(prepared.model, before, prepared.order, only_exact=mode == "exact")
    if made is None:
        return None
    graph = _as_before(typed_graph(made.model, prepared.types), before, made.members)
    ids = {op.name: op.id for op in graph.operations}
    return replace(
        prepared,
        model=made.model,
        graph=replace(graph, assumptions=(*before.assumptions, _note(graph, before, made.members))),
        order=tuple(ids[name] for name in made.order),
        workspace_bytes=workspace_of(graph, prepared.target),
        duration_us=_durations_us(prepared, graph, made, measure=measure),
        numbers=prepared.numbers if mode == "exact" else least_exact(prepared.numbers, "rounding"),
        fuse=mode,
    )


def plan_fused(prepared: Prepared, progress: Progress, plan: PlanFor) -> Made:
    """The plan of the fused model where it is the better one, or else that of the model as it is.

    Args:
        plan: makes the best plan for one model.

    Raises:
        InfeasibleBudgetError: no plan fits, fused or not.
    """
    mode = prepared.request.levers.fuse
    if mode == "none":
        return plan(prepared, 1.0)

    def unfused(why: str, share: float = 1.0) -> Made:
        return plan(_noted(prepared, f"nothing is fused (--fuse {mode}): {why}"), share)

    if prepared.loaded.dims:
        # a dim that is 1 here and not elsewhere would give what is inside of a group another shape
        return unfused("not yet with open dims, whose sizes may be others when the file runs")
    other = fused(prepared, mode, measure=True)
    if other is None:
        return unfused("no two element operations of the model can run as one")
    progress("planning with operations fused")
    try:
        made = plan(other, _FUSED)
    except InfeasibleBudgetError:
        progress("planning without fused operations: with them no plan fits")
        return unfused("with fused operations no plan fits")
    if made[1].solved.is_interrupted or made[1].time_us <= sum(prepared.duration_us):
        return made  # no plan of the model as it is takes less
    progress("planning without fused operations")
    try:
        plain = unfused("that takes more time", 1 - _FUSED)
    except InfeasibleBudgetError:
        return made
    return plain if plain[1].is_better(made[1]) else made


def fused_as_planned(prepared: Prepared, plan: Plan) -> Prepared:
    """The model with what a plan file has fused.

    Raises:
        ModelError: other operations would be fused.
    """
    if plan.fuse == "none":
        return prepared
    found = fused(prepared, plan.fuse)
    count = 0 if found is None else fused_nodes(found)
    if found is None or count != plan.fused_nodes:
        raise ModelError(
            f"the plan has {plan.fused_nodes} fused nodes, and in this model there would be {count}: it "
            "was edited by hand, or made by another version of planner; make the plan again"
        )
    return found


def fused_nodes(prepared: Prepared) -> int:
    """How many nodes are fused."""
    return sum(op.domain == FUSED_DOMAIN for op in prepared.graph.operations)


def _noted(prepared: Prepared, text: str) -> Prepared:
    graph = prepared.graph
    return replace(prepared, graph=replace(graph, assumptions=(*graph.assumptions, text)))


def _as_before(
    graph: TrainingGraph, before: TrainingGraph, members: Mapping[str, Members]
) -> TrainingGraph:
    """Categories and bars as they were; a node is barred where any of its operations was."""
    known = {t.name: (t.category, t.barred) for t in before.tensors}
    barred = {op.name: op.barred for op in before.operations if op.barred is not None}
    once = {
        name: next((barred[op] for op in group.operations if op in barred), None)
        for name, group in members.items()
    }
    tensors = tuple(
        replace(t, category=known[t.name][0], barred=known[t.name][1]) for t in graph.tensors
    )
    operations = tuple(
        replace(op, barred=once[op.name] if op.name in once else barred.get(op.name))
        for op in graph.operations
    )
    return replace(graph, tensors=tensors, operations=operations)


def _durations_us(
    prepared: Prepared, graph: TrainingGraph, made: Fused, *, measure: bool
) -> tuple[float, ...]:
    """Microseconds by OpId: as they were; of fused nodes as measured, or what is left of their
    operations'."""
    before, members = prepared.graph, made.members
    by_name = {op.name: op for op in before.operations}
    known = {
        op.name: prepared.duration_us[by_name[op.name].id]
        for op in graph.operations
        if op.name not in members
    }
    found = measured_us(prepared, made.model, known, members.keys()) if measure else {}

    def of(op: Operation) -> float:
        moved = sum(graph.tensors[t].bytes for t in (*op.inputs, *op.outputs))
        does = [by_name[name] for name in members[op.name].operations]
        return fused_us(before, does, prepared.duration_us, moved, prepared.hardware)

    return tuple(
        known[op.name] if op.name in known else found.get(op.name) or of(op)
        for op in graph.operations
    )


def _note(graph: TrainingGraph, before: TrainingGraph, members: Mapping[str, Members]) -> str:
    """What was fused, for a plan's assumptions."""

    def moved(of: TrainingGraph) -> int:
        ops = (op for op in of.operations if not op.is_view)
        return sum(of.tensors[t].bytes for op in ops for t in (*op.inputs, *op.outputs))

    count = len({name for group in members.values() for name in group.operations})
    return (
        f"{count:,} operations run as {len(members):,} nodes of planner.fused, for which sessions load "
        f"planner's native library: {format_bytes(moved(graph))} are read and written in a step, of "
        f"{format_bytes(moved(before))}; blocks of their values take some 100 KiB for each thread besides"
    )
