"""The rewritten model: lowered, and analysed like any other: what ONNX Runtime will make of the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from planner import clock
from planner.formulate import Formulation
from planner.graph.model import OpId, Placement, TrainingGraph
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
    """A rewritten model, whose `planned_order` is the order below, by name; its graph and order."""

    rewritten: Rewritten
    graph: TrainingGraph
    order: tuple[OpId, ...]


def lowered(
    prepared: Prepared, form: Formulation, actions: Sequence[Action], *, order_target: str
) -> Rewritten:
    """The rewritten model of a schedule, with the nodes pinned that ONNX Runtime would undo; see
    `lowered_as`."""
    return lowered_as(
        lambda rewritten: rewritten, prepared, form, actions, order_target=order_target
    )


def lowered_as(
    read: Callable[[Rewritten], T],
    prepared: Prepared,
    form: Formulation,
    actions: Sequence[Action],
    *,
    order_target: str,
) -> T:
    """What is read of a schedule's rewritten model, with the nodes pinned that ONNX Runtime would undo.

    Args:
        read: at work while ONNX Runtime is asked; it may be told of models with too few pins first.
        order_target: as for `read_back`.

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
    """Graph and order of a rewritten model.

    Args:
        order_target: "default" or "priority": the session option that the file is written for.

    Raises:
        AssertionError: ONNX Runtime would run it in another order than the planned one.
    """
    # what inference would find: tests/lower/test_types.py
    types = checked_types(rewritten.model, {**prepared.types, **rewritten.types})
    placement = _placement(prepared.placement, rewritten)
    unsized = unsized_copies(prepared.graph, rewritten.model, types, rewritten.like)
    graph = typed_graph(rewritten.model, types, placement=placement, unsized=unsized)
    graph = _with_categories(graph, prepared.graph, rewritten.like)
    order = priority_order(graph) if order_target == "priority" else default_order(graph)
    names = tuple(graph.operations[op].name for op in order)
    if order_target == "default" and names != rewritten.planned_order:
        raise AssertionError("the rewritten file's default order is not the planned one")
    return ReadBack(rewritten=replace(rewritten, planned_order=names), graph=graph, order=order)


def _placement(original: Placement | None, rewritten: Rewritten) -> Placement | None:
    """Where the rewritten model's nodes run: nothing that runs on the CPU is run again."""
    if original is None:
        return None
    return replace(original, on_cpu=original.on_cpu | rewritten.on_cpu)


def _with_categories(
    graph: TrainingGraph, original: TrainingGraph, like: Mapping[str, str]
) -> TrainingGraph:
    """The graph, its tensors of the categories of the original's: where a copy is read says nothing
    of what it is."""
    known = {t.name: t.category for t in original.tensors}
    tensors = list(graph.tensors)
    for t in graph.tensors:
        category = known.get(like.get(t.name, t.name), t.category)
        if category is not t.category:
            tensors[t.id] = replace(t, category=category)
    return replace(graph, tensors=tuple(tensors))
