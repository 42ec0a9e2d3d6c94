"""Properties that a changed graph keeps from the one before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from planner.graph.model import TrainingGraph

_T = TypeVar("_T")


def as_before(
    graph: TrainingGraph,
    before: TrainingGraph,
    like_tensor: Mapping[str, str] | None = None,
    like_node: Mapping[str, str] | None = None,
) -> TrainingGraph:
    """Return the graph with the categories and bars of the one before it.

    Args:
        like_tensor, like_node: the old name for each new one, whose properties it gets; others keep
            their own.
    """
    known = {t.name: t for t in before.tensors}
    once = {op.name: op for op in before.operations}
    tensors = tuple(
        t
        if (old := _of(known, t.name, like_tensor)) is None
        else replace(t, category=old.category, barred=old.barred)
        for t in graph.tensors
    )
    operations = tuple(
        op if (old := _of(once, op.name, like_node)) is None else replace(op, barred=old.barred)
        for op in graph.operations
    )
    return replace(graph, tensors=tensors, operations=operations)


def _of(known: Mapping[str, _T], name: str, like: Mapping[str, str] | None) -> _T | None:
    """Return the entry of a name, or of the name that it resembles."""
    return known.get(name) or known.get((like or {}).get(name, ""))
