"""Lower a plan and analyse the rewritten model like any other, as ONNX Runtime will load it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from planner import clock
from planner.formulate import Formulation
from planner.graph.model import OpId, TrainingGraph
from planner.graph.schedule import default_order, priority_order
from planner.lower.rewrite import Rewritten, Sessions, rewrite
from planner.onnxio.load import checked_types
from planner.pipeline.prepare.graphs import typed_graph
from planner.pipeline.prepare.prepared import Prepared
from planner.pipeline.target.everywhere import devices_here
from planner.plan.problem import Action
from planner.runtime.optimizers.shapes import unsized_copies

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBack:
    """A rewritten model with its graph and order; its `planned_order` has the order's names."""

    rewritten: Rewritten
    graph: TrainingGraph
    order: tuple[OpId, ...]


def lowered_as(
    read: Callable[[Rewritten], T],
    prepared: Prepared,
    form: Formulation,
    actions: Sequence[Action],
    *,
    order_target: str,
) -> T:
    """Lower a schedule, pin the nodes that ONNX Runtime would undo, and return `read`'s result.

    Args:
        read: analyses a rewritten model, while ONNX Runtime is asked; it may first get models with
            too few pins.
        order_target: see `read_back`.

    Raises:
        TakenError: ONNX Runtime's optimizers take nodes of it away, however they are pinned.
    """
    from planner.runtime.optimizers.fusion_pins import pinned

    clock.spend(clock.LOWERED_S * len(prepared.graph.operations))

    def lower(pins: frozenset[str]) -> Rewritten:
        return rewrite(
            prepared.model,
            prepared.graph,
            form,
            actions,
            pinned=pins,
            sessions=Sessions(target=prepared.target, order=order_target),
        )

    return pinned(
        lower,
        read,
        prepared.loaded,
        enabled=prepared.ort_optimized,
        targets=(prepared.target, *devices_here(prepared.target)),
    )


def read_back(prepared: Prepared, rewritten: Rewritten, *, order_target: str) -> ReadBack:
    """Return a rewritten model with its graph and order.

    Args:
        order_target: "default" or "priority": the session option that the file is written for.

    Raises:
        AssertionError: ONNX Runtime would run it in another order than the planned one.
    """
    # equals the result of type inference: tests/lower/test_types.py
    types = checked_types(rewritten.model, {**prepared.types, **rewritten.types})
    placement = prepared.placement
    if placement is not None:  # no node on the CPU is recomputed
        placement = replace(placement, on_cpu=placement.on_cpu | rewritten.on_cpu)
    unsized = unsized_copies(prepared.graph, rewritten.model, types, rewritten.like)
    graph = typed_graph(rewritten.model, types, placement=placement, unsized=unsized)
    graph = _with_categories(graph, prepared.graph, rewritten.like)
    order = priority_order(graph) if order_target == "priority" else default_order(graph)
    names = tuple(graph.operations[op].name for op in order)
    if order_target == "default" and names != rewritten.planned_order:
        raise AssertionError("the rewritten file's default order is not the planned one")
    return ReadBack(rewritten=replace(rewritten, planned_order=names), graph=graph, order=order)


def _with_categories(
    graph: TrainingGraph, original: TrainingGraph, like: Mapping[str, str]
) -> TrainingGraph:
    """Return the graph with the categories of the original's tensors.

    The readers of a copy do not determine its category.
    """
    known = {t.name: t.category for t in original.tensors}
    tensors = list(graph.tensors)
    for t in graph.tensors:
        category = known.get(like.get(t.name, t.name), t.category)
        if category is not t.category:
            tensors[t.id] = replace(t, category=category)
    return replace(graph, tensors=tuple(tensors))
