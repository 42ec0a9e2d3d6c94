"""Bounds of sizes that depend on data, in a plan and back."""

from __future__ import annotations

from planner.pipeline.prepare.prepared import Prepared
from planner.plan.planfile import Plan, SizeBound
from planner.request.bounding import UpperBound


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


def bounds_of_plan(plan: Plan) -> tuple[UpperBound, ...]:
    """The same as they are asked for, so that nothing has to be run."""
    return tuple(
        UpperBound(name=bound.name, shape=bound.shape, size_bytes=bound.bytes)
        for bound in plan.bounds
    )
