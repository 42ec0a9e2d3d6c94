"""Fuse element operations, if that takes less time or makes a plan fit the budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from planner.choices import FuseMode, least_exact
from planner.cost.model import fused_us
from planner.errors import ModelError, UsageError
from planner.fuse.rewrite import Fused, with_fusion
from planner.graph.model import Operation, TrainingGraph
from planner.graph.rules import FUSED_DOMAIN
from planner.pipeline.levers.changed import as_before
from planner.pipeline.levers.fuse.fused_times import measured_us
from planner.pipeline.levers.lever import Case, Lever, Rung
from planner.pipeline.levers.policy import POLICY
from planner.pipeline.prepare.graphs import typed_graph
from planner.pipeline.prepare.prepared import Prepared
from planner.pipeline.prepare.timelines import workspace_of
from planner.pipeline.solve.planned import Planned
from planner.plan.planfile import Plan
from planner.request import Levers
from planner.targets import titles
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
        found = fused(case.prepared, case.prepared.request.levers.fuse, measure=True)
        if found is not None:
            case.means.progress("planning with operations fused")
            yield Rung(prepared=found)

    def prefers(self, case: Case, made: Planned, plain: Planned) -> bool:
        return made.is_better(plain)

    def record(self, prepared: Prepared) -> dict[str, Any]:
        return {"fuse": prepared.fuse, "fused_nodes": fused_nodes(prepared)}

    def replay(self, prepared: Prepared, plan: Plan) -> Prepared:
        if plan.fuse == "none":
            return prepared
        found = fused(prepared, plan.fuse)
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


def fused(prepared: Prepared, mode: FuseMode, *, measure: bool = False) -> Prepared | None:
    """Fuse groups of element operations; None if there are none.

    Args:
        measure: measure the times of fused nodes, too, if the others are measured.

    Raises:
        UsageError: the target has no kernel for fused nodes.
    """
    target = prepared.target
    if target.fused is None:
        raise UsageError(
            f"--fuse {mode} is for {titles(lambda row: row.fused is not None)}, not for {target.title}"
        )
    before = prepared.graph
    made = with_fusion(
        prepared.model,
        before,
        prepared.order,
        only_exact=mode == "exact",
        kernels=target.fused,
    )
    if made is None:
        return None
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
        duration_us=_durations_us(prepared, graph, made, measure=measure),
        numbers=prepared.numbers if mode == "exact" else least_exact(prepared.numbers, "rounding"),
        fuse=mode,
    )


def fused_nodes(prepared: Prepared) -> int:
    """Count the fused nodes."""
    return sum(op.domain == FUSED_DOMAIN for op in prepared.graph.operations)


def _durations_us(
    prepared: Prepared, graph: TrainingGraph, made: Fused, *, measure: bool
) -> tuple[float, ...]:
    """Return the microseconds by OpId: unchanged, or for fused nodes measured or estimated."""
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
        does = [by_name[name] for name in members[op.name]]
        return fused_us(before, does, prepared.duration_us, moved, prepared.hardware)

    return tuple(
        known[op.name] if op.name in known else found.get(op.name) or of(op)
        for op in graph.operations
    )


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
