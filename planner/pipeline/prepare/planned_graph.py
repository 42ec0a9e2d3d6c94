"""The graph to plan: the target's, with planner's changes before planning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from planner.cost.hardware import Hardware
from planner.cost.model import durations_of_changed
from planner.errors import UsageError
from planner.graph.model import Placement, TrainingGraph
from planner.lower.optional_input import (
    has_optional_input,
    why_none_optional,
    with_optional_input,
)
from planner.lower.unfold import unfold
from planner.onnxio.bodies import has_bodies
from planner.onnxio.load import ValueType
from planner.pipeline.prepare.graphs import typed_graph
from planner.pipeline.prepare.optimized import Optimized
from planner.pipeline.prepare.sizing import Sizes
from planner.targets import Target
from planner.units import counted, format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGraph:
    """A model, its graph, and the placement of its nodes.

    Attributes:
        notes: remarks on the changes, one sentence each.
    """

    model: ir.Model
    types: Mapping[str, ValueType]
    graph: TrainingGraph
    placement: Placement | None
    notes: tuple[str, ...] = ()

    def durations_us(
        self, original: TrainingGraph, duration_us: tuple[float, ...], hardware: Hardware
    ) -> tuple[float, ...]:
        """Return the microseconds of each operation, given those of the original's."""
        if self.graph is original:
            return duration_us
        return durations_of_changed(self.graph, original, duration_us, hardware)


def planned_graph(
    found: Optimized, plain: PlannedGraph, original: TrainingGraph, kinds: Sizes, target: Target
) -> PlannedGraph:
    """Return `plain` with folded constants as nodes again and, on request, an optional input.

    Args:
        plain: the target's graph.
        original: the graph that ONNX Runtime runs for the file.

    Raises:
        UsageError: no input can be one that may be left out.
    """
    made = _unfolded(found, plain, original, kinds, target)
    if kinds.request.levers.pattern or has_optional_input(made.model):
        return made
    if not target.optional_inputs:
        why = f"{target.title} has no kernel for OptionalGetElement"
    else:
        why = why_none_optional(made.model)
    if why is not None:
        raise UsageError(
            f"--no-pattern: {why}; leave it out, and open sessions as planner.session_options does"
        )
    model, types, name = with_optional_input(made.model, made.types)
    note = (
        f"the type of input {name!r} is optional (--no-pattern), which turns ONNX Runtime's "
        "memory pattern off; feed it as before"
    )
    return replace(
        made,
        model=model,
        types=types,
        graph=typed_graph(model, types, placement=made.placement),
        notes=(*made.notes, note),
    )


def _unfolded(
    found: Optimized, plain: PlannedGraph, original: TrainingGraph, kinds: Sizes, target: Target
) -> PlannedGraph:
    """Return `plain` with folded constants as nodes again."""
    model, types, placement = plain.model, plain.types, plain.placement
    if found.level == "disabled" or not target.unfolds:
        return plain
    stay = [original.tensors[t].name for t in original.inputs if original.tensors[t].on_host]
    mine = set(kinds.loaded.model.graph.initializers)
    is_open = bool(kinds.loaded.dims or kinds.bounds) or any(has_bodies(n) for n in model.graph)
    unfolded = unfold(model, types, mine, target=target, on_host=stay, is_open=is_open)
    if not unfolded.names:
        return plain
    if placement is not None:
        placement = replace(placement, on_cpu=placement.on_cpu | unfolded.on_cpu)
    return PlannedGraph(
        model=unfolded.model,
        types=unfolded.types,
        graph=typed_graph(unfolded.model, unfolded.types, placement=placement),
        placement=placement,
        notes=(
            f"{counted(len(unfolded.names), 'constant')} that ONNX Runtime's folding would keep on the "
            f"device throughout ({format_bytes(unfolded.bytes)}) are made when they are needed",
        ),
    )
