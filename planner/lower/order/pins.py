"""Estimate how many nodes pin an order, before anything is planned in it."""

from __future__ import annotations

from collections.abc import Sequence

from planner.graph.model import OpId, TrainingGraph
from planner.graph.schedule import parents_of, with_folded
from planner.lower.order.realize import UnanchoredError, realize
from planner.lower.order.riders import carried


def pins_needed(graph: TrainingGraph, order: Sequence[OpId]) -> int:
    """Estimate the anchors of a file whose default order is `order`; 0 for ONNX Runtime's own.

    A plan in it needs more, for its actions.

    Args:
        order: order of the planned operations, without views.
    """
    whole = with_folded(graph, order)
    place = {op: step for step, op in enumerate(whole)}
    of = parents_of(graph)
    parents = [sorted({place[p] for p in of[op]}) for op in whole]
    bound = carried(parents, [graph.operations[op].is_view for op in whole])
    rank = [whole[step] for step in bound.carriers]
    try:
        return len(realize(bound.parents, rank=rank, quickly=True).anchors)
    except UnanchoredError:
        return len(whole)
