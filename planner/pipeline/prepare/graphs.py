"""Build the training graph of a sized model, as the installed ONNX Runtime runs it."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

import onnx_ir as ir

from planner.graph.build import build_graph
from planner.graph.model import Placement, TrainingGraph
from planner.lower.optional_input import has_optional_input
from planner.onnxio.load import ValueType, value_types
from planner.runtime.build import is_training_build
from planner.runtime.memory.within import with_bodies
from planner.runtime.optimizers.shapes import runtime_types, unsized_values
from planner.runtime.swapping import needs_of_graph


def analysed_graph(
    model: ir.Model,
    dims: Mapping[str, int],
    *,
    known: Mapping[str, ValueType] | None = None,
    placement: Placement | None = None,
) -> TrainingGraph:
    """Build the training graph of `model` with `dims` bound.

    Args:
        placement: the provider of each node; None on a target with one memory.
    """
    types = value_types(model, dims, known=known, fallback=runtime_types)
    return typed_graph(model, types, placement=placement)


def typed_graph(
    model: ir.Model,
    types: Mapping[str, ValueType],
    *,
    placement: Placement | None = None,
    unsized: Set[str] | None = None,
) -> TrainingGraph:
    """Build the training graph of `model`, given the types of its values.

    Args:
        placement: as for `analysed_graph`.
        unsized: values whose shape ONNX Runtime learns only at run time; None to ask it.
    """
    if unsized is None:
        unsized = unsized_values(model, types)
    graph = build_graph(model, types, unsized=unsized, placement=placement)
    return replace(
        with_bodies(graph, model, types),
        shapes_follow=is_training_build(),
        # the library turns the memory pattern off
        pattern=not has_optional_input(model) and not needs_of_graph(model),
    )
