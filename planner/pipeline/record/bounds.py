"""Bounds of sizes that depend on data, in a plan and back; and what does not go with them."""

from __future__ import annotations

from planner.bounding import Bound
from planner.errors import UsageError
from planner.graph.effects import Effect
from planner.pipeline.prepare.prepared import Prepared
from planner.plan.planfile import Plan, SizeBound


def planned_bounds(prepared: Prepared) -> tuple[SizeBound, ...]:
    """The bounds that a plan was made with, as its file has them."""
    shown = {*prepared.shown}
    shapes = (
        SizeBound(name=name, shape=kind.shape, shown=name in shown)
        for name, kind in prepared.bounds.items()
    )
    inner = (
        SizeBound(name=name, bytes=held, shown=name in shown)
        for name, held in prepared.inner_bytes.items()
    )
    return (*shapes, *inner)


def bounds_of_plan(plan: Plan) -> tuple[Bound, ...]:
    """The same as they are asked for, so that nothing has to be run."""
    return tuple(
        Bound(name=bound.name, shape=bound.shape, size_bytes=bound.bytes) for bound in plan.bounds
    )


def check_levers(prepared: Prepared) -> None:
    """Raise UsageError where a lever was asked for that does not go with bodies or bounded sizes."""
    graph, levers = prepared.graph, prepared.request.levers
    node = next((op for op in graph.operations if op.effect is Effect.CONTROL_FLOW), None)
    if node is not None:
        what = f"node {node.name!r} ({node.op_type}), which runs graphs of its own"
    elif prepared.bounds:
        what = f"tensor {next(iter(prepared.bounds))!r}, whose size depends on data"
    else:
        return
    asked = {
        "--split": levers.split != "none",
        "--cast-saved": levers.cast_saved != "none",
        "--micro-batch": levers.micro_batch != "1",
    }
    for option, is_asked in asked.items():
        if is_asked:
            raise UsageError(f"{option} does not go with {what}: leave it out")
