"""The list of all levers, and operations on all of them."""

from __future__ import annotations

from typing import Any

from planner.errors import UsageError
from planner.graph.effects import Effect
from planner.pipeline.levers.chunk.chunks import Chunks
from planner.pipeline.levers.fuse.fusing import Fusing
from planner.pipeline.levers.half.halves import Halves
from planner.pipeline.levers.host.hosting import HOSTING
from planner.pipeline.levers.lever import Lever
from planner.pipeline.prepare.prepared import Prepared
from planner.plan.planfile import Plan

LEVERS: tuple[Lever, ...] = (Fusing(), Halves(), Chunks(), HOSTING)
"""All levers in the order in which they change a model.

Each is chosen by the plans that the later ones allow.
"""


def check_levers(prepared: Prepared) -> None:
    """Raise UsageError if the request asks for a lever that the model does not support."""
    asked = prepared.request.levers
    options = [lever.option for lever in LEVERS if lever.is_asked(asked) and lever.rewrites]
    options += ["--micro-batch"] if asked.micro_batch != "1" else []
    graph = prepared.graph
    node = next((op for op in graph.operations if op.effect is Effect.CONTROL_FLOW), None)
    if options and (node is not None or prepared.bounds):
        what = f"tensor {next(iter(prepared.bounds), '')!r}, whose size depends on data"
        if node is not None:
            what = f"node {node.name!r} ({node.op_type}), which runs graphs of its own"
        raise UsageError(f"{options[0]} does not go with {what}: leave it out")
    for lever in LEVERS:
        if lever.is_asked(asked):
            lever.supports(prepared)


def may_quicken(prepared: Prepared) -> bool:
    """Tell whether the request asks for a lever that can speed up a model that fits as it is."""
    return any(lever.quickens and lever.is_asked(prepared.request.levers) for lever in LEVERS)


def levers_for(prepared: Prepared) -> tuple[tuple[Lever, ...], Prepared]:
    """Return the levers that a plan of the model may use, and the model with notes on the others."""
    found: list[Lever] = []
    for lever in LEVERS:
        if lever.is_asked(prepared.request.levers):
            why = lever.supports(prepared)
            if why is None:
                found.append(lever)
            else:
                prepared = prepared.noted(why)
    return tuple(found), prepared


def recorded(prepared: Prepared) -> dict[str, Any]:
    """Return the fields of the plan file that say how the levers were used."""
    return {name: value for lever in LEVERS for name, value in lever.record(prepared).items()}


def replayed(prepared: Prepared, plan: Plan) -> Prepared:
    """Change the model as a plan file says.

    Raises:
        ModelError: it cannot be changed so.
    """
    for lever in LEVERS:
        prepared = lever.replay(prepared, plan)
    return prepared


def lever_notes(prepared: Prepared) -> tuple[str, ...]:
    """Return the assumptions that a plan's levers add."""
    return tuple(note for lever in LEVERS for note in lever.note(prepared))


def bound_classes(prepared: Prepared) -> tuple[str, ...]:
    """Describe the plans for which a bound holds, one text per lever."""
    return tuple(said for lever in reversed(LEVERS) if (said := lever.bound_class(prepared)))
