"""Apply chunks of rows to regions of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.choices import Numbers, least_exact
from planner.cost.model import durations_us
from planner.errors import ModelError
from planner.files.reading import shown
from planner.graph.model import TrainingGraph
from planner.graph.reasons import WhyStay
from planner.lower.chunks.chunked_model import Split
from planner.lower.chunks.regions import Ground, Region, grow
from planner.lower.chunks.split import with_split
from planner.pipeline.levers.lever import as_before
from planner.pipeline.prepare.graphs import typed_graph
from planner.pipeline.prepare.limiting import least_copied
from planner.pipeline.prepare.prepared import Prepared
from planner.pipeline.prepare.timelines import workspace_of
from planner.plan.planfile import RegionSeed, SplitRegion


def ground_of(prepared: Prepared) -> Ground:
    """Return the model in the form that regions are grown from."""
    return Ground(prepared.model, prepared.types, prepared.graph)


def split(prepared: Prepared, regions: Sequence[Region]) -> Prepared:
    """Split regions of a model into chunks; each chunk's nodes run one after the other.

    Args:
        regions: of `prepared.model`, without common nodes.
    """
    if not regions:
        return prepared
    before = prepared.graph
    order = [before.operations[op].name for op in prepared.order]
    made = with_split(ground_of(prepared), regions, order)
    graph = as_before(typed_graph(made.model, made.types), before, made.values, made.nodes)
    graph = _without_small(graph, least_copied(prepared.request.levers))
    ids = {op.name: op.id for op in graph.operations}
    return replace(
        prepared,
        model=made.model,
        types=made.types,
        graph=replace(graph, assumptions=before.assumptions),
        order=tuple(ids[name] for name in made.order),
        workspace_bytes=workspace_of(graph, prepared.target),
        duration_us=_durations(prepared, graph, made),
        split=(*prepared.split, tuple(regions)),
        numbers=_numbers(prepared, regions),
    )


def planned_regions(prepared: Prepared) -> tuple[tuple[SplitRegion, ...], ...]:
    """Return the regions that run in chunks, in the form of the plan file."""
    return tuple(
        tuple(
            SplitRegion(
                **{name: getattr(region.seed, name) for name in RegionSeed.__slots__},
                nodes=tuple(region.ways),
            )
            for region in together
        )
        for together in prepared.split
    )


def split_as_planned(prepared: Prepared, planned: Sequence[Sequence[SplitRegion]]) -> Prepared:
    """Split the regions of a plan file into chunks.

    Raises:
        ModelError: there is no such region in the model.
    """
    for together in planned:
        ground = ground_of(prepared)
        found: list[Region] = []
        taken: set[str] = set()
        for wanted in together:
            region = grow(ground, wanted, without=taken)
            if region is None or tuple(region.ways) != wanted.nodes:
                raise ModelError(
                    f"the plan has nodes around {shown(wanted.tensor)} in {wanted.chunks} chunks, "
                    "which do not fit this model: it was edited by hand, or made by another "
                    "version of planner; make the plan again"
                )
            found.append(region)
            taken |= region.ways.keys()
        prepared = split(prepared, found)
    return prepared


def _numbers(prepared: Prepared, regions: Sequence[Region]) -> Numbers:
    """Return the closeness of numbers: unchanged if the kernels compute each row by itself."""
    is_exact = all(region.is_exact for region in regions)
    return least_exact(prepared.numbers, "exact" if is_exact else "rounding")


def _durations(prepared: Prepared, graph: TrainingGraph, made: Split) -> tuple[float, ...]:
    """Return the durations of a graph with chunks.

    An added node gets its roofline duration, scaled by known over roofline duration of its
    original.
    """
    before = prepared.graph
    roofline, _ = durations_us(before, prepared.hardware)
    known = {op.name: prepared.duration_us[op.id] for op in before.operations}
    ratio = {
        op.name: prepared.duration_us[op.id] / roofline[op.id] if roofline[op.id] else 1.0
        for op in before.operations
    }
    modelled, _ = durations_us(graph, prepared.hardware)
    return tuple(
        known.get(op.name, modelled[op.id] * ratio.get(made.nodes.get(op.name, ""), 1.0))
        for op in graph.operations
    )


def _without_small(graph: TrainingGraph, least_bytes: int) -> TrainingGraph:
    """Bar copies of chunks that are too small to be copied."""
    small = (t.id for t in graph.tensors if t.barred is None and t.bytes < least_bytes)
    return graph.with_bars(dict.fromkeys(small, WhyStay.SMALL))
