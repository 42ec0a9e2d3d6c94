"""Levers ruled out while a plan was made: in the graph, in the plan file, and in words."""

from __future__ import annotations

from collections.abc import Sequence

from planner.errors import ModelError
from planner.graph.model import OpId, TensorId, TrainingGraph
from planner.graph.reasons import WhyOnce, WhyStay
from planner.plan.planfile import Barred
from planner.units import counted


def barred_in(graph: TrainingGraph) -> tuple[Barred, ...]:
    """Return the levers that planning barred in a graph, operations first.

    Bars that follow from the request are left out.
    """
    return (
        *(
            Barred(action="recompute", name=op.name, reason_code=op.barred.value)
            for op in graph.operations
            if op.barred is WhyOnce.TAKEN
        ),
        *(
            Barred(action="swap", name=t.name, reason_code=t.barred.value)
            for t in graph.tensors
            if t.barred is WhyStay.TAKEN
        ),
    )


def with_barred(graph: TrainingGraph, barred: Sequence[Barred], *, where: str) -> TrainingGraph:
    """Restore the bars of a plan in its graph.

    Args:
        where: the plan file, for the error.

    Raises:
        ModelError: a bar names nothing in the graph, or its reason is unknown.
    """
    ops = {op.name: op.id for op in graph.operations}
    tensors = {t.name: t.id for t in graph.tensors}
    stay: dict[TensorId, WhyStay] = {}
    once: dict[OpId, WhyOnce] = {}
    try:
        for bar in barred:
            if bar.action == "recompute":
                once[ops[bar.name]] = WhyOnce(bar.reason_code)
            else:
                stay[tensors[bar.name]] = WhyStay(bar.reason_code)
    except (KeyError, ValueError) as error:
        raise ModelError(f"{where} bars what is not known here: {error}") from None
    return graph.with_bars(stay, once)


def barred_note(barred: Sequence[Barred]) -> tuple[str, ...]:
    """Return a note on the bars for a plan's assumptions."""
    said = []
    for action, noun, done in (
        ("recompute", "operation", "not run again, first"),
        ("swap", "tensor", "not copied, first"),
    ):
        names = [bar.name for bar in barred if bar.action == action]
        if names:
            said.append(f"{counted(len(names), noun, 'are')} {done} {names[0]!r}")
    return (f"{', and '.join(said)}: {WhyOnce.TAKEN.sentence}",) if said else ()
