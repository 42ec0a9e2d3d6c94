"""Bounds for sizes that depend on data, to and from a plan file."""

from __future__ import annotations

from planner.pipeline.prepare.prepared import Prepared
from planner.plan.planfile import Plan, SizeBound
from planner.request.bounding import UpperBound


def planned_bounds(prepared: Prepared) -> tuple[SizeBound, ...]:
    """Return the bounds that a plan was made with, in the form of its file."""
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
    """Return the plan's bounds in the form of a request; with them no run of the model is needed."""
    return tuple(
        UpperBound(name=bound.name, shape=bound.shape, size_bytes=bound.bytes)
        for bound in plan.bounds
    )
