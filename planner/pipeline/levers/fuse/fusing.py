"""Fuse element operations, if that takes less time or makes a plan fit the budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import onnx_ir as ir

from planner.choices import FuseMode, least_exact
from planner.cost.model import fused_us
from planner.errors import ModelError, PlannerError, UsageError
from planner.files.temporary import temporary_folder
from planner.fuse.rewrite import Fused, Members, with_fusion
from planner.graph.model import Operation, TrainingGraph
from planner.graph.rules import FUSED_DOMAIN
from planner.pipeline.levers.lever import Case, Lever, Rung, as_before
from planner.pipeline.levers.policy import POLICY
from planner.pipeline.prepare.costing import MEASURED
from planner.pipeline.prepare.graphs import typed_graph
from planner.pipeline.prepare.prepared import Prepared
from planner.pipeline.prepare.timelines import workspace_of
from planner.pipeline.solve.planned import Planned
from planner.plan.planfile import Plan
from planner.request import Levers
from planner.targets import titles
from planner.targets.keys import NEEDS_FUSED, NEEDS_KEY
from planner.units import format_bytes


class Fusing(Lever):
    """`--fuse`."""

    option = "--fuse"
    shares = POLICY.fuse
    quickens = True
    said = "planning without fused operations"

    def is_asked(self, levers: Levers) -> bool:
        return levers.fuse != "none"

    def supports(self, prepared: Prepared) -> str | None:
        # a dim that is 1 here and not elsewhere would change shapes inside a group
        if not prepared.loaded.dims:
            return None
        mode = prepared.request.levers.fuse
        return (
            f"nothing is fused (--fuse {mode}): open dims, whose sizes may differ when the file "
            "runs, are not supported yet"
        )

    def rungs(self, case: Case) -> Iterator[Rung]:
        prepared, mode = case.prepared, case.prepared.request.levers.fuse
        made = _made(prepared, mode)
        if made is None:
            return
        case.means.progress("planning with operations fused")
        times = case.means.measured_us
        if not times:
            times.update(_measured_us(prepared, made))
        slower = _slower(prepared, made, times)
        fewer = _made(prepared, mode, slower) if slower else made
        if fewer is not None:
            yield Rung(prepared=_changed(prepared, mode, fewer, times, slower))
        if fewer is not made and case.plain is None:  # what is slower may still hold less
            yield Rung(prepared=_changed(prepared, mode, made, times))

    def prefers(self, case: Case, made: Planned, plain: Planned) -> bool:
        return made.is_better(plain)

    def record(self, prepared: Prepared) -> dict[str, Any]:
        return {
            "fuse": prepared.fuse,
            "fused_nodes": fused_nodes(prepared),
            "unfused": tuple(sorted(prepared.unfused)),
        }

    def replay(self, prepared: Prepared, plan: Plan) -> Prepared:
        if plan.fuse == "none":
            return prepared
        found = fused(prepared, plan.fuse, without=frozenset(plan.unfused))
        count = 0 if found is None else fused_nodes(found)
        if found is None or count != plan.fused_nodes:
            raise ModelError(
                f"the plan has {plan.fused_nodes} fused nodes, and this model would have {count}: "
                "it was edited by hand, or made by another version of planner; make the plan "
                "again"
            )
        return found

    def note(self, prepared: Prepared) -> tuple[str, ...]:
        mode = prepared.request.levers.fuse
        if prepared.fuse != "none" or mode == "none" or self.supports(prepared):
            return ()
        return (
            f"nothing is fused (--fuse {mode}): no two element operations can run as one, or no plan "
            "with them fused takes less time",
        )

    def bound_class(self, prepared: Prepared) -> str:
        return "with the same operations fused" if prepared.fuse != "none" else ""


def fused(
    prepared: Prepared, mode: FuseMode, without: frozenset[str] = frozenset()
) -> Prepared | None:
    """Fuse groups of element operations, with estimated times; None if there are none.

    Args:
        without: the first operations of groups that stay as they are.

    Raises:
        UsageError: the target has no kernel for fused nodes.
    """
    made = _made(prepared, mode, without)
    return None if made is None else _changed(prepared, mode, made, {}, without)


def _made(
    prepared: Prepared, mode: FuseMode, without: frozenset[str] = frozenset()
) -> Fused | None:
    target = prepared.target
    if target.fused is None:
        raise UsageError(
            f"--fuse {mode} is for {titles(lambda row: row.fused is not None)}, not for {target.title}"
        )
    return with_fusion(
        prepared.model,
        prepared.graph,
        prepared.order,
        only_exact=mode == "exact",
        kernels=target.fused,
        without=without,
    )


def _changed(
    prepared: Prepared,
    mode: FuseMode,
    made: Fused,
    times_us: Mapping[Members, float],
    without: frozenset[str] = frozenset(),
) -> Prepared:
    """Return the model with groups fused, and the times of nodes whose members have one."""
    target, before = prepared.target, prepared.graph
    assert target.fused is not None
    barred = {op.name for op in before.operations if op.barred is not None}
    like = {
        name: next((op for op in group if op in barred), group[0])
        for name, group in made.members.items()
    }
    graph = typed_graph(made.model, prepared.types, placement=prepared.placement)
    graph = as_before(graph, before, like_node=like)
    ids = {op.name: op.id for op in graph.operations}
    note = f"{_note(graph, before, made.members)}; {target.fused.remark}"
    return replace(
        prepared,
        model=made.model,
        graph=replace(graph, assumptions=(*before.assumptions, note)),
        order=tuple(ids[name] for name in made.order),
        workspace_bytes=workspace_of(graph, target),
        duration_us=_durations_us(prepared, graph, made, times_us),
        numbers=prepared.numbers if mode == "exact" else least_exact(prepared.numbers, "rounding"),
        fuse=mode,
        unfused=without,
    )


def fused_nodes(prepared: Prepared) -> int:
    """Count the fused nodes."""
    return sum(op.domain == FUSED_DOMAIN for op in prepared.graph.operations)


def _measured_us(prepared: Prepared, made: Fused) -> dict[Members, float]:
    """Return the microseconds of fused nodes by their members, measured by one run of about a second.

    They are scaled to the time when the others were measured. Empty if the others are not from this
    machine's CPU, or the model cannot be run.
    """
    from planner.processes.children import quiet
    from planner.runtime.feeds.inputs import make_inputs
    from planner.runtime.op_times import op_times
    from planner.runtime.options import Opening, default_threads
    from planner.runtime.profiled import may_copy

    is_here = prepared.target.is_host and prepared.cost_source.startswith(MEASURED)
    if not is_here or not may_copy(made.model, prepared.loaded):
        return {}
    request, loaded = prepared.request, prepared.loaded
    opening = Opening(level="disabled", threads=default_threads())
    try:
        feeds, _ = make_inputs(loaded.path, request.seed, loaded.dims, request.inputs)
        with temporary_folder() as folder, quiet():
            path = folder / "fused.onnx"
            copy = made.model.clone()
            copy.metadata_props[NEEDS_KEY] = NEEDS_FUSED
            ir.save(copy, path)
            found = op_times(path, feeds, opening, nodes=len(list(copy.graph))).kernel_us
    except PlannerError:
        return {}
    inside = {name for group in made.members.values() for name in group}
    alone = (op for op in prepared.graph.operations if op.name not in inside)
    shared = [op for op in alone if found.get(op.name, 0.0) > 0]
    now_us = sum(found[op.name] for op in shared)
    then_us = sum(prepared.duration_us[op.id] for op in shared)
    if not now_us or not then_us:
        return {}
    members = made.members.items()
    return {group: found[name] * then_us / now_us for name, group in members if name in found}


def _slower(prepared: Prepared, made: Fused, times_us: Mapping[Members, float]) -> frozenset[str]:
    """Return the first operations of groups that take longer as one node."""
    alone_us = {op.name: prepared.duration_us[op.id] for op in prepared.graph.operations}
    return frozenset(
        group[0]
        for group, us in times_us.items()
        if us > POLICY.times_unfused * sum(alone_us[name] for name in group)
    )


def _durations_us(
    prepared: Prepared, graph: TrainingGraph, made: Fused, times_us: Mapping[Members, float]
) -> tuple[float, ...]:
    """Return the microseconds by OpId: unchanged, or for fused nodes measured or estimated."""
    before, members = prepared.graph, made.members
    by_name = {op.name: op for op in before.operations}

    def of(op: Operation) -> float:
        group = members.get(op.name)
        if group is None:
            return prepared.duration_us[by_name[op.name].id]
        if group in times_us:
            return times_us[group]
        moved = sum(graph.tensors[t].bytes for t in (*op.inputs, *op.outputs))
        does = [by_name[name] for name in group]
        return fused_us(before, does, prepared.duration_us, moved, prepared.hardware)

    return tuple(map(of, graph.operations))


def _note(
    graph: TrainingGraph, before: TrainingGraph, members: Mapping[str, tuple[str, ...]]
) -> str:
    """Return a note on the fused operations for a plan's assumptions."""

    def moved(of: TrainingGraph) -> int:
        ops = (op for op in of.operations if not op.is_view)
        return sum(of.tensors[t].bytes for op in ops for t in (*op.inputs, *op.outputs))

    count = len({name for group in members.values() for name in group})
    return (
        f"{count:,} operations run as {len(members):,} nodes of planner.fused, for which sessions load "
        f"planner's native library: {format_bytes(moved(graph))} are read and written in a step, of "
        f"{format_bytes(moved(before))}"
    )
